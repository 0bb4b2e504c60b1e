"""Rollouts of ours with real controllers and running pods: never below the ready minimum, and taken back when the new
pods do not start."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from crossover.act.execute import execute
from crossover.act.rollout import Rollout, RolloutState, StuckReason, judge
from crossover.act.strategy import RolloutRules
from crossover.act.template import Edit, plan_template, plan_undo
from crossover.api.fleet import Capability, EngineType, PodFacts, PodPhase
from crossover.api.workload import TargetRef, Workload
from crossover.cluster.client import Client
from crossover.cluster.kinds import Kinds
from crossover.cluster.pods import PodCache
from crossover.cluster.workload import Workloads
from crossover.cluster.writer import Writer
from crossover.controller.clock import SystemClock
from crossover.engines.contract import ContainerEdit, WantedSpeculation
from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet
from tests.cluster.edge import limited_kubeconfig

pytestmark = [pytest.mark.api_server, pytest.mark.xdist_group("edge")]

SERVER = """
import http.server, sys
if sys.argv[2] == "crash":
    sys.exit(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler).serve_forever()
"""


class Sets:
    """An engine whose edit sets the arguments."""

    def __init__(self, *args: str) -> None:
        self._args = args

    def edit(self, container: Mapping[str, Any], *_: object) -> ContainerEdit:
        changed = self._args if tuple(container.get("args") or ()) != self._args else None
        return ContainerEdit(str(container["name"]), args=changed)


def manifest(namespace: str, kind: str) -> dict[str, Any]:
    labels = {"app": "llama"}
    container = {
        "name": "server",
        "image": "plain",
        "command": [sys.executable, "-c", SERVER, "$(POD_IP)"],
        "args": ["serve"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "llama", "namespace": namespace},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 2},
            },
        },
    }


@dataclass
class Fleet:
    plane: ControlPlane
    namespace: str
    workloads: Workloads
    writer: Writer
    clock: SystemClock
    cache: PodCache
    kind: str = "Deployment"
    fewest_ready: int | None = None
    """Since `watch_ready` was called."""
    _phases: dict[str, PodPhase] = field(default_factory=dict)

    async def deploy(self, kind: str) -> None:
        self.kind = kind
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(self.namespace, kind)))
        self.cache.use("test", self.namespace)
        await self.until(lambda: sum(pod.phase is PodPhase.READY for pod in self.pods()) == 3)
        self.fewest_ready = 3

    def pods(self) -> tuple[PodFacts, ...]:
        return self.cache.select(self.namespace, "app=llama")

    def changed(self, pod: PodFacts) -> None:
        if self.fewest_ready is not None:
            ready = sum(item.phase is PodPhase.READY for item in self.pods())
            self.fewest_ready = min(self.fewest_ready, ready)

    async def read(self) -> Workload:
        return await self.workloads.read(self.namespace, TargetRef("apps/v1", self.kind, "llama"))

    async def edit(self, *args: str, **rules: Any) -> None:
        async def plan() -> Any:
            edit = Edit(
                Sets(*args),  # type: ignore[arg-type]
                "server",
                Capability(EngineType.SGLANG, None, None),
                WantedSpeculation(enabled=False),
                {},
                RolloutRules(drain_seconds=1, **rules),
            )
            return plan_template(await self.read(), edit, self.clock.now())

        result = await execute(self.writer, namespace=self.namespace, template=await plan(), replan=plan)
        assert result.faults == ()

    async def judged(self, state: RolloutState) -> tuple[Workload, Rollout]:
        async with asyncio.timeout(60):
            while True:
                workload = await self.read()
                if workload.observed_generation == workload.generation:
                    seen = judge(workload, await self.workloads.revisions(workload), self.pods(), self.clock.now())
                    if seen.state is state:
                        return workload, seen
                await asyncio.sleep(0.1)

    async def until(self, check: Any) -> None:
        async with asyncio.timeout(60):
            while not check():
                await asyncio.sleep(0.05)


@pytest.fixture
async def fleet(plane: ControlPlane, kubelet: Kubelet, namespace: str) -> AsyncIterator[Fleet]:
    clock = SystemClock()
    async with await Client.connect(kubeconfig=limited_kubeconfig(plane, namespace)) as client:
        made: list[Fleet] = []
        cache = PodCache(client, clock, lambda pod: [item.changed(pod) for item in made] and None)
        workloads = Workloads(client, Kinds(client, clock))
        made.append(Fleet(plane, namespace, workloads, Writer(client), clock, cache))
        yield made[0]
        await cache.close()
        plane.request("DELETE", f"/apis/apps/v1/namespaces/{namespace}/{made[0].kind.lower()}s/llama")


async def test_a_rollout_never_takes_the_fleet_below_its_ready_minimum(fleet: Fleet) -> None:
    await fleet.deploy("Deployment")
    before = {pod.uid for pod in fleet.pods()}
    await fleet.edit("serve", "--speculation=off", ready_minimum=3)
    await fleet.until(lambda: not before & {pod.uid for pod in fleet.pods()})
    await fleet.judged(RolloutState.NONE)
    assert fleet.fewest_ready == 3


async def test_new_pods_that_crash_are_taken_back_and_no_old_pod_is_touched(fleet: Fleet) -> None:
    await fleet.deploy("Deployment")
    before = {pod.uid for pod in fleet.pods()}
    await fleet.edit("crash", ready_minimum=3)
    workload, seen = await fleet.judged(RolloutState.STUCK)
    assert seen.stuck is StuckReason.PODS_CRASH
    undo = plan_undo(workload, await fleet.workloads.revisions(workload), seen.summary, fleet.clock.now())
    assert undo is not None
    assert undo.summary == "speculation off taken back"
    result = await execute(fleet.writer, namespace=fleet.namespace, template=undo)
    if result.faults:  # its controller wrote status in between: the next tick plans it again
        workload = await fleet.read()
        undo = plan_undo(workload, await fleet.workloads.revisions(workload), seen.summary, fleet.clock.now())
        result = await execute(fleet.writer, namespace=fleet.namespace, template=undo)
    assert result.faults == ()
    await fleet.judged(RolloutState.NONE)
    await fleet.until(lambda: len(fleet.pods()) == 3)
    assert {pod.uid for pod in fleet.pods()} == before
    assert sum(pod.restarts for pod in fleet.pods()) == 0
    assert fleet.fewest_ready == 3


async def test_a_stateful_set_rolls_one_pod_at_a_time_and_a_crash_costs_one(fleet: Fleet) -> None:
    await fleet.deploy("StatefulSet")
    before = {pod.uid for pod in fleet.pods()}
    await fleet.edit("serve", "--speculation=off", ready_minimum=2)
    await fleet.until(lambda: not before & {pod.uid for pod in fleet.pods()})
    await fleet.judged(RolloutState.NONE)
    assert fleet.fewest_ready == 2
    await fleet.until(lambda: sum(pod.phase is PodPhase.READY for pod in fleet.pods()) == 3)
    await asyncio.sleep(1)  # marks tell time in seconds
    await fleet.edit("crash", ready_minimum=2)
    workload, seen = await fleet.judged(RolloutState.STUCK)
    assert seen.stuck is StuckReason.PODS_CRASH
    undo = plan_undo(workload, await fleet.workloads.revisions(workload), seen.summary, fleet.clock.now())
    assert undo is not None
    result = await execute(fleet.writer, namespace=fleet.namespace, template=undo)
    assert result.faults == ()
    workload, seen = await fleet.judged(RolloutState.STUCK)
    (broken,) = [pod.name for pod in fleet.pods() if pod.phase is not PodPhase.READY]
    assert seen.summary == (
        f"the StatefulSet waits for pod {broken}, which cannot start with older settings: delete it"
    )
    assert plan_undo(workload, await fleet.workloads.revisions(workload), seen.summary, fleet.clock.now()) is None
    fleet.plane.request("DELETE", f"/api/v1/namespaces/{fleet.namespace}/pods/{broken}")
    await fleet.judged(RolloutState.NONE)
    await fleet.until(lambda: sum(pod.phase is PodPhase.READY for pod in fleet.pods()) == 3)
    assert fleet.fewest_ready == 2
