"""Simple mode: the neighbours of what was decided, and what each would have been. Calibrated mode weighs every draft
length (`crossover.decide.choice`)."""

from __future__ import annotations

from crossover.api.decision import Alternative, DraftDecision, Lever, ReplicaDecision
from crossover.api.intent import Intent
from crossover.decide.load import FleetLoad


def neighbours(
    load: FleetLoad, intent: Intent, draft: DraftDecision, replicas: ReplicaDecision
) -> tuple[Alternative, ...]:
    """The other state of speculation, one replica less and one more."""
    return (*_other_draft(intent, draft), *_other_counts(load, intent, replicas))


def _other_draft(intent: Intent, draft: DraftDecision) -> tuple[Alternative, ...]:
    if draft.lever is not Lever.RESTART or draft.target is not None or draft.current is None:
        return ()
    if draft.current:
        return (Alternative("draft 0 by a restart", draft.message),)
    length = intent.speculation.max_draft_tokens if intent.speculation is not None else None
    return (Alternative(f"draft {length} by a restart" if length else "speculation by a restart", draft.message),)


def _other_counts(load: FleetLoad, intent: Intent, replicas: ReplicaDecision) -> tuple[Alternative, ...]:
    """Requests stay, replicas differ: what each would have, as a share of the target."""
    target, mean, current = intent.replicas.target_running_requests, load.mean_demand, replicas.current
    if target is None or mean is None or not current:
        return ()
    chosen = replicas.target if replicas.target is not None else current
    found = []
    for count in (chosen - 1, chosen + 1):
        if count < 1:
            continue
        what, each = f"{count} replicas", mean * current / count
        shares = f"{each:.1f} requests per replica, {each / target:.0%} of the target of {target}"
        if count < intent.replicas.min:
            shares += f"; min is {intent.replicas.min}"
        elif count > intent.replicas.max:
            shares += f"; max is {intent.replicas.max}"
        found.append(Alternative(what, shares, {"requests_per_replica": round(each, 2)}))
    return tuple(found)
