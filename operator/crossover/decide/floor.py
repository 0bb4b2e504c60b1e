"""What proved too small is not tried again for a while.

Simple mode does not shrink to a count that was too small at the same demand; calibrated mode does not believe a capacity
that a settled fleet was seen to miss.

The HPA's rule takes the sum of running requests for constant: half the replicas, twice the batch. Near saturation the
batch grows much faster than that, so the rule shrinks too far, grows again, and so for ever (docs/design/0048). What one
replica was asked for when it last proved too little is remembered, and shrinking stops above it.
"""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import FleetSnapshot
from crossover.decide.demand import Demand
from crossover.decide.guard import frozen
from crossover.decide.load import FleetLoad
from crossover.decide.memory import last_draft_change
from crossover.decide.replicas import Recommended

BROKE, BROKE_AT = "broke_tokens_per_second_per_replica", "broke_at_seconds"
MISSING_SINCE, MISSING_MOST = "missing_since_seconds", "missing_most_tokens_per_second_per_replica"
MISSING_SECONDS = 60.0
"""Twice the window over which a pod's rates are taken."""
KEEP_BELOW = 0.95
"""Share of the demand per replica that broke which is planned for."""
FORGET_SECONDS = 3600.0
"""Then it is tried again: workloads change."""
NOISE = 1e-6


def note_broken(
    snapshot: FleetSnapshot, load: FleetLoad, demand: Demand | None, recommended: Recommended, memory: Memory
) -> Memory:
    """Remember the demand per replica at which a settled fleet asked for more replicas; forget it after an hour, or when
    the draft length changed, or when more than that was seen to fit."""
    seen = _forgotten(memory, snapshot.at_seconds)
    now, current = snapshot.at_seconds, snapshot.desired_replicas
    if demand is not None and current and frozen(snapshot, load) is None and not load.unknown:
        each = demand.now / current
        if recommended.reason is DecisionReason.ABOVE_TARGET:
            seen[BROKE], seen[BROKE_AT] = min(each, seen.get(BROKE, each)), now
    return replace(memory, observations=seen) if seen != dict(memory.observations) else memory


def note_missed(memory: Memory, now: float, seen_capacity: float | None) -> Memory:
    """Calibrated mode: what one replica was seen to do while it kept missing its target is its capacity for an hour,
    whatever the curves say. A single burst of prompts also misses for a moment and says nothing of capacity, so the miss
    has to last, and the most that was served in that time counts."""
    seen = _forgotten(memory, now)
    if seen_capacity is None:
        seen.pop(MISSING_SINCE, None)
        seen.pop(MISSING_MOST, None)
    else:
        since = seen.setdefault(MISSING_SINCE, now)
        seen[MISSING_MOST] = max(seen_capacity, seen.get(MISSING_MOST, 0.0))
        if now - since >= MISSING_SECONDS:
            seen[BROKE], seen[BROKE_AT] = min(seen[MISSING_MOST], seen.get(BROKE, seen[MISSING_MOST])), now
    return replace(memory, observations=seen) if seen != dict(memory.observations) else memory


def _forgotten(memory: Memory, now: float) -> dict[str, float]:
    """Observations without a limit that is an hour old or from before the last change of draft length."""
    seen = dict(memory.observations)
    last, at = last_draft_change(memory), seen.get(BROKE_AT)
    if at is not None and (now - at > FORGET_SECONDS or (last is not None and last.at_seconds > at)):
        del seen[BROKE], seen[BROKE_AT]
    return seen


def floored(recommended: Recommended, current: int, demand: Demand | None, memory: Memory) -> Recommended:
    """A shrink goes no further than what keeps each replica below the demand that broke one."""
    broke = memory.observations.get(BROKE)
    if demand is None or broke is None or broke <= 0 or recommended.replicas >= current:
        return recommended
    floor = min(current, int(demand.to_plan_for / (KEEP_BELOW * broke) - NOISE) + 1)
    if recommended.replicas >= floor:
        return recommended
    message = f"{recommended.message}; {floor} because {broke:.0f} tok/s per replica were too much before"
    return Recommended(floor, recommended.reason, message)
