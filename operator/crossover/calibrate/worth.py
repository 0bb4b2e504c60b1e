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

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import Ask, SweepPlan
from crossover.calibrate.loads import Loads
from crossover.decide.crossings import Crossing, between
from crossover.decide.curves import DEFAULT_ERROR
from crossover.decide.operating import Conditions, Rates, all_rates
from crossover.decide.profile import Profile
from crossover.decide.variant import Variant

GAP = math.log(2.0)
"""A gap this wide (in ln b) that may hide a crossing is worth a point."""
FINE_GAP = math.log(1.2)
"""The same where the curve jumps."""
NEAR = 1.35
"""Points within this factor of a crossing tell where it is."""
FIRST_POINTS = 3.0
JUMP = 0.04
"""A step of a curve, as a share, that its shape does not explain."""
ENVELOPE = 1 / 3
"""Where two draft lengths cross each other matters less than where drafting stops paying."""


@dataclass(frozen=True, slots=True)
class Want:
    """A reason to measure: how much it is worth, and where, the best place first."""

    worth: float
    asks: tuple[tuple[Ask, float], ...]
    """Each with its share of the urgency, the best place of a variant before its others."""
    urgency: float
    """Worth by what one more point changes: the tenth point at a crossing tells less than the first in a gap."""


def wants(profile: Profile, loads: Loads, plan: SweepPlan) -> list[Want]:
    """Everything that is worth a point."""
    rates = all_rates(profile, profile.measured, Conditions(profile.context_tokens))
    found: list[Want] = []
    for one, other, weight in _pairs(list(rates)):
        found += [
            Want(want.worth * weight, want.asks, want.urgency * weight)
            for want in _between(profile, rates[one], rates[other], loads, plan)
            if want.worth > 1.0
        ]
    return sorted(found, key=lambda want: -want.urgency)


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
    variants = (one.variant, other.variant)
    for crossing in crossover.crossings:
        widths = []
        for variant, low, high in _jumps(profile, crossing, variants, loads):
            widths.append(math.log(high / low))
            worth = widths[-1] / (2 * plan.crossover_error)
            yield Want(worth, ((loads.ask(variant, math.sqrt(low * high)), 1.0),), worth)
        if widths and max(widths) <= 2 * plan.crossover_error:
            continue  # a cliff between neighbouring points: no interval of a smooth curve applies
        half_width = math.log(crossing.high / max(crossing.low, 1e-9)) / 2
        asks = _around(crossing, one.variant, other.variant, loads)
        near = sum(len(_near(loads, variant, crossing.running_requests)) for variant in variants)
        worth = half_width / plan.crossover_error
        yield Want(worth, asks, worth * FIRST_POINTS / (FIRST_POINTS + near))
    yield from _gaps(profile, one, other, loads, [crossing.running_requests for crossing in crossover.crossings])


def _around(crossing: Crossing, one: Variant, other: Variant, loads: Loads) -> tuple[tuple[Ask, float], ...]:
    """Near the crossing, first where no point is near. A point of the variant that is known better there helps less: the
    variance of a mean falls with the square of what it is made of."""
    place = crossing.running_requests
    known = {variant: _information(loads, variant, place) for variant in (one, other)}
    least = min(known.values())
    asks: dict[Ask, float] = {}
    for variant in sorted(known, key=lambda variant: known[variant]):
        running = loads.running(variant)
        places = [place * factor for factor in (1.0, 0.88, 1.14, 0.77, 1.3, 0.94, 1.07)]
        places.sort(key=lambda at: -min(0.1, min((abs(math.log(at / b)) for b in running), default=1.0)))
        share = (least / known[variant]) ** 2 if known[variant] else 1.0
        for at in places:
            asks.setdefault(loads.ask(variant, at), share)
    return tuple(asks.items())


def _near(loads: Loads, variant: Variant, place: float) -> list[CalibrationPoint]:
    return [
        point
        for point in loads.points.get(variant, ())
        if abs(math.log(point.running_requests / place)) < math.log(NEAR)
    ]


def _information(loads: Loads, variant: Variant, place: float) -> float:
    """Sum of 1 / variance of the points near a load."""
    return sum(1 / max(point.relative_error or DEFAULT_ERROR, 1e-3) ** 2 for point in _near(loads, variant, place))


def _jumps(
    profile: Profile, crossing: Crossing, variants: tuple[Variant, Variant], loads: Loads
) -> Iterator[tuple[Variant, float, float]]:
    """Curves that jump between the measured loads on both sides of a crossing, with those loads."""
    for variant in variants:
        known = loads.points.get(variant, [])
        above = next((i for i, p in enumerate(known) if p.running_requests > crossing.running_requests), 0)
        if above and _is_jump(profile, variant, known, above - 1):
            yield variant, known[above - 1].running_requests, known[above].running_requests


def _is_jump(profile: Profile, variant: Variant, known: list[CalibrationPoint], place: int) -> bool:
    """Whether a curve does between a point and the next what neither its shape nor its slope on both sides explains."""
    if profile.shape is None:
        return False
    around = known[max(0, place - 1) : place + 3]
    logs = [math.log(point.running_requests) for point in around]
    moved = [_off_shape(profile, variant, point.running_requests) for point in around]
    slopes = [
        (b - a) / (y - x) if y > x else 0.0 for (a, b), (x, y) in zip(pairwise(moved), pairwise(logs), strict=True)
    ]
    here = min(1, place)
    beside = [slope for number, slope in enumerate(slopes) if number != here]
    expected = sum(beside) / len(beside) if beside else 0.0
    noise = math.hypot(*(point.relative_error or DEFAULT_ERROR for point in known[place : place + 2]))
    return abs((slopes[here] - expected) * (logs[here + 1] - logs[here])) > max(JUMP, 4 * noise)


def _off_shape(profile: Profile, variant: Variant, running: float) -> float:
    """ln of the curve over its shape."""
    curve, shape = profile.curves[variant], profile.shape
    assert shape is not None
    kv = profile.context_tokens * running
    return math.log(
        profile.step_seconds(variant, running) / shape.seconds(running, curve.verified, kv, curve.draft_steps)
    )


def _gaps(profile: Profile, one: Rates, other: Rates, loads: Loads, crossings: list[float]) -> Iterator[Want]:
    """Between neighbouring loads of a curve at which its lead is the same. A curve that jumps there is looked at closer."""
    low = max(one.measured[0], other.measured[0])
    high = min(one.measured[1], other.measured[1])
    for variant in (one.variant, other.variant):
        known = [point for point in loads.points.get(variant, ()) if low <= point.running_requests <= high]
        for place, (before, after) in enumerate(pairwise(known)):
            left, right = before.running_requests, after.running_requests
            width = math.log(right / left)
            if width <= FINE_GAP or any(left <= place <= right for place in crossings):
                continue
            enough = FINE_GAP if _is_jump(profile, variant, known, place) else GAP
            if width > enough and _may_hide(one, other, left, right):
                yield Want(width / enough, ((loads.ask(variant, math.sqrt(left * right)), 1.0),), width / enough)


def _may_hide(one: Rates, other: Rates, left: float, right: float) -> bool:
    """Whether curves that only rise could meet between two loads. Seconds per token rise with the batch as step times do."""
    ahead = one.tpot(left) < other.tpot(left)
    if ahead != (one.tpot(right) < other.tpot(right)):
        return True
    faster, slower = (one, other) if ahead else (other, one)
    return faster.tpot(right) >= slower.tpot(left)
