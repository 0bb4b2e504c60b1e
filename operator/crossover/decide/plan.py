"""The decision in one sitting: look, draft length (fast loop), replicas (slow loop), never both on one sample."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from crossover.api.decision import Alternative, Decision, DecisionReason, DraftDecision, Memory, ReplicaDecision
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent
from crossover.decide import calibrated, sizing
from crossover.decide.alternatives import neighbours
from crossover.decide.cap import decide_cap
from crossover.decide.demand import Demand, observe_demand
from crossover.decide.draft import decide_draft
from crossover.decide.floor import floored, note_broken
from crossover.decide.load import FleetLoad, measure
from crossover.decide.memory import after_gap, trimmed
from crossover.decide.notices import notices
from crossover.decide.numbers import demand_per_scheduler, numbers_of
from crossover.decide.profile import Profile
from crossover.decide.replicas import recommend
from crossover.decide.shape import decide_replicas
from crossover.decide.situation import observe


def plan(snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: Profile | None = None) -> Decision:
    """Decide draft length and replicas together for one fleet at one moment.

    Pure: same input, same output, no clock but ``snapshot.at_seconds``. ``memory`` is the previous decision's
    ``memory``, with `with_changes` applied for what was carried out of it; `Memory()` at the very first time. With a
    ``profile`` (calibrated mode) thresholds and target are not needed; without one (simple mode) they decide.
    """
    memory = after_gap(memory, snapshot.at_seconds, max(60.0, 2 * snapshot.stale_after_seconds))
    memory = replace(memory, changes=trimmed(memory.changes, snapshot.at_seconds))
    load = measure(snapshot)
    if profile is None:
        decision = _simple(snapshot, intent, memory, load)
    else:
        decision = _calibrated(snapshot, intent, memory, load, profile)
    cap, memory = decide_cap(snapshot, load, intent, decision.memory)
    return replace(decision, cap=cap, memory=memory, notices=notices(memory, intent))


def _simple(snapshot: FleetSnapshot, intent: Intent, memory: Memory, load: FleetLoad) -> Decision:
    """Thresholds and a target of running requests, as the user typed them."""
    demand, memory = observe_demand(snapshot, load, memory)
    draft, memory = decide_draft(snapshot, load, intent.speculation, memory, demand_per_scheduler(load, demand))
    if intent.replicas.target_running_requests is None or not load.demands or snapshot.desired_replicas is None:
        replicas, memory = decide_replicas(snapshot, load, intent.replicas, memory, None)
    else:
        recommended = recommend(load, snapshot.desired_replicas, intent.replicas)
        memory = note_broken(snapshot, load, demand, recommended, memory)
        held = floored(recommended, snapshot.desired_replicas, demand, memory)
        replicas, memory = decide_replicas(snapshot, load, intent.replicas, memory, lambda _: held)
    lost = neighbours(load, intent, draft, replicas)
    return _decision(snapshot, load, demand, draft, replicas, memory, lost)


def _calibrated(snapshot: FleetSnapshot, intent: Intent, memory: Memory, load: FleetLoad, profile: Profile) -> Decision:
    """Demand and the profile."""
    here, memory = observe(snapshot, load, intent, profile, memory)
    draft, memory, lost, rescue = calibrated.decide_draft(here, memory)
    by_capacity = partial(sizing.recommend, here, draft, rescue)
    replicas, memory = decide_replicas(snapshot, load, intent.replicas, memory, by_capacity, shrinks_in_rollout=True)
    decision = _decision(snapshot, load, here.demand, draft, replicas, memory, lost)
    return replace(decision, numbers={**decision.numbers, **sizing.numbers(here)})


def _decision(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    demand: Demand | None,
    draft: DraftDecision,
    replicas: ReplicaDecision,
    memory: Memory,
    lost: tuple[Alternative, ...] = (),
) -> Decision:
    return Decision(
        snapshot.at_seconds,
        _one_at_a_time(draft, replicas),
        draft,
        numbers_of(snapshot, load, demand),
        lost,
        memory,
    )


def _one_at_a_time(draft: DraftDecision, replicas: ReplicaDecision) -> ReplicaDecision:
    """A rollout is about to start: the replica count waits for the next sample, unless a bound is broken."""
    if draft.target is None or replicas.target in (None, replicas.current):
        return replicas
    if replicas.reason in (DecisionReason.BELOW_MIN, DecisionReason.ABOVE_MAX, DecisionReason.FALLBACK):
        return replicas
    message = f"{replicas.message}; waits for the next sample, the draft length changes first"
    return replace(replicas, target=None, reason=DecisionReason.FROZEN_ROLLOUT, message=message)
