"""What outcomes teach: measured step time as a share of the calibrated one, per variant, bounded and shown.

While the fleet is steady (no pod comes or goes, one variant in force, enough requests), TPOT measured as batch over
served rate is compared with the profile's TPOT at that batch. The ratio is averaged for minutes; the factor in use moves
only when the average has left it by more than `STEP`, so that status changes rarely (docs/design/0046).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from crossover.api.decision import Memory
from crossover.api.fleet import FleetSnapshot
from crossover.decide.demand import FAST, MEDIUM
from crossover.decide.guard import frozen
from crossover.decide.load import FleetLoad
from crossover.decide.operating import Conditions, Rates, correction_of
from crossover.decide.variant import Variant

LOWEST, HIGHEST = 0.4, 2.5
"""Bounds of a factor: beyond them the calibration is of another machine."""
STEP, FINE_STEP = 0.04, 0.015
"""A factor in use moves when the average has left it by this much; by the finer step only after `FINE_SECONDS`."""
FINE_SECONDS = 900.0
STILL = 0.1
"""Short and medium demand within this share of each other: the load moves so slowly that batch and rate belong together."""
DRIFT = 0.15
"""From here on a curve counts as drifted and is shown."""
AVERAGE_SECONDS = 90.0
FAIR_SECONDS = 30.0
"""Shortest average that is better than nothing."""
SETTLE_SECONDS = 60.0
"""After pods or variant changed; twice the window of the served rate."""
FEWEST_RUNNING = 2.0
"""Mean batch per scheduler below which TPOT says more about noise than about the machine."""
STEADY_SINCE, STEADY_VARIANT, RATIO, RATIO_AT, RATIO_WEIGHT = (
    "steady_since_seconds",
    "steady_variant",
    "learned_log_ratio",
    "learned_at_seconds",
    "learned_seconds",
)


@dataclass(frozen=True, slots=True)
class Drift:
    """A curve that outcomes have moved far from its calibration."""

    variant_name: str
    factor: float

    @property
    def shown(self) -> str:
        """``"draft-3 steps take 22 % longer than calibrated"``."""
        how = "longer" if self.factor > 1 else "less"
        return f"{self.variant_name} steps take {abs(self.factor - 1):.0%} {how} than calibrated"


def learn(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    memory: Memory,
    rates: Rates | None,
    variant: Variant | None,
    conditions: Conditions,
    served: float | None,
) -> Memory:
    """One comparison. ``rates``: the variant in force, correction included; ``served``: output tokens/s of the fleet."""
    seen = dict(memory.observations)
    now = snapshot.at_seconds
    steady = (
        rates is not None
        and variant is not None
        and served is not None
        and served > 0
        and frozen(snapshot, load) is None
        and load.unknown == 0
        and load.running_per_scheduler is not None
        and load.running_per_scheduler >= FEWEST_RUNNING
        and abs(seen.get(FAST, 0.0) - seen.get(MEDIUM, 0.0)) <= STILL * seen.get(MEDIUM, 0.0)
    )
    place = _number(variant) if variant is not None else math.nan
    if not steady or seen.get(STEADY_VARIANT) != place:
        for name in (RATIO, RATIO_AT, RATIO_WEIGHT):
            seen.pop(name, None)
        if steady:
            seen[STEADY_SINCE], seen[STEADY_VARIANT] = now, place
        else:
            seen.pop(STEADY_SINCE, None)
            seen.pop(STEADY_VARIANT, None)
        return replace(memory, observations=seen)
    assert rates is not None
    assert variant is not None
    assert served is not None
    assert load.running_per_scheduler is not None
    if now - seen[STEADY_SINCE] < SETTLE_SECONDS:
        return memory
    batch = load.running_per_scheduler
    measured = batch * load.schedulers / served
    in_use = correction_of(conditions.correction, variant)
    sample = math.log(measured / rates.tpot(batch) * in_use)
    _average(seen, sample, now)
    memory = replace(memory, observations=seen)
    if seen[RATIO_WEIGHT] < AVERAGE_SECONDS:
        return memory
    return _applied(memory, variant, math.exp(seen[RATIO]), in_use, seen[RATIO_WEIGHT] >= FINE_SECONDS)


def _average(seen: dict[str, float], sample: float, now: float) -> None:
    seconds = min(60.0, max(0.0, now - seen.get(RATIO_AT, now)))
    before = seen.get(RATIO)
    weight = seen.get(RATIO_WEIGHT, 0.0)
    horizon = min(AVERAGE_SECONDS, weight + seconds) or 1.0
    seen[RATIO] = sample if before is None else before + (sample - before) * (1 - math.exp(-seconds / horizon))
    seen[RATIO_AT], seen[RATIO_WEIGHT] = now, weight + seconds


def _applied(memory: Memory, variant: Variant, ratio: float, in_use: float, is_sure: bool) -> Memory:
    """A variant that was measured gets a factor of its own, even 1: from then on others teach it nothing."""
    bounded = min(HIGHEST, max(LOWEST, ratio))
    known = variant.name in memory.correction
    if known and abs(bounded / in_use - 1) <= (FINE_STEP if is_sure else STEP):
        return memory
    factor = 1.0 if not known and abs(bounded - 1) <= STEP else round(bounded, 2)
    if memory.correction.get(variant.name) == factor:
        return memory
    return replace(memory, correction={**memory.correction, variant.name: factor})


def remember_present(memory: Memory, variant: Variant | None) -> Memory:
    """Before a variant is left: what is known of it so far gets a factor of its own, so that the next one's deviation is
    not taken for the machine's."""
    if (
        variant is None
        or variant.name in memory.correction
        or memory.observations.get(RATIO_WEIGHT, 0.0) < FAIR_SECONDS
    ):
        return memory
    if memory.observations.get(STEADY_VARIANT) != _number(variant):
        return memory
    return _applied(memory, variant, math.exp(memory.observations[RATIO]), 1.0, False)


def is_settled(memory: Memory, now: float) -> bool:
    """The fleet has been steady for long enough that its batch and its rate belong together."""
    since = memory.observations.get(STEADY_SINCE)
    return since is not None and now - since >= SETTLE_SECONDS


def drifts(memory: Memory) -> tuple[Drift, ...]:
    """Curves far from their calibration, the farthest first."""
    found = [Drift(name, factor) for name, factor in memory.correction.items() if abs(factor - 1) > DRIFT]
    return tuple(sorted(found, key=lambda item: -abs(math.log(item.factor))))


def _number(variant: Variant) -> float:
    return -1.0 if variant.off else float(variant.draft_tokens)
