"""What holds for any fleet, any intent and any history: simple mode, open loop."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from crossover.api.decision import DecisionReason, Lever, Memory
from crossover.api.intent import (
    Fallback,
    Intent,
    PolicyType,
    ReplicaIntent,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    SpeculationIntent,
)
from crossover.decide import from_json, plan, to_json, with_changes
from crossover.decide.memory import MAX_DRAFT_CHANGES, MAX_REPLICA_CHANGES
from tests.decide.fleets import EAGLE, FOLLOWS, NOW, OFF, ON, RESTART_ONLY, fleet

policies = st.lists(
    st.builds(ScalingPolicy, st.sampled_from(PolicyType), st.integers(1, 100), st.integers(1, 120)),
    min_size=1,
    max_size=3,
).map(tuple)
rules = st.builds(
    ScalingRules,
    st.sampled_from([0, 15, 60, 300]),
    st.sampled_from(SelectPolicy),
    policies,
    st.sampled_from([0.0, 0.1]),
)
replica_intents = st.builds(
    lambda low, span, target, up, down, fallback: ReplicaIntent(
        low, low + span, target, scale_up=up, scale_down=down, fallback=fallback
    ),
    st.integers(1, 4),
    st.integers(0, 20),
    st.integers(1, 64),
    rules,
    rules,
    st.none() | st.builds(Fallback, st.integers(1, 10), st.sampled_from([0.0, 30.0])),
)
speculation_intents = st.builds(
    lambda below, gap, window, dwell: SpeculationIntent(
        disable_above_running_requests=below + gap,
        enable_below_running_requests=below,
        stabilization_window_seconds=window,
        min_dwell_seconds=dwell,
    ),
    st.integers(1, 40),
    st.integers(0, 40),
    st.sampled_from([0.0, 15.0, 60.0]),
    st.sampled_from([0.0, 60.0, 900.0]),
)
intents = st.builds(Intent, replica_intents, st.none() | speculation_intents)
loads = st.lists(st.none() | st.floats(0, 200), min_size=1, max_size=8)
ticks = st.lists(
    st.tuples(loads, st.integers(0, 2), st.integers(0, 2), st.booleans(), st.sampled_from([1.0, 5.0, 15.0, 100.0])),
    min_size=1,
    max_size=25,
)
kinds = st.sampled_from([(RESTART_ONLY, ON), (FOLLOWS, EAGLE)])


def play(intent, series, kind, *, apply=True):
    """A made-up history: loads as drawn, replicas and settings as decided. Yields (snapshot, memory given, decision)."""
    capability, settings = kind
    memory, now, desired = Memory(), NOW, len(series[0][0])
    for running, pending, terminating, rollout, seconds in series:
        now += seconds
        snapshot = fleet(
            *running,
            at=now,
            desired=desired,
            pending=pending,
            terminating=terminating,
            rollout_in_progress=rollout,
            capability=capability,
            settings=settings,
        )
        decision = plan(snapshot, intent, memory)
        yield snapshot, memory, decision
        memory = with_changes(decision.memory, decision, replicas=apply, draft=apply)
        if not apply:
            continue
        if decision.replicas.target is not None:
            desired = decision.replicas.target
        if decision.draft.target is not None:
            if decision.draft.lever is Lever.ENGINE_SCHEDULE:
                settings = replace(settings, schedule=decision.draft.schedule)
            else:
                settings = OFF if decision.draft.target == 0 else ON


def step_limit(intent, changes, now, current, up):
    """The HPA's rate limit, written from its description: for each policy the count at the period's start, plus or
    minus what the policy grants, then the selected one."""
    side = intent.scale_up if up else intent.scale_down
    if side.select_policy is SelectPolicy.DISABLED:
        return current
    limits = []
    for policy in side.policies:
        young = [c for c in changes if c.kind == "replicas" and c.at_seconds > now - policy.period_seconds]
        start = current - sum(c.to_value - c.from_value for c in young)
        granted = policy.value if policy.type is PolicyType.PODS else start * policy.value / 100
        limits.append(math.ceil(start + granted - 1e-9) if up else int(start - granted + 1e-9))
    most = max(limits) if up else min(limits)
    least = min(limits) if up else max(limits)
    return most if side.select_policy is SelectPolicy.MAX else least


@given(intents, ticks, kinds)
def test_never_below_min_above_max_or_past_a_policy(intent, series, kind):
    for snapshot, memory, decision in play(intent, series, kind):
        current, target = snapshot.desired_replicas, decision.replicas.target
        if target is None or target == current:
            continue
        assert intent.replicas.min <= target <= intent.replicas.max
        if decision.replicas.reason in (DecisionReason.BELOW_MIN, DecisionReason.ABOVE_MAX):
            continue
        limit = step_limit(intent.replicas, memory.changes, snapshot.at_seconds, current, target > current)
        assert (target <= max(limit, current)) if target > current else (target >= min(limit, current))


@given(intents, ticks, kinds)
def test_unknown_never_shrinks(intent, series, kind):
    for snapshot, _, decision in play(intent, series, kind):
        shrinks = decision.replicas.target is not None and decision.replicas.target < snapshot.desired_replicas
        if shrinks and decision.replicas.reason is not DecisionReason.ABOVE_MAX:
            assert not snapshot.unknown
            assert snapshot.known


@given(intents, ticks, kinds, st.lists(st.floats(0, 100), min_size=8, max_size=8))
def test_more_demand_never_means_fewer_replicas(intent, series, kind, extra):
    """The last tick once as drawn, once with more running requests on some pods and nothing else changed."""
    *before, last = series
    memory, now = Memory(), NOW
    for *_, decision in play(intent, before, kind, apply=False) if before else ():
        memory, now = decision.memory, decision.at_seconds
    running, pending, terminating, rollout, seconds = last
    more = [None if value is None else value + extra[n] for n, value in enumerate(running)]
    targets = []
    for values in (running, more):
        snapshot = fleet(
            *values,
            at=now + seconds,
            pending=pending,
            terminating=terminating,
            rollout_in_progress=rollout,
            settings=None,
        )
        decision = plan(snapshot, intent, memory)
        target = decision.replicas.target
        targets.append(snapshot.desired_replicas if target is None else target)
    assert targets[1] >= targets[0]


@given(intents, ticks, kinds)
def test_same_input_same_output_and_memory_survives_as_json(intent, series, kind):
    for snapshot, memory, decision in play(intent, series, kind):
        assert plan(snapshot, intent, memory) == decision
        kept = from_json(to_json(memory))
        assert to_json(kept) == to_json(memory)
        assert [(c.kind, c.from_value, c.to_value) for c in kept.changes] == [
            (c.kind, c.from_value, c.to_value) for c in memory.changes
        ]


@given(intents, ticks, kinds)
def test_at_most_one_change_of_draft_length_per_dwell(intent, series, kind):
    changed = [
        decision.at_seconds for _, _, decision in play(intent, series, kind) if decision.draft.target is not None
    ]
    dwell = intent.speculation.min_dwell_seconds if intent.speculation else 0.0
    assert all(later - earlier >= dwell for earlier, later in pairwise(changed))


@given(intents, ticks, kinds)
def test_no_change_of_draft_length_while_pods_come_or_go_or_are_unknown(intent, series, kind):
    for snapshot, _, decision in play(intent, series, kind):
        if decision.draft.target is not None:
            assert len(snapshot.known) == len(snapshot.pods) == snapshot.desired_replicas
            assert not snapshot.rollout_in_progress


@given(intents, ticks, kinds)
def test_never_both_levers_on_one_sample(intent, series, kind):
    for _, _, decision in play(intent, series, kind):
        if decision.draft.target is not None and decision.replicas.target not in (None, decision.replicas.current):
            assert decision.replicas.reason in (
                DecisionReason.BELOW_MIN,
                DecisionReason.ABOVE_MAX,
                DecisionReason.FALLBACK,
            )


@given(intents, ticks, kinds)
def test_memory_stays_small(intent, series, kind):
    for _, memory, _ in play(intent, series * 3, kind):
        assert len(memory.changes) <= MAX_REPLICA_CHANGES + MAX_DRAFT_CHANGES
        assert len(memory.recommendations) <= 256
        assert len(memory.observations) <= 16


@given(intents, ticks, kinds)
def test_losing_the_cache_only_delays_a_shrink(intent, series, kind):
    """A restart of the operator at any tick: what status keeps is enough not to shrink or restart anything early."""
    for snapshot, memory, decision in play(intent, series, kind):
        again = plan(snapshot, intent, from_json(to_json(memory)))
        if intent.replicas.scale_down.stabilization_window_seconds and again.replicas.target is not None:
            bound = again.replicas.reason is DecisionReason.ABOVE_MAX
            assert bound or again.replicas.target >= snapshot.desired_replicas
        if again.draft.target is not None and again.draft.lever is Lever.RESTART:
            assert decision.draft.target == again.draft.target
