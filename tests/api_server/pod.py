"""One pod's life on the stand-in node: start, probe, restart, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.api_server.containers import config_map_names, write_files
from tests.api_server.processes import Process

if TYPE_CHECKING:
    from tests.api_server.kubelet import Kubelet

POLL_SECONDS = 0.1
BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
DEFAULT_GRACE_SECONDS = 30.0


class PodRunner:
    """Follows one pod from binding to its end. One container is run: the first."""

    def __init__(self, kubelet: Kubelet, pod: dict[str, Any]) -> None:
        self._kubelet, self._pod = kubelet, pod
        meta = pod["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.address: str | None = None
        self._folder = kubelet.folder / f"{self.namespace}_{self.name}"
        self._process: Process | None = None
        self._restarts = 0
        self._ready = False
        self._waiting = "ContainerCreating"
        self._shown: Any = None
        self._gone = False
        self._image_id = kubelet.image_id(self._container["image"])

    # -- from the watch -----------------------------------------------------------------------------------------------

    def update(self, pod: dict[str, Any]) -> None:
        self._pod = pod

    def gone(self) -> None:
        self._gone = True

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.signal(signal.SIGCONT)
            self._process.signal(signal.SIGKILL)

    def log_text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    @property
    def _container(self) -> dict[str, Any]:
        return self._pod["spec"]["containers"][0]

    @property
    def _ending(self) -> bool:
        return self._gone or "deletionTimestamp" in self._pod["metadata"]

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self._kubelet.pending(self._pod):
            await self._unschedulable()
        while self._kubelet.pending(self._pod):
            if self._ending:
                return await self._remove()
            await asyncio.sleep(POLL_SECONDS)
        await self._bind()
        self.address = self._kubelet.addresses.take()
        await self._report()
        if await self._until_ending(self._kubelet.delay()):
            return await self._remove()
        if not await self._files():
            return await self._remove()
        while not self._ending:
            await self._run_container()
            if self._ending:
                break
            if self._pod["spec"].get("restartPolicy") == "Never":
                await self._ended()
                break
            await self._back_off()
        while not self._ending:
            await asyncio.sleep(POLL_SECONDS)
        return await self._remove()

    async def _bind(self) -> None:
        if self._pod["spec"].get("nodeName"):
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": "stand-in"}
        await self._kubelet.call("POST", f"{self._path}/binding", {"metadata": {"name": self.name}, "target": target})

    async def _files(self) -> bool:
        """ConfigMaps of the pod; the pod stays in ContainerCreating until they exist."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, dict[str, str]] = {}
        for name in config_map_names(self._pod):
            path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
            while (found := await self._kubelet.call("GET", path)) is None:
                if await self._until_ending(0.3):
                    return False
            content[name] = found.get("data", {})
        write_files(self._pod, self._container, content, self._folder / "root")
        return True

    async def _run_container(self) -> None:
        """Until the process ends or the pod is being deleted; then it is drained."""
        assert self.address is not None
        launch = self._kubelet.launcher(self._pod, self._container, self.address, self._folder / "root")
        self._waiting = ""
        if launch.argv is not None:
            log = self._folder / f"container-{self._restarts}.log"
            self._process = Process(self.name, launch.argv, log, env=launch.env)
        prober = asyncio.ensure_future(self._probe())
        try:
            while not self._ending and (self._process is None or self._process.returncode is None):
                await asyncio.sleep(POLL_SECONDS)
            if self._ending:
                await self._drain()
        finally:
            prober.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await prober
        self._ready = False

    async def _unschedulable(self) -> None:
        """What the scheduler says when no node has room."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available",
        }
        status = {"status": {"phase": "Pending", "conditions": [condition]}}
        await self._kubelet.call("PATCH", f"{self._path}/status", status, content_type="application/merge-patch+json")

    async def _ended(self) -> None:
        """A container that is not restarted: the pod's last state."""
        code = self._process.returncode if self._process is not None else 0
        ended = {"terminated": {"exitCode": code or 0, "reason": "Error" if code else "Completed"}}
        container = {"name": self._container["name"], "image": self._container["image"], "imageID": self._image_id}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {
            "phase": "Failed" if code else "Succeeded",
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
            "containerStatuses": [{**container, "ready": False, "restartCount": 0, "state": ended}],
        }
        await self._kubelet.call(
            "PATCH", f"{self._path}/status", {"status": status}, content_type="application/merge-patch+json"
        )

    async def _back_off(self) -> None:
        self._restarts += 1
        self._waiting = "CrashLoopBackOff"
        await self._report()
        await self._until_ending(BACK_OFF_SECONDS[min(self._restarts, len(BACK_OFF_SECONDS)) - 1])

    async def _drain(self) -> None:
        """preStop sleep, SIGTERM, the grace period, SIGKILL."""
        if self._gone or self._process is None:
            return
        loop = asyncio.get_running_loop()
        grace = float(self._pod["metadata"].get("deletionGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
        deadline = loop.time() + grace
        hook = self._container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        await asyncio.sleep(min(float(hook), grace))
        self._process.signal(signal.SIGTERM)
        while self._process.returncode is None and loop.time() < deadline and not self._gone:
            await asyncio.sleep(POLL_SECONDS)
        if self._process.returncode is None:
            self._process.signal(signal.SIGKILL)

    async def _remove(self) -> None:
        self.kill()
        if not self._gone:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            await self._kubelet.call("DELETE", self._path, options)

    async def _until_ending(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self._ending:
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(POLL_SECONDS, left))
        return True

    # -- readiness and status -----------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        probe = self._container.get("readinessProbe")
        if probe is None or "httpGet" not in probe:
            self._ready = True
            await self._report()
            return
        failures = 0
        await self._report()
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            good = await self._probe_once(probe)
            failures = 0 if good else failures + 1
            if good or failures >= probe.get("failureThreshold", 3):
                self._ready = good
            await self._report()
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _probe_once(self, probe: dict[str, Any]) -> bool:
        get = probe["httpGet"]
        port = get["port"]
        if isinstance(port, str):
            port = next(item["containerPort"] for item in self._container["ports"] if item["name"] == port)
        timeout = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        url = f"http://{self.address}:{port}{get.get('path', '/')}"
        try:
            async with self._kubelet.probe_session.get(url, timeout=timeout) as answer:
                return answer.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _report(self) -> None:
        """PATCH /status when something is new."""
        started = self._waiting == ""
        state = {"running": {}} if started else {"waiting": {"reason": self._waiting}}
        shown = (started, self._ready, self._waiting, self._restarts)
        if shown == self._shown:
            return
        self._shown = shown
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if started:
            state = {"running": {"startedAt": now}}
        ready = "True" if self._ready else "False"
        before = {item["type"]: item for item in self._pod.get("status", {}).get("conditions", ())}
        conditions = []
        for kind, value in (
            ("PodScheduled", "True"),
            ("Initialized", "True"),
            ("ContainersReady", ready),
            ("Ready", ready),
        ):
            old = before.get(kind, {})
            since = old["lastTransitionTime"] if old.get("status") == value and old.get("lastTransitionTime") else now
            conditions.append({"type": kind, "status": value, "lastTransitionTime": since})
        status = {
            "phase": "Running" if started or self._restarts else "Pending",
            "hostIP": "127.0.0.1",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._pod.get("status", {}).get("startTime", now),
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": self._container["name"],
                    "image": self._container["image"],
                    "imageID": self._image_id,
                    "ready": self._ready,
                    "started": started,
                    "restartCount": self._restarts,
                    "state": state,
                }
            ],
        }
        changed = await self._kubelet.call(
            "PATCH", f"{self._path}/status", {"status": status}, content_type="application/merge-patch+json"
        )
        if changed is not None and "deletionTimestamp" not in self._pod["metadata"]:
            self._pod = changed
