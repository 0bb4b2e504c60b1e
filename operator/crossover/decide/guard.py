"""What holds a change of draft length back, whoever wants it: the chain that simple and calibrated mode share."""

from __future__ import annotations

from dataclasses import dataclass

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import FleetSnapshot, PodPhase
from crossover.api.intent import SpeculationIntent
from crossover.decide.load import FleetLoad
from crossover.decide.memory import last_draft_change
from crossover.decide.replicas import blindness


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason to wait."""

    reason: DecisionReason
    message: str


def frozen(snapshot: FleetSnapshot, load: FleetLoad) -> Hold | None:
    """No change while pods come or go: the load they leave to the others is not the load to decide on."""
    if snapshot.rollout_in_progress:
        return Hold(DecisionReason.FROZEN_ROLLOUT, "a rollout is in progress")
    if load.pending:
        return Hold(DecisionReason.FROZEN_PODS_PENDING, f"waits for {load.pending} starting pods")
    if load.terminating:
        return Hold(DecisionReason.FROZEN_PODS_TERMINATING, f"waits for {load.terminating} draining pods")
    ready = len(snapshot.in_phase(PodPhase.READY))
    if snapshot.desired_replicas is None:
        return Hold(DecisionReason.METRICS_UNKNOWN, "the replica count could not be read")
    if ready < snapshot.desired_replicas:
        return Hold(DecisionReason.FROZEN_PODS_PENDING, f"{ready} of {snapshot.desired_replicas} replicas are ready")
    if ready > snapshot.desired_replicas:
        return Hold(
            DecisionReason.FROZEN_PODS_TERMINATING,
            f"{ready} pods for {snapshot.desired_replicas} replicas: one must go",
        )
    return None


def unseen(load: FleetLoad) -> Hold | None:
    """The whole load must be seen: a change restarts every pod. A full batch with a hidden queue is seen well enough,
    it is only ever larger."""
    if load.known == 0:
        return Hold(DecisionReason.METRICS_UNKNOWN, "no ready pod can be read")
    if load.unknown:
        return Hold(DecisionReason.METRICS_UNKNOWN, blindness(load))
    return None


def dwelling(memory: Memory, now_seconds: float, intent: SpeculationIntent) -> Hold | None:
    """At most one change of draft length per dwell time."""
    last = last_draft_change(memory)
    if last is None or now_seconds - last.at_seconds >= intent.min_dwell_seconds:
        return None
    since = now_seconds - last.at_seconds
    left = intent.min_dwell_seconds - since
    return Hold(DecisionReason.DWELLING, f"changed {since:.0f} s ago, dwells {left:.0f} s more")
