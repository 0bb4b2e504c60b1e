from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crossover.act.config_map import ConfigMapPatch
from crossover.act.execute import Act, execute
from crossover.act.scale import ScalePatch, plan_scale
from crossover.act.template import TemplatePatch
from crossover.api.decision import DecisionReason, ReplicaDecision
from crossover.api.faults import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from crossover.engines.contract import Refusal
from tests.act.workloads import workload


class Hands:
    """Remembers what was asked of it; fails where told."""

    def __init__(self, **faults: ClusterError) -> None:
        self.calls: list[str] = []
        self.faults = faults
        self.present: dict[str, Any] = {}

    def _do(self, verb: str, path: str) -> None:
        self.calls.append(f"{verb} {path}")
        if verb in self.faults:
            raise self.faults[verb]

    async def apply(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._do("apply", path)
        return body

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        self._do("create", path)

    async def get(self, path: str) -> Mapping[str, Any]:
        self._do("get", path)
        return self.present

    async def delete(self, path: str) -> None:
        self._do("delete", path)

    async def scale(self, path: str, replicas: int) -> int | None:
        self._do("scale", f"{path} {replicas}")
        return replicas


CONFIG_MAP = ConfigMapPatch("map", "/maps", {"data": {"a": "1"}})
TEMPLATE = TemplatePatch("/llama", {}, "speculation off", CONFIG_MAP, ("a note",))
SCALE = ScalePatch("/llama", 5, "replicas 3 -> 5")


async def test_config_map_before_template_before_scale() -> None:
    hands = Hands()
    result = await execute(hands, namespace="demo", template=TEMPLATE, scale=SCALE)
    assert hands.calls == ["create /maps", "apply /llama", "scale /llama 5"]
    assert [(step.act, step.summary, step.notes) for step in result.done] == [
        (Act.TEMPLATE, "speculation off", ("a note",)),
        (Act.SCALE, "replicas 3 -> 5", ()),
    ]
    assert result.faults == ()


@pytest.mark.parametrize("fault", [Conflict, Forbidden, Invalid, Unavailable, NotFound])
async def test_a_fault_is_a_result_and_scaling_is_not_kept_waiting(fault: type[ClusterError]) -> None:
    hands = Hands(apply=fault("PATCH", "/llama"))
    result = await execute(hands, namespace="demo", template=TEMPLATE, scale=SCALE)
    failed = result.fault(Act.TEMPLATE)
    assert failed is not None
    assert failed.code == fault.__name__
    assert failed.transient is (fault in (Conflict, Unavailable))
    assert [step.act for step in result.done] == [Act.SCALE]


async def test_no_template_without_its_config_map() -> None:
    hands = Hands(create=Forbidden("POST", "/maps"))
    result = await execute(hands, namespace="demo", template=TEMPLATE)
    assert hands.calls == ["create /maps"]
    assert result.fault(Act.TEMPLATE) is not None


async def test_a_config_map_that_is_there_must_hold_the_same() -> None:
    hands = Hands(create=AlreadyExists("POST", "/maps"))
    hands.present = {"data": {"a": "1"}}
    assert (await execute(hands, namespace="demo", template=TEMPLATE)).faults == ()
    hands.present = {"data": {"a": "somebody else's"}}
    (fault,) = (await execute(hands, namespace="demo", template=TEMPLATE)).faults
    assert "delete it" in fault.message


async def test_a_conflict_is_planned_again_with_fresh_eyes() -> None:
    hands = Hands(apply=Conflict("PATCH", "/llama"))

    async def replan() -> TemplatePatch | None:
        hands.faults.clear()
        return TEMPLATE

    result = await execute(hands, namespace="demo", template=TEMPLATE, replan=replan)
    assert result.faults == ()
    assert hands.calls.count("apply /llama") == 2


async def test_a_conflict_whose_cause_makes_the_change_unsafe_ends_in_the_refusal() -> None:
    hands = Hands(apply=Conflict("PATCH", "/llama"))

    async def replan() -> TemplatePatch | None:
        raise Refusal("RolloutPaused", "paused.", field="spec.paused", fix="Resume.")

    (fault,) = (await execute(hands, namespace="demo", template=TEMPLATE, replan=replan)).faults
    assert fault.code == "RolloutPaused"


async def test_endless_conflicts_end() -> None:
    hands = Hands(apply=Conflict("PATCH", "/llama"))

    async def replan() -> TemplatePatch | None:
        return TEMPLATE

    (fault,) = (await execute(hands, namespace="demo", template=TEMPLATE, replan=replan)).faults
    assert fault.code == "Conflict"
    assert hands.calls.count("apply /llama") == 6


async def test_cleanup_waits_when_a_template_was_written() -> None:
    cleanup = (TemplatePatch("/llama", {}, "1 unused"), ("old",))
    hands = Hands()
    await execute(hands, namespace="demo", template=TEMPLATE, cleanup=cleanup)
    assert not any("delete" in call for call in hands.calls)
    hands = Hands(delete=NotFound("DELETE", "/x"))
    result = await execute(hands, namespace="demo", cleanup=cleanup)
    assert hands.calls == ["delete /api/v1/namespaces/demo/configmaps/old", "apply /llama"]
    assert [step.act for step in result.done] == [Act.CLEANUP]


@pytest.mark.parametrize(
    ("desired", "target", "summary"),
    [(3, 5, "replicas 3 -> 5"), (3, 3, None), (3, None, None), (None, 2, "replicas unknown -> 2"), (5, 5, None)],
)
def test_scale_is_written_only_when_it_differs_from_what_is_there(
    desired: int | None, target: int | None, summary: str | None
) -> None:
    decision = ReplicaDecision(3, target, DecisionReason.ABOVE_TARGET, "")
    patch = plan_scale(workload(desired_replicas=desired), decision)
    assert (None if patch is None else patch.summary) == summary
