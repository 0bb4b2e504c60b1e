"""A stand-in kubelet: binds pods to one fake node, runs their containers as processes on 127.x.y.z addresses, reports
their state and deletes them gracefully, as the real one would.

    with ControlPlane() as plane, Kubelet(plane) as kubelet:
        ...

Runs in a thread of its own. What a container becomes is decided by a `Launcher` (`tests.api_server.containers`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from tests.api_server.addresses import AddressPool
from tests.api_server.containers import Launcher, emulated
from tests.api_server.control_plane import ControlPlane
from tests.api_server.pod import PodRunner

NODE = "stand-in"
PRODUCT = "NVIDIA-H100-80GB-HBM3"


class Kubelet:
    """One node for a whole control plane.

    ``start_delay_seconds``: a number or a function, the time from scheduling to the process start (image pull).
    ``launcher``: what a container becomes. ``pending``: pods for which this is true are never started.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        launcher: Launcher = emulated,
        start_delay_seconds: float | Callable[[], float] = 0.0,
        pending: Callable[[dict[str, Any]], bool] = lambda pod: False,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plane, self.launcher, self.log = plane, launcher, log
        self._delay, self.pending = start_delay_seconds, pending
        self.addresses = AddressPool()
        self.folder = Path(tempfile.mkdtemp(prefix="crossover-kubelet-"))
        self.moved_tags: dict[str, int] = {}
        """Image name -> how often what it points to has changed: for pods that start from now on."""
        self._pods: dict[str, PodRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="kubelet", daemon=True)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        if not self._started.wait(30):
            raise RuntimeError("kubelet did not start")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(30)
        for runner in self._pods.values():
            runner.kill()
        self.addresses.close()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"kubelet: container logs kept in {self.folder}", flush=True)

    # -- faults for tests, from any thread ----------------------------------------------------------------------------

    def kill(self, namespace: str, name: str) -> None:
        """Crash the container's process."""
        self._runner(namespace, name).signal(signal.SIGKILL)

    def freeze(self, namespace: str, name: str) -> None:
        self._runner(namespace, name).signal(signal.SIGSTOP)

    def thaw(self, namespace: str, name: str) -> None:
        self._runner(namespace, name).signal(signal.SIGCONT)

    def container_log(self, namespace: str, name: str) -> str:
        return self._runner(namespace, name).log_text()

    def image_id(self, image: str) -> str:
        """As containerd tells it."""
        digest = hashlib.sha256(f"{image} {self.moved_tags.get(image, 0)}".encode()).hexdigest()
        return f"{image.partition(':')[0]}@sha256:{digest}"

    def _runner(self, namespace: str, name: str) -> PodRunner:
        for runner in list(self._pods.values()):
            if (runner.namespace, runner.name) == (namespace, name):
                return runner
        raise LookupError(f"no such pod here: {namespace}/{name}")

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._watch_forever())
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(self.session.close())
            self._loop.run_until_complete(self.probe_session.close())
            self._loop.close()

    async def _watch_forever(self) -> None:
        self.session = aiohttp.ClientSession(
            base_url=self.plane.url,
            headers={"Authorization": f"Bearer {self.plane._token}"},
            connector=aiohttp.TCPConnector(ssl=False, limit=100),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        self.probe_session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200, force_close=True))
        await self._register_node()
        self._started.set()
        while True:
            try:
                await self._watch()
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
                self.log(f"kubelet: watch ended: {type(error).__name__}")
            await asyncio.sleep(0.2)

    async def _register_node(self) -> None:
        node = {
            "metadata": {"name": NODE, "labels": {"nvidia.com/gpu.product": PRODUCT}},
            "status": {
                "capacity": {"cpu": "1000", "memory": "10Ti", "pods": "100000", "nvidia.com/gpu": "1000"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "StandIn", "message": "ready"}],
            },
        }
        await self.call("POST", "/api/v1/nodes", node, expected=(201, 409))

    async def _watch(self) -> None:
        """List, then follow; a pod that vanished while we did not look is stopped."""
        listed = await self.call("GET", "/api/v1/pods")
        seen = set()
        for pod in listed["items"]:
            seen.add(pod["metadata"]["uid"])
            self._changed(pod)
        for uid in self._pods.keys() - seen:
            self._pods[uid].gone()
        version = listed["metadata"]["resourceVersion"]
        path = f"/api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
        async with self.session.get(path, timeout=timeout) as answer:
            async for line in _lines(answer.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    runner = self._pods.get(event["object"]["metadata"]["uid"])
                    if runner:
                        runner.gone()
                elif event["type"] != "BOOKMARK":
                    self._changed(event["object"])

    def _changed(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid].update(pod)
            return
        if pod["spec"].get("nodeName") not in (None, NODE) or pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        runner = PodRunner(self, pod)
        self._pods[uid] = runner
        self.spawn(self._live(uid, runner))

    async def _live(self, uid: str, runner: PodRunner) -> None:
        try:
            await runner.run()
        finally:
            runner.kill()
            self._pods.pop(uid, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def delay(self) -> float:
        return self._delay() if callable(self._delay) else self._delay

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        expected: tuple[int, ...] = (200, 201),
    ) -> Any:
        """One API request, repeated while the server is away; None for 404 and 409."""
        while True:
            try:
                async with self.session.request(
                    method,
                    path,
                    data=None if body is None else json.dumps(body),
                    headers={"Content-Type": content_type},
                ) as answer:
                    if answer.status in (404, 409):
                        return None
                    if answer.status in expected:
                        return await answer.json()
                    if answer.status < 500 and answer.status != 429:
                        raise RuntimeError(f"{method} {path}: {answer.status} {await answer.text()}")
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.2)

    def run_in_loop(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length (aiohttp's own readline gives up at 128 kB)."""
    held = b""
    async for chunk in stream.iter_any():
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            yield line
