from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.act.strategy import RolloutRules, effective_fences, rolling_strategy
from crossover.engines.contract import Refusal
from tests.act.workloads import stateful_set, workload
from tests.cluster.edge import deployment


@pytest.mark.parametrize(
    ("rolling", "replicas", "fences"),
    [
        # The table in Kubernetes' own deployment docs and its ResolveFenceposts: surge up, unavailable down.
        ({}, 3, (1, 0)),
        ({}, 4, (1, 1)),
        ({}, 1, (1, 0)),
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, 10, (3, 2)),
        ({"maxSurge": 0, "maxUnavailable": 1}, 3, (0, 1)),
        ({"maxSurge": 0, "maxUnavailable": "10%"}, 3, (0, 1)),
        ({"maxSurge": "100%", "maxUnavailable": 0}, 7, (7, 0)),
        ({"maxSurge": "29%", "maxUnavailable": "29%"}, 100, (29, 29)),
        ({}, 0, (0, 1)),
    ],
)
def test_percentages_round_as_the_controller_does(
    rolling: dict[str, Any], replicas: int, fences: tuple[int, int]
) -> None:
    assert effective_fences({"rollingUpdate": rolling}, replicas) == fences


def test_a_strategy_that_does_it_already_is_left_alone() -> None:
    assert rolling_strategy(workload(deployment("demo", replicas=3)), RolloutRules()) is None


@given(st.integers(1, 200), st.integers(0, 4), st.sampled_from([0, 1, 3, "10%", "25%", "50%"]), st.integers(0, 50))
def test_never_below_what_is_ready_now_unless_the_minimum_allows(
    replicas: int, surge: int, unavailable: int | str, minimum: int
) -> None:
    manifest = deployment("demo", replicas=replicas, strategy={"rollingUpdate": {"maxUnavailable": unavailable}})
    rules = RolloutRules(max_surge=surge, ready_minimum=minimum)
    breaks_minimum = surge == 0 and replicas - 1 < minimum
    with pytest.raises(Refusal, match="min is") if breaks_minimum else nullcontext():
        strategy = rolling_strategy(workload(manifest), rules)
    if breaks_minimum:
        return
    now_surge, now_unavailable = effective_fences(strategy or manifest["spec"]["strategy"], replicas)
    assert now_surge == surge
    assert now_unavailable == (0 if surge else 1)
    assert replicas - now_unavailable >= minimum or surge


@pytest.mark.parametrize(
    ("manifest", "facts", "code", "field"),
    [
        (deployment("demo", strategy={"type": "Recreate"}), {}, "RecreateStrategy", "spec.strategy.type"),
        (deployment("demo", paused=True), {}, "RolloutPaused", "spec.paused"),
        (stateful_set(updateStrategy={"type": "OnDelete"}), {}, "OnDeleteStrategy", "spec.updateStrategy.type"),
        (
            stateful_set(updateStrategy={"rollingUpdate": {"partition": 1}}),
            {},
            "PartitionedRollout",
            "spec.updateStrategy.rollingUpdate.partition",
        ),
        (stateful_set(replicas=3), {"minimum": 3}, "RolloutBreaksMinimum", "spec.replicas.min"),
        (deployment("demo", replicas=3), {"minimum": 3, "surge": 0}, "RolloutBreaksMinimum", "spec.replicas.min"),
        ({**deployment("demo"), "kind": "DaemonSet"}, {}, "KindNotSupported", "spec.scaleTargetRef.kind"),
        (
            {**deployment("demo"), "apiVersion": "apps.kruise.io/v1alpha1"},
            {},
            "KindNotSupported",
            "spec.scaleTargetRef.kind",
        ),
    ],
)
def test_refused_with_field_and_fix(manifest: dict[str, Any], facts: dict[str, int], code: str, field: str) -> None:
    rules = RolloutRules(max_surge=facts.get("surge", 1), ready_minimum=facts.get("minimum", 1))
    with pytest.raises(Refusal) as refusal:
        rolling_strategy(workload(manifest), rules)
    assert (refusal.value.code, refusal.value.field) == (code, field)
    assert refusal.value.fix


def test_a_stateful_set_with_room_above_the_minimum_rolls_in_place() -> None:
    assert rolling_strategy(workload(stateful_set(replicas=4)), RolloutRules(ready_minimum=3)) is None
