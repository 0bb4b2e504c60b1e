"""What holds for any fleet, any intent and any history: calibrated mode, open loop. Simple mode: test_properties.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.api.decision import DecisionReason, Lever, Memory
from crossover.api.intent import Intent, Objectives, SpeculationIntent
from crossover.decide import from_json, plan, to_json, with_changes
from crossover.decide.profile import fit_profile
from crossover.decide.step_model import PRESETS
from tests.decide.fleets import EAGLE, FOLLOWS, NOW, OFF, ON, RESTART_ONLY, fleet
from tests.decide.test_properties import replica_intents, step_limit
from tests.decide.truth import points

PROFILE = fit_profile(points(PRESETS["70b-a100-tp4"]), output_tokens_per_request=250.0)
speculations = st.builds(
    lambda dwell, window, longest: SpeculationIntent(
        min_dwell_seconds=dwell, stabilization_window_seconds=window, max_draft_tokens=longest
    ),
    st.sampled_from([0.0, 60.0, 900.0]),
    st.sampled_from([0.0, 60.0]),
    st.sampled_from([3, 7]),
)
intents = st.builds(
    Intent,
    replica_intents,
    st.none() | speculations,
    st.builds(Objectives, st.sampled_from([None, 0.02, 0.05, 0.2])),
)
pods = st.tuples(st.none() | st.floats(0, 250), st.floats(0, 6000), st.floats(0, 40))
"""Running requests (None = unknown), output tokens/s, waiting requests. They need not fit together: a fleet in trouble."""
ticks = st.lists(
    st.tuples(
        st.lists(pods, min_size=1, max_size=6),
        st.integers(0, 2),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([1.0, 5.0, 15.0, 100.0]),
    ),
    min_size=1,
    max_size=20,
)
kinds = st.sampled_from([(RESTART_ONLY, ON), (RESTART_ONLY, OFF), (FOLLOWS, EAGLE)])


def seen(loads, at, desired, pending, terminating, rollout, kind):
    capability, told = kind
    snapshot = fleet(
        *[running for running, _, _ in loads],
        at=at,
        desired=desired,
        pending=pending,
        terminating=terminating,
        rollout_in_progress=rollout,
        capability=capability,
        settings=told,
        draft=float(told.draft_tokens) if told.enabled else None,
    )
    made = []
    for pod, (_, rate, waiting) in zip(snapshot.pods, loads, strict=False):
        reading = pod.reading
        if reading is not None:
            reading = replace(
                reading, schedulers=tuple(replace(s, waiting_requests=waiting) for s in reading.schedulers)
            )
        made.append(replace(pod, reading=reading, output_tokens_per_second=rate))
    return replace(snapshot, pods=(*made, *snapshot.pods[len(loads) :]), startup_seconds=120.0)


def play(intent, series, kind, *, apply=True):
    """A made-up history. Yields (snapshot, memory given, decision)."""
    memory, now, desired = Memory(), NOW, len(series[0][0])
    capability, told = kind
    for loads, pending, terminating, rollout, seconds in series:
        now += seconds
        snapshot = seen(loads, now, desired, pending, terminating, rollout, (capability, told))
        decision = plan(snapshot, intent, memory, PROFILE)
        yield snapshot, memory, decision
        memory = with_changes(decision.memory, decision, replicas=apply, draft=apply)
        if not apply:
            continue
        desired = desired if decision.replicas.target is None else decision.replicas.target
        if decision.draft.target is not None:
            if decision.draft.lever is Lever.ENGINE_SCHEDULE:
                told = replace(told, schedule=decision.draft.schedule)
            else:
                told = OFF if decision.draft.target == 0 else replace(ON, draft_tokens=decision.draft.target)


@settings(max_examples=300)
@given(intents, ticks, kinds)
def test_bounds_policies_unknown_dwell_and_freezes(intent, series, kind):
    """One pass over each history: what no decision may ever do."""
    changed = []
    for snapshot, memory, decision in play(intent, series, kind):
        current, target, reason = snapshot.desired_replicas, decision.replicas.target, decision.replicas.reason
        bound = reason in (DecisionReason.BELOW_MIN, DecisionReason.ABOVE_MAX)
        if target is not None and target != current:
            assert intent.replicas.min <= target <= intent.replicas.max
            limit = step_limit(intent.replicas, memory.changes, snapshot.at_seconds, current, target > current)
            assert bound or (target <= max(limit, current) if target > current else target >= min(limit, current))
            assert bound or target > current or (snapshot.known and not snapshot.unknown), "unknown never shrinks"
        if decision.draft.target is not None:
            changed.append(decision.at_seconds)
            assert len(snapshot.known) == len(snapshot.pods) == current, "no pod comes, goes or is unknown"
            assert not snapshot.rollout_in_progress
            assert target in (None, current) or bound or reason is DecisionReason.FALLBACK, "one lever at a time"
    dwell = intent.speculation.min_dwell_seconds if intent.speculation else 0.0
    assert all(later - earlier >= dwell for earlier, later in pairwise(changed))


@settings(max_examples=300)
@given(intents, ticks, kinds)
def test_same_input_same_output_and_memory_survives_as_json(intent, series, kind):
    for snapshot, memory, decision in play(intent, series, kind):
        assert plan(snapshot, intent, memory, PROFILE) == decision
        assert to_json(from_json(to_json(memory))) == to_json(memory)


@settings(max_examples=300)
@given(intents, ticks, kinds, st.lists(st.floats(0, 200), min_size=6, max_size=6))
def test_more_demand_never_means_fewer_replicas(intent, series, kind, extra):
    """The last tick once as drawn, once with more requests waiting on some pods and nothing else changed. (More tokens at
    the same batch would be a faster machine, and that is learned.)"""
    *before, last = series
    memory, now = Memory(), NOW
    for *_, decision in play(intent, before, kind, apply=False) if before else ():
        memory, now = decision.memory, decision.at_seconds
    loads, pending, terminating, rollout, seconds = last
    more = [(running, rate, waiting + extra[n]) for n, (running, rate, waiting) in enumerate(loads)]
    targets = []
    for drawn in (loads, more):
        snapshot = seen(drawn, now + seconds, len(loads), pending, terminating, rollout, kind)
        decision = plan(snapshot, intent, memory, PROFILE)
        wanted = decision.replicas.recommended
        targets.append(snapshot.desired_replicas if wanted is None else wanted)
    assert targets[1] >= targets[0]


@settings(max_examples=300)
@given(intents, kinds, st.integers(1, 6), st.floats(1, 20_000), st.floats(1.0, 4.0))
def test_a_first_look_at_more_demand_recommends_no_fewer_replicas(intent, kind, count, demand, more):
    """Two fleets alike but for the rate that they serve."""
    targets = []
    for each in (demand / count, demand * more / count):
        snapshot = seen([(20.0, each, 0.0)] * count, NOW, count, 0, 0, False, kind)
        wanted = plan(snapshot, intent, Memory(), PROFILE).replicas.recommended
        targets.append(count if wanted is None else wanted)
    assert targets[1] >= targets[0]
