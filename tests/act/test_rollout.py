from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crossover.act.rollout import RolloutState, StuckReason, judge
from crossover.api.fleet import PodFacts, PodPhase
from crossover.api.workload import Revision, Workload
from tests.act.workloads import NOW, progressing, stateful_set, workload

OLD, NEW = Revision(1, "old", {}, 2, 2), Revision(2, "new", {}, 1, 0)
REVISIONS = (NEW, OLD)


def pod(name: str, template_hash: str, phase: PodPhase = PodPhase.READY, **facts: Any) -> PodFacts:
    made = PodFacts("demo", name, name, {}, None, phase, template_hash, NOW - 30, NOW - 10, 0)
    return replace(made, **facts)


def rolling(**facts: Any) -> Workload:
    return workload(replicas=4, updated_replicas=1, **facts)


def test_settled() -> None:
    assert judge(workload(), REVISIONS, [pod("a", "new")], NOW).state is RolloutState.NONE


def test_scaling_up_is_no_rollout() -> None:
    grown = workload(replicas=5, updated_replicas=5, ready_replicas=3, desired_replicas=5)
    assert judge(grown, REVISIONS, [pod("a", "new", PodPhase.PENDING)], NOW).state is RolloutState.NONE


def test_a_template_that_the_controller_has_not_seen() -> None:
    seen = judge(workload(observed_generation=1), (OLD,), [pod("a", "old")], NOW)
    assert seen.state is RolloutState.IN_PROGRESS


def test_counts_new_and_old_but_not_those_that_go() -> None:
    pods = [
        pod("new-1", "new"),
        pod("new-2", "new", PodPhase.PENDING),
        pod("old-1", "old"),
        pod("old-2", "old", PodPhase.TERMINATING),
    ]
    seen = judge(rolling(), REVISIONS, pods, NOW)
    assert (seen.state, seen.new_pods, seen.new_ready, seen.old_pods) == (RolloutState.IN_PROGRESS, 2, 1, 1)
    assert seen.summary == "rollout: 1 of 3 pods ready with the new settings, 1 with the old"


STARTING = PodPhase.PENDING


@pytest.mark.parametrize(
    ("facts", "stuck"),
    [
        ({"restarts": 1}, None),
        ({"restarts": 2}, StuckReason.PODS_CRASH),
        ({"phase": PodPhase.FAILED}, StuckReason.PODS_CRASH),
        ({"phase": PodPhase.READY, "restarts": 9}, None),
        ({"phase": PodPhase.TERMINATING, "restarts": 9}, None),
        ({"template_hash": "old", "restarts": 9}, None),
        ({"waiting_reason": "ImagePullBackOff"}, None),
        ({"waiting_reason": "ImagePullBackOff", "created_at_seconds": NOW - 61}, StuckReason.PODS_CANNOT_START),
        ({"waiting_reason": "ContainerCreating", "created_at_seconds": NOW - 500}, None),
        ({"unschedulable": True, "created_at_seconds": NOW - 500}, None),
    ],
)
def test_which_new_pods_make_it_stuck(facts: dict[str, Any], stuck: StuckReason | None) -> None:
    new = replace(pod("new-1", "new", STARTING), **facts)
    seen = judge(rolling(), REVISIONS, [new, pod("old-1", "old")], NOW)
    assert seen.stuck is stuck
    assert (seen.state is RolloutState.STUCK) is (stuck is not None)
    if stuck is not None:
        assert "new-1" in seen.summary


@pytest.mark.parametrize(
    ("startup_seconds", "age", "stuck"),
    [
        (None, 1799, None),
        (None, 1801, StuckReason.DEADLINE_EXCEEDED),
        (60.0, 599, None),
        (60.0, 601, StuckReason.DEADLINE_EXCEEDED),
        (900.0, 2699, None),
        (900.0, 2701, StuckReason.DEADLINE_EXCEEDED),
    ],
)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_model_that_loads_slower_than_the_default_deadline_is_not_stuck(
    kind: str, startup_seconds: float | None, age: float, stuck: StuckReason | None
) -> None:
    """600 s is Kubernetes' default progress deadline; a StatefulSet has none."""
    facts: dict[str, Any] = {"replicas": 4, "updated_replicas": 1}
    if kind == "Deployment":
        late = workload(conditions=progressing("ProgressDeadlineExceeded"), **facts)
    else:
        late = workload(stateful_set(), revision="new", **facts)
    new = pod("new-1", "new", STARTING, created_at_seconds=NOW - age)
    assert judge(late, REVISIONS, [new], NOW, startup_seconds=startup_seconds).stuck is stuck


def test_a_deployment_that_says_it_progresses_is_believed() -> None:
    new = pod("new-1", "new", STARTING, created_at_seconds=NOW - 9999)
    going = rolling(conditions=progressing("ReplicaSetUpdated"))
    assert judge(going, REVISIONS, [new], NOW).state is RolloutState.IN_PROGRESS


def test_no_room_is_told_from_slow() -> None:
    late = rolling(conditions=progressing("ProgressDeadlineExceeded"))
    homeless = judge(late, REVISIONS, [pod("new-1", "new", STARTING, unschedulable=True)], NOW)
    assert homeless.stuck is StuckReason.NO_ROOM
    assert judge(late, REVISIONS, [pod("old-1", "old")], NOW).stuck is StuckReason.NO_ROOM


def test_a_stateful_set_that_waits_for_a_pod_of_older_settings_names_it() -> None:
    facts = workload(stateful_set(), replicas=3, updated_replicas=2, revision="new")
    broken = pod("llama-2", "old", STARTING, restarts=4)
    seen = judge(facts, REVISIONS, [pod("llama-0", "new"), broken], NOW)
    assert seen.stuck is StuckReason.PODS_CRASH
    assert "llama-2" in seen.summary
    assert "delete it" in seen.summary
