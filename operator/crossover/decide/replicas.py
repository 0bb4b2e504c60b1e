"""How many replicas, in simple mode: a target of running requests per replica with the HPA's arithmetic.

The recommendation is made here; windows, policies and bounds shape it in `crossover.decide.shape`, for simple and
calibrated mode alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from crossover.api.decision import DecisionReason
from crossover.api.intent import ReplicaIntent
from crossover.decide.load import FleetLoad


@dataclass(frozen=True, slots=True)
class Recommended:
    """A replica count before windows, policies and bounds."""

    replicas: int
    reason: DecisionReason
    message: str


def recommend(load: FleetLoad, current: int, intent: ReplicaIntent) -> Recommended:
    """The HPA's replica calculator for a Pods metric (kubernetes/kubernetes pkg/controller/podautoscaler,
    `calcPlainMetricReplicas`): pods that are not ready count as idle when growing and not at all when shrinking.

    Three deliberate differences (docs/design/0040): the metric is running + waiting requests; a ready pod whose load
    is unknown never lets the fleet shrink; a recommendation never moves against the load. ``load`` must know a pod.
    """
    target = intent.target_running_requests
    assert target is not None
    assert load.demands
    total, count = sum(load.demands), len(load.demands)
    ratio = total / count / target
    if ratio < 1:
        total, count = total + load.unknown * target, count + load.unknown
    elif load.unknown or load.pending:
        count += load.unknown + (load.pending if ratio > 1 else 0)
    filled = total / count / target
    text = f"{_per_replica(load)} on {current} replicas, target {target}"
    tolerance = intent.scale_up.tolerance if filled > 1 else intent.scale_down.tolerance
    if abs(1 - filled) <= tolerance + 1e-9 or (ratio - 1) * (filled - 1) < 0:
        return Recommended(current, DecisionReason.WITHIN_TOLERANCE, f"{text}: within {tolerance:.0%} tolerance")
    wanted = math.ceil(total / target - 1e-9)
    if filled > 1:
        wanted = max(wanted, current)
        return Recommended(wanted, DecisionReason.ABOVE_TARGET, f"{text}: recommend {wanted}")
    wanted = min(max(wanted, 1), current)
    if wanted < current and (why := blindness(load)):
        message = f"{text}: would shrink to {wanted}, but {why}"
        return Recommended(current, DecisionReason.METRICS_UNKNOWN, message)
    return Recommended(wanted, DecisionReason.BELOW_TARGET, f"{text}: recommend {wanted}")


def blindness(load: FleetLoad) -> str:
    """Why the load seen is not the whole load; empty when it is."""
    if load.unknown:
        return f"the load of {load.unknown} ready {_pods(load.unknown)} is unknown"
    if load.hidden_queues:
        return f"{load.hidden_queues} {_pods(load.hidden_queues)} run a full batch and do not tell their queue"
    return ""


def _pods(count: int) -> str:
    return "pod" if count == 1 else "pods"


def _per_replica(load: FleetLoad) -> str:
    """``"41.0 running + 3.0 waiting per replica"``, with how many were read when it is not all."""
    known = len(load.demands)
    running = (load.running or 0.0) / known
    waiting = "queue unknown" if load.waiting is None else f"{load.waiting / known:.1f} waiting"
    text = f"{running:.1f} running + {waiting} per replica"
    if load.unknown or load.pending:
        text += f" ({known} read, {load.unknown} unknown, {load.pending} pending)"
    return text
