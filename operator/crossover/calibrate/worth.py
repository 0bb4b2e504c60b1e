"""What another point would be worth: 1 = just not worth measuring.

Three reasons to measure, for every pair of curves that may be exchanged for each other:

- a crossing whose interval is wider than wanted: worth its width;
- a jump (a cliff) in a curve next to a crossing, which no smooth interval knows of: worth the distance between the points
  on both sides, until it is as narrow as wanted;
- a gap that may hide a crossing. Step times never fall with load, so between two measured loads each curve lies between
  its ends, and where even that excludes a crossing nothing is hidden (docs/design/0070).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from crossover.calibrate.contract import Ask, SweepPlan
from crossover.calibrate.loads import Loads
from crossover.decide.crossings import Crossing, between
from crossover.decide.curves import DEFAULT_ERROR
from crossover.decide.operating import Conditions, Rates, all_rates
from crossover.decide.profile import Profile
from crossover.decide.variant import Variant

GAP = math.log(2.0)
"""A gap this wide (in ln b) that may hide a crossing is worth a point."""
NEAR = 1.35
"""Points within this factor of a crossing tell where it is."""
JUMP = 0.04
"""A step of a curve, as a share, that its shape does not explain."""
ENVELOPE = 1 / 3
"""Where two draft lengths cross each other matters less than where drafting stops paying."""


@dataclass(frozen=True, slots=True)
class Want:
    """A reason to measure: how much it is worth, and where, the best place first."""

    worth: float
    asks: tuple[Ask, ...]


def wants(profile: Profile, loads: Loads, plan: SweepPlan) -> list[Want]:
    """Everything that is worth a point."""
    rates = all_rates(profile, profile.measured, Conditions(profile.context_tokens))
    found: list[Want] = []
    for one, other, weight in _pairs(list(rates)):
        found += [
            Want(want.worth * weight, want.asks)
            for want in _between(profile, rates[one], rates[other], loads, plan)
            if want.worth > 1.0
        ]
    return sorted(found, key=lambda want: -want.worth)


def _pairs(variants: list[Variant]) -> Iterator[tuple[Variant, Variant, float]]:
    """Every draft length against every zero, and against the next shorter one."""
    zeros = [variant for variant in variants if not variant.draft_tokens]
    drafts = sorted(variant for variant in variants if variant.draft_tokens)
    for draft in drafts:
        for zero in zeros:
            yield draft, zero, 1.0
    for shorter, longer in pairwise(drafts):
        yield longer, shorter, ENVELOPE


def _between(profile: Profile, one: Rates, other: Rates, loads: Loads, plan: SweepPlan) -> Iterator[Want]:
    crossover = between(profile, one, other)
    for crossing in crossover.crossings:
        jumps = list(_jumps(profile, crossing, (one.variant, other.variant), loads))
        if jumps:
            for variant, low, high in jumps:
                worth = math.log(high / low) / (2 * plan.crossover_error)
                yield Want(worth, (loads.ask(variant, math.sqrt(low * high)),))
            continue
        half_width = math.log(crossing.high / max(crossing.low, 1e-9)) / 2
        asks = _around(profile, crossing, one.variant, other.variant, loads)
        yield Want(half_width / plan.crossover_error, asks)
    yield from _gaps(profile, one, other, loads, [crossing.running_requests for crossing in crossover.crossings])


def _around(profile: Profile, crossing: Crossing, one: Variant, other: Variant, loads: Loads) -> tuple[Ask, ...]:
    """Near the crossing, first for the variant that is known less well there, first where no point is near."""
    place = crossing.running_requests
    order = sorted((one, other), key=lambda variant: _information(loads, variant, place))
    asks: list[Ask] = []
    for variant in order:
        known = loads.running(variant)
        places = [place * factor for factor in (1.0, 0.88, 1.14, 0.77, 1.3, 0.94, 1.07)]
        places.sort(key=lambda at: -min(0.1, min((abs(math.log(at / b)) for b in known), default=1.0)))
        asks += [loads.ask(variant, at) for at in places]
    return tuple(dict.fromkeys(asks))


def _information(loads: Loads, variant: Variant, place: float) -> float:
    """Sum of 1 / variance of the points near a load."""
    return sum(
        1 / max(point.relative_error or DEFAULT_ERROR, 1e-3) ** 2
        for point in loads.points.get(variant, ())
        if abs(math.log(point.running_requests / place)) < math.log(NEAR)
    )


def _jumps(
    profile: Profile, crossing: Crossing, variants: tuple[Variant, Variant], loads: Loads
) -> Iterator[tuple[Variant, float, float]]:
    """Curves that do, between the measured loads on both sides of a crossing, what their shape does not explain; with
    those loads. A smooth misfit shrinks with the distance and soon no longer counts."""
    shape = profile.shape
    if shape is None:
        return
    for variant in variants:
        known, curve = loads.points.get(variant, []), profile.curves[variant]
        below = [point for point in known if point.running_requests <= crossing.running_requests]
        above = [point for point in known if point.running_requests > crossing.running_requests]
        if not below or not above:
            continue
        ends = (below[-1], above[0])
        low, high = (point.running_requests for point in ends)
        first, last = (
            profile.step_seconds(variant, b)
            / shape.seconds(b, curve.verified, profile.context_tokens * b, curve.draft_steps)
            for b in (low, high)
        )
        noise = math.hypot(*(point.relative_error or DEFAULT_ERROR for point in ends))
        if abs(math.log(last / first)) > max(JUMP, 4 * noise):
            yield variant, low, high


def _gaps(profile: Profile, one: Rates, other: Rates, loads: Loads, crossings: list[float]) -> Iterator[Want]:
    """Between neighbouring loads at which both curves are known; only where the ends say the same."""
    low = max(one.measured[0], other.measured[0])
    high = min(one.measured[1], other.measured[1])
    inside = {b for item in (one, other) for b in loads.running(item.variant) if low <= b <= high}
    for variant in (one.variant, other.variant):
        known = sorted(inside & set(loads.running(variant)) | {low, high})
        for left, right in pairwise(known):
            width = math.log(right / left)
            if width <= GAP or any(left <= place <= right for place in crossings):
                continue
            if _may_hide(one, other, left, right):
                yield Want(width / GAP, (loads.ask(variant, math.sqrt(left * right)),))


def _may_hide(one: Rates, other: Rates, left: float, right: float) -> bool:
    """Whether curves that only rise could meet between two loads. Seconds per token rise with the batch as step times do."""
    ahead = one.tpot(left) < other.tpot(left)
    if ahead != (one.tpot(right) < other.tpot(right)):
        return True
    faster, slower = (one, other) if ahead else (other, one)
    return faster.tpot(right) >= slower.tpot(left)
