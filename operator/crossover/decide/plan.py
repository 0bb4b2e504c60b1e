"""The decision in one sitting: look, draft length (fast loop), replicas (slow loop), never both on one sample."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from crossover.api.decision import Decision, DecisionReason, DraftDecision, Memory, ReplicaDecision
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent
from crossover.decide.draft import decide_draft
from crossover.decide.load import FleetLoad, measure
from crossover.decide.memory import after_gap, trimmed
from crossover.decide.replicas import recommend
from crossover.decide.shape import decide_replicas


def plan(snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: None = None) -> Decision:
    """Decide draft length and replicas together for one fleet at one moment.

    Pure: same input, same output, no clock but ``snapshot.at_seconds``. ``memory`` is the previous decision's
    ``memory``, with `with_changes` applied for what was carried out of it; `Memory()` at the very first time.
    """
    memory = after_gap(memory, snapshot.at_seconds, max(60.0, 2 * snapshot.stale_after_seconds))
    memory = replace(memory, changes=trimmed(memory.changes, snapshot.at_seconds))
    load = measure(snapshot)
    draft, memory = decide_draft(snapshot, load, intent.speculation, memory)
    by_target = partial(recommend, load, intent=intent.replicas)
    wanted = by_target if intent.replicas.target_running_requests is not None else None
    replicas, memory = decide_replicas(snapshot, load, intent.replicas, memory, wanted)
    replicas = _one_at_a_time(draft, replicas)
    return Decision(snapshot.at_seconds, replicas, draft, _numbers(snapshot, load), memory=memory)


def _one_at_a_time(draft: DraftDecision, replicas: ReplicaDecision) -> ReplicaDecision:
    """A rollout is about to start: the replica count waits for the next sample, unless a bound is broken."""
    if draft.target is None or replicas.target in (None, replicas.current):
        return replicas
    if replicas.reason in (DecisionReason.BELOW_MIN, DecisionReason.ABOVE_MAX, DecisionReason.FALLBACK):
        return replicas
    message = f"{replicas.message}; waits for the next sample, the draft length changes first"
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
        "running_requests": load.running,
        "waiting_requests": load.waiting,
        "output_tokens_per_second": load.output_tokens_per_second,
        "draft_tokens": load.draft_in_force,
        "startup_seconds": snapshot.startup_seconds,
    }
