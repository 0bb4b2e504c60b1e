"""Simple mode's replica count against an independent account of the HPA's calculator, rule by rule."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import PodPhase
from crossover.api.intent import Fallback, ScalingRules, SelectPolicy
from crossover.decide import plan
from crossover.decide.load import measure
from crossover.decide.replicas import recommend
from tests.decide.fleets import INTENT, NOW, fleet, pod, reading, replicas, run

R = DecisionReason


def is_within(ratio: float, tolerance: float) -> bool:
    """HPAConfigurableTolerance's form, decimals as they are written: 1.1 lies within 10 %."""
    return round(1 - tolerance, 9) <= round(ratio, 9) <= round(1 + tolerance, 9)


def hpa(ready: list[float], missing: int, unready: int, current: int, target: float, tolerance: float = 0.1) -> int:
    """Kubernetes' calcPlainMetricReplicas, written from its description: the values of ready pods, how many ready pods
    have no value, how many pods are not ready."""
    ratio = sum(ready) / len(ready) / target
    up_with_unready = unready > 0 and ratio > 1
    if not missing and not up_with_unready:
        return current if is_within(ratio, tolerance) else math.ceil(round(ratio * len(ready), 9))
    values = list(ready) + [target if ratio < 1 else 0.0] * missing + ([0.0] * unready if up_with_unready else [])
    new_ratio = sum(values) / len(values) / target
    if is_within(new_ratio, tolerance) or (ratio - 1) * (new_ratio - 1) < 0:
        return current
    wanted = math.ceil(round(new_ratio * len(values), 9))
    if (new_ratio < 1 and wanted > current) or (new_ratio > 1 and wanted < current):
        return current
    return wanted


@pytest.mark.parametrize(
    ("running", "pending", "expected", "reason"),
    [
        ([32, 32, 32], 0, 3, R.WITHIN_TOLERANCE),
        ([35, 35, 35], 0, 3, R.WITHIN_TOLERANCE),
        ([36, 36, 36], 0, 4, R.ABOVE_TARGET),
        ([64, 64, 64], 0, 6, R.ABOVE_TARGET),
        ([28, 28, 28], 0, 3, R.BELOW_TARGET),
        ([10, 10, 10], 0, 1, R.BELOW_TARGET),
        ([0, 0, 0], 0, 1, R.BELOW_TARGET),
        # unready pods count as idle when growing: 96 requests on 3 + 1 starting pods is a fit
        ([40, 40, 40], 1, 4, R.WITHIN_TOLERANCE),
        ([64, 64, 64], 1, 6, R.ABOVE_TARGET),
        # a ready pod without a value counts as idle when growing ...
        ([64, 64, None], 0, 4, R.ABOVE_TARGET),
        ([40, 40, None], 0, 3, R.WITHIN_TOLERANCE),
        # ... and never lets the fleet shrink (the HPA would: it counts it at the target)
        ([1, 1, 1, None], 0, 4, R.METRICS_UNKNOWN),
    ],
)
def test_the_recommendation(running, pending, expected, reason):
    snapshot = fleet(*running, pending=pending)
    got = recommend(measure(snapshot), snapshot.desired_replicas, INTENT.replicas)
    assert (got.replicas, got.reason) == (expected, reason)


@given(
    ready=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    unready=st.integers(0, 4),
    target=st.integers(1, 100),
)
def test_equals_the_hpa_while_every_ready_pod_is_known(ready, unready, target):
    snapshot = fleet(*[float(value) for value in ready], pending=unready)
    current = len(ready) + unready
    got = recommend(measure(snapshot), current, replace(INTENT.replicas, target_running_requests=target))
    assert got.replicas == max(1, hpa([float(value) for value in ready], 0, unready, current, target))


@given(
    ready=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    missing=st.integers(1, 4),
    target=st.integers(1, 100),
)
def test_with_unknown_pods_it_is_the_hpa_that_never_shrinks(ready, missing, target):
    snapshot = fleet(*[float(value) for value in ready], *[None] * missing)
    current = len(ready) + missing
    got = recommend(measure(snapshot), current, replace(INTENT.replicas, target_running_requests=target))
    assert got.replicas == max(current, hpa([float(value) for value in ready], missing, 0, current, target))


