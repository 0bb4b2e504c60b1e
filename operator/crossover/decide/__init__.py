"""The decision: a pure function from what is seen, wanted and remembered to what to do and why.

No I/O, no clock, no logging; the controller, the simulator and the tests call the same `plan`.
"""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import Decision, DecisionReason, DraftDecision, Lever, Memory, ReplicaDecision
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent
from crossover.decide.draft import decide_draft
from crossover.decide.load import FleetLoad, measure
from crossover.decide.memory import with_changes
from crossover.decide.replicas import decide_replicas

__all__ = ["plan", "with_changes"]


def plan(snapshot: FleetSnapshot, intent: Intent, memory: Memory) -> Decision:
    """Decide draft length and replicas together for one fleet at one moment.

    Same input, same output. ``memory`` is the ``memory`` of the previous decision, with `with_changes` applied for what
    was carried out. The draft length is the fast loop and is decided first; the two never act on the same sample when
    the draft length needs a restart.
    """
    load = measure(snapshot)
    draft, memory = decide_draft(snapshot, load, intent.speculation, memory)
    replicas, memory = decide_replicas(snapshot, load, intent.replicas, memory)
    replicas = _fast_loop_first(draft, replicas)
    return Decision(snapshot.at_seconds, replicas, draft, _numbers(snapshot, load), memory=memory)


def _fast_loop_first(draft: DraftDecision, replicas: ReplicaDecision) -> ReplicaDecision:
    """A rollout is about to start: the replica count waits for the next sample, unless bounds are broken."""
    if draft.target is None or draft.lever is Lever.NONE or replicas.target in (None, replicas.current):
        return replicas
    if replicas.reason in (DecisionReason.BELOW_MIN, DecisionReason.ABOVE_MAX, DecisionReason.FALLBACK):
        return replicas
    message = f"{replicas.message}; the draft length changes first"
    return replace(replicas, target=None, reason=DecisionReason.FROZEN_ROLLOUT, message=message)


def _numbers(snapshot: FleetSnapshot, load: FleetLoad) -> dict[str, float | None]:
    return {
        "desired_replicas": snapshot.desired_replicas,
        "pods_known": load.known,
        "pods_unknown": load.unknown,
        "pods_pending": load.pending,
        "pods_terminating": load.terminating,
        "demand_requests_per_replica": load.mean_demand,
        "running_requests_per_scheduler": load.running_per_scheduler,
        "waiting_requests": load.waiting,
        "output_tokens_per_second": load.output_tokens_per_second,
        "draft_tokens": load.draft_in_force,
        "startup_seconds": snapshot.startup_seconds,
    }
