"""Edits of a pod template on a real API server, as the limited ServiceAccount, against real Deployment rollouts."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crossover.act import mark
from crossover.act.execute import Act, execute
from crossover.act.strategy import RolloutRules
from crossover.act.template import Edit, TemplatePatch, plan_cleanup, plan_template, plan_undo
from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.api.workload import Workload
from crossover.cluster.client import Client
from crossover.cluster.kinds import Kinds
from crossover.cluster.workload import Workloads
from crossover.cluster.writer import Writer
from crossover.controller.clock import SystemClock
from crossover.engines import ENGINES
from crossover.engines.contract import Refusal, WantedSpeculation
from tests.api_server import ControlPlane
from tests.cluster.edge import ARGS, deployment, limited_kubeconfig, ref

pytestmark = [pytest.mark.api_server, pytest.mark.xdist_group("edge")]

OFF = WantedSpeculation(enabled=False)
ON = WantedSpeculation(enabled=True)
SCHEDULE = WantedSpeculation(enabled=True, schedule=((1, 3), (32, 0)))
CAPABILITY = Capability(EngineType.SGLANG, "0.5.23", "EAGLE", 3, ScheduleDialect.SGLANG_ADAPTIVE)


@dataclass
class Fleet:
    """One Deployment and the hands of the operator on it."""

    plane: ControlPlane
    namespace: str
    workloads: Workloads
    writer: Writer
    name: str = "llama"

    async def read(self) -> Workload:
        return await self.workloads.read(self.namespace, ref(self.name))

    async def edit(self, wanted: WantedSpeculation, now: float = 1000.0, **rules: Any) -> bool:
        """Plan and apply; False = nothing to do."""

        async def plan() -> TemplatePatch | None:
            workload = await self.read()
            files = await self.workloads.files(workload, "server")
            edit = Edit(ENGINES[EngineType.SGLANG], "server", CAPABILITY, wanted, files, RolloutRules(**rules))
            return plan_template(workload, edit, now)

        patch = await plan()
        if patch is None:
            return False
        result = await execute(self.writer, namespace=self.namespace, template=patch, replan=plan)
        assert result.faults == ()
        return True

    def live(self) -> Any:
        return self.plane.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}")

    def container(self) -> dict[str, Any]:
        return dict(self.live()["spec"]["template"]["spec"]["containers"][0])


@pytest.fixture
async def fleet(plane: ControlPlane, namespace: str) -> AsyncIterator[Fleet]:
    async with await Client.connect(kubeconfig=limited_kubeconfig(plane, namespace)) as client:
        yield Fleet(plane, namespace, Workloads(client, Kinds(client, SystemClock())), Writer(client))


def apply_as_user(plane: ControlPlane, manifest: dict[str, Any]) -> None:
    """`kubectl apply -f`, client-side, as most people do."""
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


async def test_off_and_on_again_touch_nothing_else(fleet: Fleet) -> None:
    apply_as_user(fleet.plane, deployment(fleet.namespace))
    before = fleet.live()["spec"]["template"]["spec"]
    assert await fleet.edit(OFF)
    off = fleet.live()["spec"]["template"]["spec"]
    assert off["containers"][0]["args"] == [arg for arg in ARGS if "speculative" not in arg]
    assert off["terminationGracePeriodSeconds"] == 120
    assert off["containers"][1] == before["containers"][1]
    assert not await fleet.edit(OFF)
    assert await fleet.edit(ON)
    on = fleet.live()["spec"]["template"]["spec"]
    assert sorted(on["containers"][0]["args"]) == sorted(ARGS)
    assert {**on["containers"][0], "args": 0} == {**before["containers"][0], "args": 0}
    assert fleet.live()["spec"]["replicas"] == 3


async def test_schedule_mounts_an_immutable_config_map_owned_by_the_workload(fleet: Fleet) -> None:
    apply_as_user(fleet.plane, deployment(fleet.namespace))
    assert await fleet.edit(SCHEDULE)
    live = fleet.live()
    (volume,) = live["spec"]["template"]["spec"]["volumes"]
    config_map = fleet.plane.get(f"/api/v1/namespaces/{fleet.namespace}/configmaps/{volume['configMap']['name']}")
    assert config_map["immutable"]
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]
    table = json.loads(config_map["data"]["adaptive.json"])
    assert {key: value["candidate_steps"] for key, value in table.items()} == {"1": [3], "32": [0]}
    assert not await fleet.edit(SCHEDULE)
    assert await fleet.edit(OFF)
    container = fleet.container()
    assert not any("speculative" in arg for arg in container["args"])
    assert await fleet.edit(SCHEDULE)
    (volume,) = fleet.live()["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]


async def test_a_later_edit_keeps_what_an_earlier_one_set(fleet: Fleet) -> None:
    """An apply that leaves out a field we own takes it away: every apply must carry all of them."""
    apply_as_user(fleet.plane, deployment(fleet.namespace, strategy={"rollingUpdate": {"maxUnavailable": 2}}))
    assert await fleet.edit(SCHEDULE)
    strategy = fleet.live()["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert await fleet.edit(WantedSpeculation(enabled=True, schedule=((1, 2), (16, 0))))
    live = fleet.live()
    assert live["spec"]["strategy"] == strategy
    assert live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    assert fleet.container()["args"][:2] == ARGS[:2]


@pytest.mark.parametrize("how", ["client-side", "server-side"])
async def test_user_who_applies_again_wins_and_is_edited_again(fleet: Fleet, how: str) -> None:
    manifest = deployment(fleet.namespace)
    flags = ["--server-side", "--force-conflicts"] if how == "server-side" else []
    fleet.plane.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(manifest))
    assert await fleet.edit(OFF)
    if how == "server-side":
        refused = fleet.plane.kubectl(
            "apply", "--server-side", "-f", "-", stdin=json.dumps(deployment(fleet.namespace)), check=False
        )
        assert "conflict" in refused
        assert "crossover.dev" in refused
    changed = deployment(fleet.namespace, args=[*ARGS, "--log-level=debug"])
    fleet.plane.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(changed))
    assert fleet.container()["args"] == [*ARGS, "--log-level=debug"]
    assert await fleet.edit(OFF)
    assert fleet.container()["args"] == [arg for arg in [*ARGS, "--log-level=debug"] if "speculative" not in arg]
    assert await fleet.edit(ON)
    assert sorted(fleet.container()["args"]) == sorted([*ARGS, "--log-level=debug"])


async def test_helm_upgrade_conflicts_by_name_and_wins_by_force(fleet: Fleet, tmp_path: Path) -> None:
    """Helm 4 applies server-side: even an upgrade that changes nothing conflicts; docs/field-ownership.md says so."""
    chart = tmp_path / "model"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: model\nversion: 0.1.0\n")

    def upgrade(args: list[str], *flags: str) -> str:
        manifest = deployment(fleet.namespace, args=args)
        del manifest["spec"]["replicas"]
        (chart / "templates" / "model.yaml").write_text(json.dumps(manifest))
        helm = [str(fleet.plane.assets / "helm"), f"--kubeconfig={fleet.plane.kubeconfig}"]
        command = [*helm, "upgrade", "--install", "model", str(chart), f"--namespace={fleet.namespace}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return "" if done.returncode == 0 else done.stderr

    assert upgrade(ARGS) == ""
    assert await fleet.edit(OFF)
    refused = upgrade(ARGS)
    assert "crossover.dev" in refused
    assert 'containers[name="server"].args' in refused.replace("\\", "")
    assert upgrade([*ARGS, "--log-level=debug"], "--force-conflicts") == ""
    assert fleet.container()["args"] == [*ARGS, "--log-level=debug"]
    assert await fleet.edit(OFF)
    assert fleet.container()["args"] == [arg for arg in [*ARGS, "--log-level=debug"] if "speculative" not in arg]


async def test_somebody_changed_the_object_since_it_was_read(fleet: Fleet) -> None:
    apply_as_user(fleet.plane, deployment(fleet.namespace))
    workload = await fleet.read()
    edit = Edit(ENGINES[EngineType.SGLANG], "server", CAPABILITY, OFF, {}, RolloutRules())
    patch = plan_template(workload, edit, 1000.0)
    apply_as_user(fleet.plane, deployment(fleet.namespace, args=[*ARGS, "--log-level=debug"]))
    result = await execute(fleet.writer, namespace=fleet.namespace, template=patch)
    fault = result.fault(Act.TEMPLATE)
    assert fault is not None
    assert (fault.code, fault.transient) == ("Conflict", True)
    assert fleet.container()["args"] == [*ARGS, "--log-level=debug"]


async def test_undo_brings_the_old_replica_set_back_and_restarts_no_old_pod(fleet: Fleet) -> None:
    apply_as_user(fleet.plane, deployment(fleet.namespace))

    async def revisions(count: int) -> Any:
        workload = await fleet.read()
        found = await fleet.workloads.revisions(workload)
        return found if len(found) == count and workload.observed_generation == workload.generation else None

    async def settled(count: int) -> Any:
        for _ in range(400):
            if found := await revisions(count):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError("the Deployment controller did not act")

    (first,) = await settled(1)
    assert await fleet.edit(SCHEDULE)
    both = await settled(2)
    workload = await fleet.read()
    assert [revision.number for revision in both if workload.is_current(revision)] == [2]
    patch = plan_undo(workload, both, "new pods crash", 2000.0)
    assert patch is not None
    assert (await execute(fleet.writer, namespace=fleet.namespace, template=patch)).faults == ()
    restored = fleet.live()["spec"]["template"]
    assert restored == {**first.template, "metadata": {**first.template["metadata"]}}
    after = await settled(2)
    workload = await fleet.read()
    (current,) = [revision for revision in after if workload.is_current(revision)]
    assert current.template_hash == first.template_hash
    with pytest.raises(Refusal) as refusal:
        await fleet.edit(SCHEDULE, now=2100.0)
    assert refusal.value.code == "RolloutFailedBefore"
    assert await fleet.edit(SCHEDULE, now=2000.0 + 3700.0)
    assert mark.FAILED not in fleet.live()["metadata"]["annotations"]


async def test_unused_config_maps_go_after_the_rollout(fleet: Fleet) -> None:
    manifest = deployment(fleet.namespace, revisionHistoryLimit=0, replicas=0)
    apply_as_user(fleet.plane, manifest)
    for number in range(4):
        assert await fleet.edit(WantedSpeculation(enabled=True, schedule=((1, 3), (20 + number, 0))))
    path = f"/api/v1/namespaces/{fleet.namespace}/configmaps"

    def ours() -> list[str]:
        return [
            item["metadata"]["name"]
            for item in fleet.plane.get(path)["items"]
            if "speculation" in item["metadata"]["name"]
        ]

    assert len(ours()) == 4
    template = fleet.live()["spec"]["template"]
    for _ in range(400):  # the controller forgets old ReplicaSets in its own time, and its status writes may interfere
        workload = await fleet.read()
        plan = plan_cleanup(workload, await fleet.workloads.revisions(workload))
        if plan is not None:
            await execute(fleet.writer, namespace=fleet.namespace, cleanup=plan)
        if len(ours()) == 2:
            break
        await asyncio.sleep(0.05)
    assert len(ours()) == 2
    assert fleet.live()["spec"]["template"] == template
    names = fleet.live()["metadata"]["annotations"][mark.CONFIG_MAPS].split(",")
    assert sorted(names) == sorted(ours())