def test_waiting_requests_count_because_a_saturated_batch_hides_overload():
    snapshot = fleet(32.0, 32.0, waiting=32.0)
    assert recommend(measure(snapshot), 2, INTENT.replicas).replicas == 4


def test_ranks_of_one_pod_add_up_to_the_pods_demand():
    snapshot = fleet(16.0)
    two_ranks = replace(snapshot, pods=(replace(snapshot.pods[0], reading=reading(32.0, ranks=2)),))
    assert recommend(measure(two_ranks), 1, INTENT.replicas).replicas == 2


def test_a_full_batch_with_a_hidden_queue_never_shrinks_the_fleet():
    full = pod("a", 20.0, None, max_running_requests=20.0)
    snapshot = replace(fleet(20.0, 20.0), pods=(full, replace(full, name="b")))
    got = recommend(measure(snapshot), 2, replace(INTENT.replicas, target_running_requests=64))
    assert (got.replicas, got.reason) == (2, R.METRICS_UNKNOWN)


def test_draining_and_failed_pods_do_not_count():
    snapshot = fleet(64.0, 64.0, terminating=2)
    snapshot = replace(snapshot, pods=(*snapshot.pods, pod("f", 64.0, phase=PodPhase.FAILED)), desired_replicas=2)
    assert recommend(measure(snapshot), 2, INTENT.replicas).replicas == 4


def test_a_stale_reading_is_unknown_not_zero():
    snapshot = fleet(0.0, 0.0, 0.0)
    stale = replace(snapshot, pods=tuple(replace(item, reading_age_seconds=31.0) for item in snapshot.pods))
    decision = plan(stale, INTENT, Memory())
    assert decision.replicas.target is None
    assert decision.replicas.reason is R.METRICS_UNKNOWN


def test_no_pod_known_changes_nothing_and_a_fallback_only_raises():
    ticks = [fleet(None, None, at=NOW + 5 * n) for n in range(80)]
    decisions, _ = run(Memory(), INTENT, ticks)
    assert {decision.replicas.target for decision in decisions} == {None}
    with_fallback = replicas(fallback=Fallback(4, 300.0))
    decisions, _ = run(Memory(), with_fallback, ticks, apply=False)
    raised = [decision for decision in decisions if decision.replicas.target is not None]
    assert raised[0].at_seconds == NOW + 300
    assert {decision.replicas.target for decision in raised} == {4}
    lower = replicas(fallback=Fallback(1, 0.0))
    decisions, _ = run(Memory(), lower, ticks, apply=False)
    assert {decision.replicas.target for decision in decisions} == {None}


def test_scaled_to_zero_by_hand_is_left_alone():
    decision = plan(fleet(desired=0), INTENT, Memory())
    assert (decision.replicas.target, decision.replicas.reason) == (None, R.SCALED_TO_ZERO)


@pytest.mark.parametrize(("current", "target", "reason"), [(1, 3, R.BELOW_MIN), (9, 6, R.ABOVE_MAX)])
def test_bounds_hold_even_when_nothing_is_known(current, target, reason):
    decision = plan(fleet(*[None] * current), replicas(min=3, max=6), Memory())
    assert (decision.replicas.target, decision.replicas.reason) == (target, reason)


def test_shrinking_waits_for_the_whole_window_and_takes_the_largest_recommendation_in_it():
    busy = [fleet(30.0, 30.0, 30.0, 30.0, at=NOW + 5 * n) for n in range(3)]
    half = [fleet(12.0, 12.0, 12.0, 12.0, at=NOW + 15 + 5 * n) for n in range(30)]
    idle = [fleet(1.0, 1.0, 1.0, 1.0, at=NOW + 165 + 5 * n) for n in range(70)]
    decisions, _ = run(Memory(), INTENT, [*busy, *half, *idle], apply=False)
    shrunk = [
        (decision.at_seconds - NOW, decision.replicas.target) for decision in decisions if decision.replicas.target != 4
    ]
    assert shrunk[0] == (315.0, 2), "300 s after the last recommendation of 4, to the largest since: 2"
    assert (465.0, 1) in shrunk
    assert not [item for item in shrunk if item[0] < 465 and item[1] == 1]


