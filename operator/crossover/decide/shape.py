"""From a recommended replica count to the one that is set now: what cannot be decided, windows, policies, bounds.

autoscaling/v2 behavior with the HPA's names and defaults; simple and calibrated mode share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crossover.api.decision import DecisionReason, Memory, ReplicaDecision
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import ReplicaIntent
from crossover.decide.behavior import bounded, remember, stabilize
from crossover.decide.load import FleetLoad
from crossover.decide.replicas import Recommended

UNKNOWN_SINCE = "unknown_since_seconds"

Recommend = Callable[[int], Recommended]
"""From the current replica count to the recommended one."""


def decide_replicas(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    intent: ReplicaIntent,
    memory: Memory,
    recommend: Recommend | None,
    *,
    shrinks_in_rollout: bool = False,
) -> tuple[ReplicaDecision, Memory]:
    """An ordered chain: what cannot be decided, then the recommendation, then windows, bounds and policies.

    ``recommend`` None = no target is set: only the bounds hold. ``shrinks_in_rollout``: the recommendation is made from
    demand, which a rollout does not distort.
    """
    current = snapshot.desired_replicas
    memory = _note_unknown(memory, snapshot, load)
    if current is None:
        return _hold(None, DecisionReason.METRICS_UNKNOWN, "the replica count could not be read"), memory
    if current == 0:
        message = "scaled to 0 replicas by hand: left alone until someone scales up"
        return _hold(0, DecisionReason.SCALED_TO_ZERO, message), memory
    outside = _out_of_bounds(current, intent)
    if outside is not None:
        return outside, _record(memory, snapshot, outside.target or current, intent)
    if load.mean_demand is None:
        return _blind(snapshot, load, current, intent, memory), _record(memory, snapshot, current, intent)
    if recommend is None:
        return _hold(current, DecisionReason.HELD_BY_POLICY, "no target is set: replicas are left alone"), memory
    recommended = recommend(current)
    memory = _record(memory, snapshot, recommended.replicas, intent)
    frozen = snapshot.rollout_in_progress and not shrinks_in_rollout
    return _shape(snapshot, current, recommended, intent, memory, frozen), memory


def _record(memory: Memory, snapshot: FleetSnapshot, replicas: int, intent: ReplicaIntent) -> Memory:
    """A tick that could not see counts as a recommendation to stay: windows begin again after it."""
    keep = max(intent.scale_up.stabilization_window_seconds, intent.scale_down.stabilization_window_seconds)
    runs = remember(memory.recommendations, snapshot.at_seconds, replicas, keep)
    return replace(memory, recommendations=runs)


def _shape(
    snapshot: FleetSnapshot,
    current: int,
    recommended: Recommended,
    intent: ReplicaIntent,
    memory: Memory,
    frozen: bool,
) -> ReplicaDecision:
    """Windows, then bounds, then policies; the message names everything that held the count back."""
    wanted = recommended.replicas
    reason, message = recommended.reason, recommended.message
    limited: DecisionReason | None = None
    stable = stabilize(memory.recommendations, snapshot.at_seconds, current, intent)
    if stable != wanted:
        rules = intent.scale_down if wanted < current else intent.scale_up
        reason = DecisionReason.STABILIZING
        message += f"; {stable} within the {rules.stabilization_window_seconds} s stabilization window"
    inside = min(max(stable, intent.min), intent.max)
    if inside < stable:
        limited, message = DecisionReason.LIMITED_BY_MAX, f"{message}; max is {intent.max}"
    elif inside > stable:
        limited, message = DecisionReason.LIMITED_BY_MIN, f"{message}; min is {intent.min}"
    allowed = bounded(memory, snapshot.at_seconds, current, inside, intent)
    if allowed != inside:
        limited, message = DecisionReason.LIMITED_BY_POLICY, f"{message}; behavior allows {allowed} now"
    if allowed < current and frozen:
        text = f"{message}; no shrink while a rollout is in progress"
        return ReplicaDecision(current, None, DecisionReason.FROZEN_ROLLOUT, text, limited, wanted)
    return ReplicaDecision(current, allowed, reason, message, limited, wanted)


def _out_of_bounds(current: int, intent: ReplicaIntent) -> ReplicaDecision | None:
    """Bounds hold even when nothing can be measured, and at once, as in the HPA."""
    if current < intent.min:
        message = f"{current} replicas are below min {intent.min}"
        return ReplicaDecision(current, intent.min, DecisionReason.BELOW_MIN, message, recommended=intent.min)
    if current > intent.max:
        message = f"{current} replicas are above max {intent.max}"
        return ReplicaDecision(current, intent.max, DecisionReason.ABOVE_MAX, message, recommended=intent.max)
    return None


def _hold(current: int | None, reason: DecisionReason, message: str) -> ReplicaDecision:
    return ReplicaDecision(current, None, reason, message)


def _note_unknown(memory: Memory, snapshot: FleetSnapshot, load: FleetLoad) -> Memory:
    """Since when no pod could be read."""
    observations = dict(memory.observations)
    if load.mean_demand is None:
        observations.setdefault(UNKNOWN_SINCE, snapshot.at_seconds)
    else:
        observations.pop(UNKNOWN_SINCE, None)
    return replace(memory, observations=observations)


def _blind(
    snapshot: FleetSnapshot, load: FleetLoad, current: int, intent: ReplicaIntent, memory: Memory
) -> ReplicaDecision:
    """Nothing can be read: nothing shrinks; a fallback, if wanted, only raises, and only as policies allow."""
    since = snapshot.at_seconds - memory.observations.get(UNKNOWN_SINCE, snapshot.at_seconds)
    text = f"no ready pod could be read for {since:.0f} s ({load.unknown} ready, {load.pending} pending)"
    fallback = intent.fallback
    if fallback is not None and since >= fallback.after_seconds and load.unknown + load.pending > 0:
        wanted = min(max(current, fallback.replicas), intent.max)
        target = bounded(memory, snapshot.at_seconds, current, wanted, intent)
        if target > current:
            message = f"{text}: fallback to {fallback.replicas} replicas"
            limited = DecisionReason.LIMITED_BY_POLICY if target < wanted else None
            return ReplicaDecision(current, target, DecisionReason.FALLBACK, message, limited, wanted)
    return _hold(current, DecisionReason.METRICS_UNKNOWN, f"{text}: replicas stay at {current}")
