"""Which way to decode at a demand: the ordered choice, with what every loser lost by.

1. A variant that meets the TPOT target and serves the demand beats one that does not.
2. Among those, one with the capacity margin that the replica count is planned with beats one without.
3. Among those, the lowest TPOT; a change only for a gain above the margin.
4. If none is feasible the fleet is overloaded: the highest output rate, and replicas follow.

control.md's order has "largest capacity margin" before "lowest TPOT"; taken literally it would pick the same variant at
every load. A margin that suffices is enough (docs/design/0043).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crossover.api.decision import Alternative
from crossover.decide.operating import OperatingPoint, Rates
from crossover.decide.variant import Variant

MARGIN = 0.05
"""Predicted gain below which nothing changes."""
RETURN_ROOM = 0.75
"""Share of the planned load up to which a variant that carries less than the present one is worth going to. One replica
more or less moves the demand per replica by a quarter at four: without this room every step of the replica count would ask
for a restart."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best variant at a demand, and what it is better by."""

    best: OperatingPoint
    current: OperatingPoint | None
    gain: float
    """Of the best over the current one: TPOT ratio less 1, or ratio of capacities less 1 where that is what is short; 0
    when the current one is best or unknown."""
    rescue: bool
    """The current variant cannot serve the demand within the target and the best one can."""
    comfort: bool
    """The current variant serves the demand within the target and with room: the gain is speed nobody asked for."""
    points: Mapping[Variant, OperatingPoint]

    @property
    def overloaded(self) -> bool:
        return not any(point.feasible for point in self.points.values())


def choose(
    rates: Mapping[Variant, Rates],
    demand: float,
    *,
    current: Variant | None,
    utilization: float,
    tpot_target: float | None,
    margin: float = MARGIN,
) -> Choice:
    """``demand``: output tokens/s of one scheduler. ``rates`` is not empty; ties go to the current variant."""
    points = {variant: item.at(demand, tpot_target) for variant, item in rates.items()}
    here = points.get(current) if current is not None else None

    def planned(point: OperatingPoint) -> float:
        smaller = here is not None and here.feasible and point is not here and point.capacity < here.capacity
        return utilization * (RETURN_ROOM if smaller else 1.0)

    best = min(points.values(), key=lambda point: _rank(point, planned(point), point is here))
    if here is None or best is here:
        return Choice(best, here, 0.0, False, False, points)
    gain = _gain(best, here, utilization)
    better_class = _rank(best, utilization, False)[:2] < _rank(here, utilization, True)[:2]
    rescue = best.feasible and not here.feasible
    if not rescue and gain <= margin and not (better_class and best.feasible):
        return Choice(here, here, 0.0, False, False, points)
    comfort = tpot_target is not None and not _is_short(here, utilization)
    return Choice(best, here, max(gain, 0.0), rescue, comfort, points)


def _rank(point: OperatingPoint, utilization: float, is_current: bool) -> tuple[bool, bool, float, bool, Variant]:
    """Smaller is better."""
    if not point.feasible:
        return (True, True, -point.highest, not is_current, point.variant)
    roomy = point.demand <= utilization * point.capacity * (1 + 1e-9)
    return (False, not roomy, point.tpot_seconds if roomy else -point.capacity, not is_current, point.variant)


def _gain(best: OperatingPoint, here: OperatingPoint, utilization: float) -> float:
    """How much faster the best serves the same demand. Where the present one is short of capacity and the best is not,
    at least how much more the best can carry: that many replicas it saves."""
    faster = here.tpot_seconds / best.tpot_seconds - 1
    if best.feasible and _is_short(here, utilization) and not _is_short(best, utilization):
        return max(faster, _more(best.capacity, here.capacity))
    if here.saturated:
        return max(faster, _more(best.highest, here.highest))
    return faster


def _is_short(point: OperatingPoint, utilization: float) -> bool:
    return not point.feasible or point.demand > utilization * point.capacity * (1 + 1e-9)


def _more(best: float, here: float) -> float:
    return best / here - 1 if here > 0 else 1.0


def lost_because(choice: Choice, point: OperatingPoint, tpot_target: float | None, utilization: float) -> str:
    """Why a variant was not chosen, in one clause with its numbers."""
    best = choice.best
    if point.saturated:
        return f"serves at most {point.highest:.0f} of {point.demand:.0f} tok/s per scheduler"
    if not point.meets_target and tpot_target is not None:
        return f"TPOT {1000 * point.tpot_seconds:.1f} ms, target {1000 * tpot_target:.0f} ms"
    if best.feasible and point.demand > utilization * point.capacity and best.capacity > point.capacity:
        return f"runs at {point.demand / point.capacity:.0%} of its capacity, planned are {utilization:.0%}"
    slower = point.tpot_seconds / best.tpot_seconds - 1
    if slower < 0:
        return f"TPOT {1000 * point.tpot_seconds:.1f} ms, {-slower:.1%} faster: within the margin of {MARGIN:.0%}"
    return f"TPOT {1000 * point.tpot_seconds:.1f} ms, {slower:.1%} slower"


def alternatives(
    choice: Choice, replicas: int, tpot_target: float | None, utilization: float
) -> tuple[Alternative, ...]:
    """Every variant that was weighed and lost."""
    return tuple(
        Alternative(
            f"{point.variant.shown} on {replicas} replicas",
            lost_because(choice, point, tpot_target, utilization),
            {
                "running_requests": round(point.running, 2),
                "tpot_seconds": round(point.tpot_seconds, 6),
                "capacity_tokens_per_second": round(point.capacity, 1),
            },
        )
        for variant, point in sorted(choice.points.items())
        if variant != choice.best.variant
    )
