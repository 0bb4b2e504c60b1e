"""How many replicas: target running requests per replica, with the HPA's arithmetic for missing and unready pods."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from crossover.api.decision import DecisionReason, Memory, ReplicaDecision
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import ReplicaIntent
from crossover.decide.behavior import bounded, remember, stabilize
from crossover.decide.load import FleetLoad

UNKNOWN_SINCE = "unknown_since_seconds"


@dataclass(frozen=True, slots=True)
class Recommended:
    replicas: int
    reason: DecisionReason
    message: str


def decide_replicas(
    snapshot: FleetSnapshot, load: FleetLoad, intent: ReplicaIntent, memory: Memory
) -> tuple[ReplicaDecision, Memory]:
    """An ordered chain: what cannot be decided, then the recommendation, then windows, policies and bounds."""
    current = snapshot.desired_replicas
    memory = _note_unknown(memory, snapshot, load)
    if current is None:
        return _hold(None, DecisionReason.METRICS_UNKNOWN, "the replica count could not be read"), memory
    if current == 0:
        message = "scaled to 0 replicas by hand: replicas are left alone until someone scales up"
        return _hold(0, DecisionReason.SCALED_TO_ZERO, message), memory
    outside = _out_of_bounds(current, intent)
    if outside is not None:
        return outside, memory
    if load.mean_demand is None:
        return _blind(snapshot, load, current, intent, memory), memory
    if intent.target_running_requests is None:
        return _hold(current, DecisionReason.HELD_BY_POLICY, "no target of running requests is set"), memory
    recommended = recommend(load, current, intent)
    keep = max(intent.scale_up.stabilization_window_seconds, intent.scale_down.stabilization_window_seconds)
    runs = remember(memory.recommendations, snapshot.at_seconds, recommended.replicas, keep)
    memory = replace(memory, recommendations=runs)
    return _shape(snapshot, load, current, recommended, intent, memory), memory


def recommend(load: FleetLoad, current: int, intent: ReplicaIntent) -> Recommended:
    """The HPA's replica calculator for a Pods metric (peers of the HPA: unready pods count as idle when scaling up).

    Differs in one point: a pod whose load is unknown never lets the fleet shrink.
    """
    target = intent.target_running_requests
    assert target is not None
    total, known = sum(load.demands), len(load.demands)
    ratio = total / known / target
    count = known
    if load.unknown or (load.pending and ratio > 1):
        count, total = _filled(load, ratio, total, target)
    filled = total / count / target
    text = (
        f"{load.mean_demand:.1f} running + waiting per replica on {known} read of {current} replicas, target {target}"
    )
    tolerance = intent.scale_up.tolerance if filled > 1 else intent.scale_down.tolerance
    if abs(1 - filled) <= tolerance or (ratio - 1) * (filled - 1) < 0:
        return Recommended(current, DecisionReason.WITHIN_TOLERANCE, f"{text}: within {tolerance:.0%} tolerance")
    wanted = math.ceil(filled * count - 1e-9)
    if filled > 1:
        wanted = max(wanted, current)
        return Recommended(wanted, DecisionReason.ABOVE_TARGET, f"{text}: recommend {wanted}")
    wanted = min(max(wanted, 1), current)
    if load.unknown and wanted < current:
        message = f"{text}: would shrink to {wanted}, but the load of {load.unknown} ready pods is unknown"
        return Recommended(current, DecisionReason.METRICS_UNKNOWN, message)
    return Recommended(wanted, DecisionReason.BELOW_TARGET, f"{text}: recommend {wanted}")


def _filled(load: FleetLoad, ratio: float, total: float, target: int) -> tuple[int, float]:
    """(count, total) with missing pods at the target when shrinking, at 0 when growing; unready pods at 0 then too."""
    known = len(load.demands)
    if ratio < 1:
        return known + load.unknown, total + load.unknown * target
    return known + load.unknown + load.pending, total


def _shape(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    current: int,
    recommended: Recommended,
    intent: ReplicaIntent,
    memory: Memory,
) -> ReplicaDecision:
    """Windows, then bounds, then policies; the reason is the last thing that held the count back."""
    wanted = recommended.replicas
    stable = stabilize(memory.recommendations, snapshot.at_seconds, current, intent)
    reason, message = recommended.reason, recommended.message
    limited: DecisionReason | None = None
    if stable != wanted:
        rules = intent.scale_down if wanted < current else intent.scale_up
        reason = DecisionReason.STABILIZING
        message += f", waiting for the {rules.stabilization_window_seconds} s stabilization window"
    inside = min(max(stable, intent.min), intent.max)
    if inside < stable:
        limited, message = DecisionReason.LIMITED_BY_MAX, f"{message}, limited to max {intent.max}"
    elif inside > stable:
        limited, message = DecisionReason.LIMITED_BY_MIN, f"{message}, limited to min {intent.min}"
    allowed = bounded(memory, snapshot.at_seconds, current, inside, intent)
    if allowed != inside:
        limited, message = DecisionReason.LIMITED_BY_POLICY, f"{message}, behavior allows {allowed} now"
    if allowed < current and (snapshot.rollout_in_progress or load.pending):
        frozen = DecisionReason.FROZEN_ROLLOUT if snapshot.rollout_in_progress else DecisionReason.FROZEN_PODS_PENDING
        text = f"{message}; no shrink while pods are being replaced or started"
        return ReplicaDecision(current, None, frozen, text, limited, wanted)
    return ReplicaDecision(current, allowed, reason, message, limited, wanted)


def _out_of_bounds(current: int, intent: ReplicaIntent) -> ReplicaDecision | None:
    """Bounds hold even when nothing can be measured, as in the HPA."""
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
    """Nothing can be read: nothing shrinks; a fallback, if wanted, only raises."""
    since = snapshot.at_seconds - memory.observations.get(UNKNOWN_SINCE, snapshot.at_seconds)
    text = f"no ready pod could be read for {since:.0f} s ({load.unknown} ready, {load.pending} pending)"
    fallback = intent.fallback
    if fallback is not None and since >= fallback.after_seconds and load.unknown + load.pending > 0:
        target = min(max(current, fallback.replicas), intent.max)
        if target > current:
            return ReplicaDecision(current, target, DecisionReason.FALLBACK, f"{text}: fallback to {target} replicas")
    return _hold(current, DecisionReason.METRICS_UNKNOWN, f"{text}: replicas stay at {current}")