def test_no_record_means_a_fresh_window():
    """After a restart of the operator nothing shrinks until one window has been seen."""
    ticks = [fleet(1.0, 1.0, 1.0, at=NOW + 5 * n) for n in range(62)]
    decisions, _ = run(Memory(), INTENT, ticks, apply=False)
    first = next(decision for decision in decisions if decision.replicas.target == 1)
    assert first.at_seconds == NOW + 300


def test_a_gap_in_the_ticks_begins_the_window_again():
    before = [fleet(1.0, 1.0, 1.0, at=NOW + 5 * n) for n in range(50)]
    after = [fleet(1.0, 1.0, 1.0, at=NOW + 2000 + 5 * n) for n in range(50)]
    decisions, _ = run(Memory(), INTENT, [*before, *after], apply=False)
    assert {decision.replicas.target for decision in decisions} == {3}


def test_a_blind_spell_begins_the_window_again():
    ticks = [fleet(1.0, 1.0, 1.0, at=NOW + 5 * n) for n in range(50)]
    blind = [fleet(None, None, None, at=NOW + 250 + 5 * n) for n in range(5)]
    after = [fleet(1.0, 1.0, 1.0, at=NOW + 275 + 5 * n) for n in range(58)]
    decisions, _ = run(Memory(), INTENT, [*ticks, *blind, *after], apply=False)
    assert not [decision for decision in decisions if decision.replicas.target == 1]


def test_growing_is_immediate_and_limited_by_the_default_policies():
    decision = plan(fleet(*[640.0] * 2), replicas(max=100), Memory())
    assert decision.replicas.target == 6, "2 pods: the larger of +100 % and +4"
    assert decision.replicas.limited is R.LIMITED_BY_POLICY
    assert decision.replicas.recommended == 40


def test_policies_count_what_was_changed_in_their_period():
    intent = replicas(max=100)
    first = plan(fleet(*[640.0] * 2), intent, Memory())
    _, memory = run(Memory(), intent, [fleet(*[640.0] * 2)])
    soon = plan(fleet(640.0, 640.0, pending=4, at=NOW + 5), intent, memory)
    later = plan(fleet(640.0, 640.0, pending=4, at=NOW + 16), intent, memory)
    assert first.replicas.target == 6
    assert soon.replicas.target == 6
    assert later.replicas.target == 12


def test_disabled_direction_does_not_move():
    never_down = replicas(scale_down=replace(INTENT.replicas.scale_down, select_policy=SelectPolicy.DISABLED))
    ticks = [fleet(1.0, 1.0, 1.0, at=NOW + 5 * n) for n in range(100)]
    decisions, _ = run(Memory(), never_down, ticks, apply=False)
    assert {decision.replicas.target for decision in decisions} == {3}


def test_a_scale_up_window_takes_the_smallest_recommendation_in_it():
    slow_up = replicas(scale_up=ScalingRules(60, SelectPolicy.MAX, INTENT.replicas.scale_up.policies))
    slow_up = replace(slow_up, speculation=None)
    ticks = [fleet(100.0, 100.0, 100.0, at=NOW + 5 * n) for n in range(14)]
    decisions, _ = run(Memory(), slow_up, ticks, apply=False)
    assert [decision.replicas.target for decision in decisions[:12]] == [3] * 12
    assert decisions[12].replicas.target == 7


def test_the_message_carries_the_numbers():
    decision = plan(fleet(44.0, 44.0, 44.0, 44.0, waiting=3.0), INTENT, Memory())
    assert decision.replicas.message == "44.0 running + 3.0 waiting per replica on 4 replicas, target 32: recommend 6"
