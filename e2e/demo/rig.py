"""The demo's stage: control plane, chart, operator, emulated fleets, load, and a witness that samples them all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet
from tests.api_server.operator import Operator, install_chart

from crossover.emulate.load import ClosedLoop
from e2e.demo.fleets import FLEETS, NAMESPACE, PORT, Fleet, deployment, model_autoscaler
from e2e.demo.record import FleetRecord, PodTruth, Sample

SAMPLE_SECONDS = 0.5
EMULATE_FLAGS = "--model 8b-h100 --startup-seconds 4 --drain-poll-seconds 0.5 --time-scale 0.5 --acceptance 0.6"
"""Half speed keeps six servers on two cores light; the batch that a closed loop fills does not depend on the pace."""


class Rig:
    """Everything that runs. `stop` ends all of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.records = {fleet.name: FleetRecord(fleet.name) for fleet in FLEETS}
        self.loads: dict[str, ClosedLoop] = {}
        self._endpoints: dict[str, list[str]] = {fleet.name: [] for fleet in FLEETS}

    # -- setting up -----------------------------------------------------------------------------------------------------

    def control_plane(self) -> str:
        self.plane = self._stack.enter_context(ControlPlane())
        return f"kube-apiserver ready and controllers working after {self.plane.start_seconds:.1f} s"

    def chart(self) -> str:
        install_chart(self.plane)
        self.plane.create_namespace(NAMESPACE)
        return "CRDs, RBAC and ServiceAccount by helm install charts/crossover"

    def operator(self) -> str:
        self.process = Operator(self.plane, self._folder).start()
        self._stack.callback(self.process.stop)
        return "crossover run, as the chart's ServiceAccount"

    def fleets(self) -> str:
        self._stack.enter_context(Kubelet(self.plane))
        self.plane.apply(*(deployment(fleet, EMULATE_FLAGS) for fleet in FLEETS))
        for fleet in FLEETS:
            self.plane.wait_for(lambda name=fleet.name: self._ready(name) == 3, f"{fleet.name}: 3 ready pods")  # type: ignore[misc]
        return "2 Deployments of 3 emulated SGLang pods each, all ready"

    def autoscalers(self) -> str:
        self.plane.apply(*(model_autoscaler(fleet) for fleet in FLEETS))
        return "2 ModelAutoscalers in simple mode"

    def stop(self) -> None:
        self._stack.close()

    def _ready(self, name: str) -> int:
        return int(self._deployment(name).get("status", {}).get("readyReplicas", 0))

    def _deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}")
        return found

    # -- running --------------------------------------------------------------------------------------------------------

    async def run(self, stack: contextlib.AsyncExitStack) -> None:
        """Start load generators (idle) and the witness."""
        self._session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2), connector=aiohttp.TCPConnector(limit=50))
        )
        for fleet in FLEETS:
            loop = ClosedLoop(lambda name=fleet.name: self._endpoints[name], output_tokens=300)  # type: ignore[misc]
            self.loads[fleet.name] = await stack.enter_async_context(loop)
        witness = asyncio.create_task(self._witness())
        stack.push_async_callback(_cancelled, witness)

    def set_load(self, requests_per_fleet: int) -> None:
        for load in self.loads.values():
            load.set_concurrency(requests_per_fleet)

    async def _witness(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._sample(fleet) for fleet in FLEETS))
            await asyncio.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - began)))

    async def _sample(self, fleet: Fleet) -> None:
        """One look at the API and at the engines themselves, not at what the operator says."""
        name = fleet.name
        found, listed = await asyncio.gather(
            asyncio.to_thread(self._deployment, name),
            asyncio.to_thread(self.plane.get, f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app={name}"),
        )
        ready = [pod for pod in listed["items"] if _is_ready(pod)]
        self._endpoints[name][:] = [
            f"http://{pod['status']['podIP']}:{PORT}" for pod in ready if "deletionTimestamp" not in pod["metadata"]
        ]
        truths = await asyncio.gather(*(self._truth(pod) for pod in ready))
        container = found["spec"]["template"]["spec"]["containers"][0]
        record = self.records[name]
        record.samples.append(
            Sample(
                at_seconds=time.time(),
                replicas=int(found["spec"]["replicas"]),
                ready=int(found.get("status", {}).get("readyReplicas", 0)),
                template_generation=int(found["metadata"]["generation"]),
                speculation_on=any(str(word).startswith("--speculative-algorithm") for word in container["args"]),
                pods=tuple(truth for truth in truths if truth is not None),
            )
        )
        tally = self.loads[name].tally if name in self.loads else None
        if tally is not None:
            record.requests_done, record.requests_failed, record.tokens_done = tally.done, tally.failed, tally.tokens

    async def _truth(self, pod: dict[str, Any]) -> PodTruth | None:
        try:
            async with self._session.get(f"http://{pod['status']['podIP']}:{PORT}/emulator/truth") as answer:
                truth = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        (rank,) = truth["ranks"]
        moves = tuple((float(at), int(length)) for at, length in rank["moves"])
        return PodTruth(
            pod["metadata"]["name"],
            int(rank["running"]),
            int(rank["draft_tokens"] or 0),
            bool(truth["speculates"]),
            "deletionTimestamp" in pod["metadata"],
            moves,
        )

    # -- what users look at ---------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl("-n", NAMESPACE, *arguments)

    def status(self, name: str) -> dict[str, Any]:
        path = f"/apis/crossover.dev/v1alpha1/namespaces/{NAMESPACE}/modelautoscalers/{name}"
        found: dict[str, Any] = self.plane.get(path).get("status", {})
        return found

    def events(self, name: str) -> Sequence[dict[str, Any]]:
        listed = self.plane.get(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
        mine = [item for item in listed if item["regarding"]["name"] == name]
        return sorted(mine, key=lambda item: str(item["eventTime"]))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
