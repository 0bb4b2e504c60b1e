"""What to measure next: a pure function of the points so far, so that whoever runs it can be stopped and resume.

First a coarse ladder for every variant, from the smallest to the largest load. Then, one point at a time, whatever is
worth most (`crossover.calibrate.worth`): at a crossing that is not known well enough, between two points across which a
curve jumps, in a gap that may hide a crossing. It ends when nothing is worth a point any more (docs/design/0070).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import Ask, Done, DoneReason, SweepPlan
from crossover.calibrate.loads import Loads
from crossover.calibrate.worth import Want, wants
from crossover.decide.crossings import between
from crossover.decide.operating import Conditions, all_rates
from crossover.decide.profile import ProfileError, fit_profile
from crossover.decide.variant import Variant

STAY = 4.0
"""A point of a variant whose server is up is preferred to one that is worth less than this many times as much."""
COARSE_PAIR, COARSE_MANY = 4, 3
"""Loads of the first ladder, for two variants and for more."""
WIDE = 128.0
"""A range wider than this factor gets one more."""


def next_ask(
    points: Sequence[CalibrationPoint],
    plan: SweepPlan,
    *,
    available: Collection[Variant] | None = None,
    skip: Collection[Ask] = frozenset(),
) -> Ask | Done:
    """The next measurement, or why there is none.

    ``available``: variants whose servers are up (None = all). Others are asked for only when nothing comparable is left to
    measure with those, so a runner with one server at a time changes it rarely. ``skip``: asks that failed or gave
    unusable numbers; they count as spent.
    """
    loads = Loads(points, plan, skip)
    if plan.ladder:
        return _ladder(loads, plan, available)
    if loads.spent >= plan.most_points:
        return Done(DoneReason.POINTS_SPENT, f"{loads.spent} points measured, as many as wanted")
    ask = _coarse(loads, plan, available)
    if ask is not None:
        return ask
    try:
        profile = fit_profile(points)
    except ProfileError:
        return Done(DoneReason.NOTHING_LEFT, "no variant could be measured")
    best = _best(wants(profile, loads, plan), loads, plan, available)
    if best is not None:
        return best
    return Done(DoneReason.CLEAR, "; ".join(_shown(profile.measured, points)) or "nothing to compare")


def coarse_ladder(plan: SweepPlan, smallest: int, largest: int) -> tuple[int, ...]:
    """Evenly spaced in ln b, both ends included."""
    if largest <= smallest:
        return (largest,)
    count = COARSE_PAIR if len(plan.variants) <= 2 else COARSE_MANY
    if largest / smallest > WIDE and plan.most_points >= (count + 1) * len(plan.variants) + 4:
        count += 1
    ratio = largest / smallest
    return tuple(sorted({round(smallest * ratio ** (step / (count - 1))) for step in range(count)}))


def _by_convenience(variants: Sequence[Variant], available: Collection[Variant] | None) -> list[Variant]:
    """Those whose servers are up first, else in the order of the plan."""
    return sorted(variants, key=lambda variant: available is not None and variant not in available)


def _ladder(loads: Loads, plan: SweepPlan, available: Collection[Variant] | None) -> Ask | Done:
    for variant in _by_convenience(plan.variants, available):
        for load in plan.ladder:
            ask = Ask(variant, load)
            if loads.is_open(ask) and load <= loads.largest(variant):
                return ask
    return Done(DoneReason.LADDER_MEASURED, "every load of the ladder is measured")


def _coarse(loads: Loads, plan: SweepPlan, available: Collection[Variant] | None) -> Ask | None:
    """The largest load first: it tells a limit, and with the smallest whether anything can cross at all."""
    for variant in _by_convenience(plan.variants, available):
        largest = loads.largest(variant)
        ladder = coarse_ladder(plan, min(plan.smallest_running_requests, largest), largest)
        for load in sorted(ladder, key=lambda load: (load != ladder[-1], load)):
            ask = Ask(variant, load)
            if loads.is_open(ask) and not loads.has_near(ask):
                return ask
    return None


def _best(found: Sequence[Want], loads: Loads, plan: SweepPlan, available: Collection[Variant] | None) -> Ask | None:
    best: tuple[float, Ask] | None = None
    for want in found:
        seen: set[Variant] = set()
        for ask, share in want.asks:
            if ask.variant in seen or ask.variant not in plan.variants or not loads.is_open(ask):
                continue
            seen.add(ask.variant)
            value = want.urgency * share * (STAY if available is not None and ask.variant in available else 1.0)
            if best is None or value > best[0]:
                best = (value, ask)
    return best[1] if best is not None else None


def _shown(variants: Sequence[Variant], points: Sequence[CalibrationPoint]) -> list[str]:
    profile = fit_profile(points)
    rates = all_rates(profile, variants, Conditions(profile.context_tokens))
    return [
        f"{one.shown} against {zero.shown}: {between(profile, rates[one], rates[zero]).shown}"
        for one in variants
        if one.draft_tokens
        for zero in variants
        if not zero.draft_tokens
    ]


def estimate_points(plan: SweepPlan) -> int:
    """How many points a sweep usually takes, for a progress bar: the coarse ladders and a few for every draft length."""
    if plan.ladder:
        return len(plan.ladder) * len(plan.variants)
    coarse = len(coarse_ladder(plan, plan.smallest_running_requests, plan.largest_running_requests))
    drafts = sum(1 for variant in plan.variants if variant.draft_tokens)
    return min(plan.most_points, math.ceil(coarse * len(plan.variants) + 5 * max(1, drafts)))
