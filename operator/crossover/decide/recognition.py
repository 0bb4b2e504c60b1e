"""Simple mode notices that its threshold is wrong, and in which direction.

Occupancy depends on the draft length, so a wrong threshold does not average out (docs/design/0047):

- too low: switched off, the batch *rises* at the same demand and never falls below the other threshold. It latches.
- too high: switched off, the batch *falls* below the other threshold at the same demand, on again, and so for ever. It
  cycles, whatever the hysteresis. At that demand off is the better state, since it runs fewer requests: stay off.
"""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import Change, DecisionReason, Memory
from crossover.api.fleet import FleetSnapshot
from crossover.decide.guard import Hold, frozen
from crossover.decide.load import FleetLoad
from crossover.decide.memory import last_draft_change

SETTLE_SECONDS = 90.0
MATCHED = 0.15
"""Demands within this share of each other count as the same."""
LATCH_RISE = 1.25
"""A batch that grew by this much after switching off was not noise: over 64 requests its standard error is 12 %."""
CYCLE_FROM = 0.7
"""Down to this share of the demand at which it was switched off, switching on is judged by what happened then."""
SETTLED_SINCE = "outcome_settled_since_seconds"


def note_outcome(snapshot: FleetSnapshot, load: FleetLoad, demand: float | None, memory: Memory) -> Memory:
    """Once after every change of draft length: the batch that the fleet settled at, at a like demand (output tokens/s per
    scheduler); then whether it latched."""
    last = last_draft_change(memory)
    if last is None or last.running_requests_after is not None:
        return memory
    seen = dict(memory.observations)
    running, now = load.running_per_scheduler, snapshot.at_seconds
    comparable = (
        running is not None
        and frozen(snapshot, load) is None
        and load.unknown == 0
        and demand is not None
        and _is_matched(demand, last)
        and now > last.at_seconds
    )
    if not comparable:
        if SETTLED_SINCE not in seen:
            return memory
        del seen[SETTLED_SINCE]
        return replace(memory, observations=seen)
    if now - seen.setdefault(SETTLED_SINCE, now) < SETTLE_SECONDS:
        return replace(memory, observations=seen)
    del seen[SETTLED_SINCE]
    assert running is not None
    changes = tuple(
        replace(change, running_requests_after=round(running, 1)) if change is last else change
        for change in memory.changes
    )
    latched = DecisionReason.THRESHOLD_LATCHES if _latched(last, running) else None
    return replace(memory, changes=changes, observations=seen, latched=latched)


def _is_matched(demand: float, change: Change) -> bool:
    before = change.demand_tokens_per_second
    return before is not None and before > 0 and abs(demand / before - 1) <= MATCHED


def _latched(change: Change, running: float) -> bool:
    return (
        change.to_value == 0
        and change.running_requests is not None
        and running > LATCH_RISE * max(change.running_requests, 1.0)
    )


def would_cycle(memory: Memory, demand: float | None, above: int, dwell_seconds: float, now: float) -> Hold | None:
    """Switching on again would bring back the batch that made it switch off.

    At a lower demand the batch is smaller at least in proportion (b = D TPOT and TPOT does not rise), so scaling the batch
    seen then by the demand since is an upper bound.
    """
    last = last_draft_change(memory)
    if last is None or last.to_value != 0 or last.running_requests is None:
        return None
    if demand is None or not last.demand_tokens_per_second:
        return _too_soon(last, dwell_seconds, now)
    share = demand / last.demand_tokens_per_second
    # Within what demand is known to, the same demand brings the same batch: just above the threshold is above it.
    back = last.running_requests * (1.0 if share >= 1 - MATCHED else share)
    if share < CYCLE_FROM or back <= above:
        return None
    return Hold(
        DecisionReason.THRESHOLD_CYCLES,
        f"stays off: at {share:.0%} of this demand draft {last.from_value} ran {last.running_requests:.0f} per scheduler, "
        f"above {above}, and would again",
    )


def _too_soon(last: Change, dwell_seconds: float, now: float) -> Hold | None:
    """Without a demand to compare: a return soon after switching off counts as a cycle."""
    wait = 4 * dwell_seconds
    if now - last.at_seconds >= wait:
        return None
    return Hold(
        DecisionReason.THRESHOLD_CYCLES,
        f"switched off {now - last.at_seconds:.0f} s ago at {last.running_requests:.0f} running per scheduler; the demand is "
        f"unknown, so it is tried again after {wait:.0f} s",
    )


def note_cycle(memory: Memory, cycles: bool) -> Memory:
    """Remember that the threshold cycles for as long as it holds speculation off; a latch is found elsewhere."""
    if cycles:
        return replace(memory, latched=DecisionReason.THRESHOLD_CYCLES)
    if memory.latched is DecisionReason.THRESHOLD_CYCLES:
        return replace(memory, latched=None)
    return memory


def explanation(memory: Memory, above: int, below: int) -> str:
    """What was seen, and what a calibration would change."""
    last = last_draft_change(memory)
    before = f"{last.running_requests:.0f}" if last is not None and last.running_requests is not None else "?"
    after = (
        f"{last.running_requests_after:.0f}" if last is not None and last.running_requests_after is not None else "?"
    )
    if memory.latched is DecisionReason.THRESHOLD_LATCHES:
        return (
            f"switched off at {before} running per scheduler, the batch rose to {after} at the same demand: off is slower "
            f"there, and the load will not fall below {below} by itself. The crossover lies above {before}: a calibration "
            "would raise disableAboveRunningRequests"
        )
    return (
        f"switched off at {before} running per scheduler, the batch fell to {after}, below {below}, at the same demand: "
        f"switching on again would only bring {before} back. The crossover lies below {above}: a calibration would lower "
        "disableAboveRunningRequests"
    )
