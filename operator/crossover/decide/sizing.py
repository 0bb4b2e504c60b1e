"""Calibrated mode sizes a fleet: replicas from demand at start-up time and the capacity of the best way to decode."""

from __future__ import annotations

import math
from itertools import pairwise

from crossover.api.decision import DecisionReason, DraftDecision, Lever
from crossover.decide.operating import Rates
from crossover.decide.replicas import Recommended, blindness
from crossover.decide.situation import Situation, tokens
from crossover.decide.variant import Variant

DRAIN_BACKLOG_SECONDS = 120.0
"""A backlog is to be gone in this time, or in a start-up time where that is longer: no replica can help sooner."""


def needed(here: Situation, rates: Rates) -> float:
    """Replicas that the demand at start-up time needs, plus what drains the backlog; not rounded.

    R = D(t + start-up) / (utilization x capacity) + backlog / (capacity x drain time)
    """
    assert here.demand is not None
    capacity = capacity_per_replica(here, rates)
    drain = max(DRAIN_BACKLOG_SECONDS, here.demand.horizon_seconds)
    steady = here.demand.to_plan_for / (here.intent.replicas.utilization * capacity)
    return steady + here.demand.backlog_tokens / (capacity * drain)


def capacity_per_replica(here: Situation, rates: Rates) -> float:
    """Output tokens/s within the target; where no batch meets the target, the most it can do at all. Never more than a
    settled fleet that missed its target was seen to do, whatever the curves say."""
    capacity = max(rates.capacity or rates.highest, 1e-9) * here.schedulers_per_replica
    if here.seen_capacity is None or rates.variant != _as_now(here):
        return capacity
    return min(capacity, here.seen_capacity)


def _as_now(here: Situation) -> Variant | None:
    """What was seen speaks for: the present variant, or whatever a schedule makes of the batch."""
    if here.lever is Lever.ENGINE_SCHEDULE and here.best is not None:
        return here.best.variant
    return here.present.variant if here.present is not None else None


def planned_replicas(here: Situation, rates: Rates) -> int:
    bounds = here.intent.replicas
    return min(max(math.ceil(needed(here, rates) - 1e-9), bounds.min), bounds.max)


def recommend(here: Situation, draft: DraftDecision, rescue: bool, current: int) -> Recommended:
    """From the best reachable capacity, so that the two loops cannot chase each other; from the present one only while
    it breaks the target and the change that would help is held back."""
    if here.demand is None or here.best is None:
        return Recommended(current, DecisionReason.METRICS_UNKNOWN, "the demand is unknown: replicas stay")
    best, present = here.best, here.present or here.best
    waits = rescue and draft.target is None and draft.reason not in (DecisionReason.STABILIZING,)
    wants = needed(here, present if waits else best)
    wanted = max(1, math.ceil(wants - 1e-9))
    text = _replica_text(here, present if waits else best, wanted)
    ratio = wants / current
    rules = here.intent.replicas.scale_up if wanted > current else here.intent.replicas.scale_down
    if wanted == current or (abs(wanted - current) == 1 and abs(1 - ratio) <= rules.tolerance):
        return Recommended(current, DecisionReason.WITHIN_TOLERANCE, f"{text}: {current} replicas fit")
    if wanted > current:
        return Recommended(wanted, DecisionReason.DEMAND_ABOVE_CAPACITY, f"{text}: recommend {wanted}")
    if why := blindness(here.load):
        return Recommended(current, DecisionReason.METRICS_UNKNOWN, f"{text}: would shrink to {wanted}, but {why}")
    kept = min(current, max(wanted, math.ceil(needed(here, present) - 1e-9)))
    if kept > wanted:
        text += f"; {kept} until the draft length has changed"
    if kept == current:
        return Recommended(current, DecisionReason.WITHIN_TOLERANCE, f"{text}: {current} replicas fit")
    return Recommended(kept, DecisionReason.DEMAND_BELOW_CAPACITY, f"{text}: recommend {kept}")


def _replica_text(here: Situation, rates: Rates, wanted: int) -> str:
    """``"demand 5.2k tok/s, 5.9k in 180 s; capacity 1.6k tok/s per replica (TPOT <= 40 ms) at 85 %"``."""
    demand = here.demand
    assert demand is not None
    text = f"demand {tokens(demand.now)} tok/s"
    if demand.forecast > demand.now * 1.02:
        text += f", {tokens(demand.forecast)} in {demand.horizon_seconds:.0f} s"
    if demand.backlog_tokens > 0:
        text += f", {tokens(demand.backlog_tokens)} tok waiting"
    target = here.tpot_target
    capacity = capacity_per_replica(here, rates)
    how = f" at TPOT <= {1000 * target:.0f} ms" if target is not None else ""
    if target is not None and not rates.capacity:
        how = f", no batch meets TPOT {1000 * target:.0f} ms"
    return f"{text}; capacity {tokens(capacity)} tok/s per replica{how}, used to {here.intent.replicas.utilization:.0%}"


def numbers(here: Situation) -> dict[str, float | None]:
    """What the profile says at the present demand."""
    best, present = here.best, here.present
    point = None
    if present is not None and here.demand is not None:
        point = present.at(here.demand_per_scheduler(here.ready_replicas), here.tpot_target)
    return {
        "capacity_tokens_per_second_per_replica": capacity_per_replica(here, best) if best is not None else None,
        "predicted_running_requests_per_scheduler": point.running if point is not None else None,
        "predicted_tpot_seconds": point.tpot_seconds if point is not None else None,
        "crossover_running_requests": live_crossover(here),
        "acceptance_shift": here.conditions.acceptance_shift,
        "context_tokens": here.conditions.context_tokens,
    }


def live_crossover(here: Situation) -> float | None:
    """Largest batch at which the longest reachable draft length still beats the zero that the lever can reach, under
    live acceptance, context and corrections; None when there is none within what was measured."""
    drafts = [variant for variant in here.reachable if variant.draft_tokens]
    zeros = [variant for variant in here.reachable if not variant.draft_tokens]
    if not drafts or not zeros:
        return None
    speculating, zero = here.reachable[max(drafts)], here.reachable[zeros[0]]
    last = speculating.measured[1]
    gains = [
        (batch, other / own - 1)
        for batch, own, other in zip(
            speculating.running, speculating.seconds_per_token, zero.seconds_per_token, strict=True
        )
        if batch <= last
    ]
    for (batch, gain), (further, after) in pairwise(gains):
        if gain > 0 >= after:
            return batch + (further - batch) * gain / (gain - after)
    return None
