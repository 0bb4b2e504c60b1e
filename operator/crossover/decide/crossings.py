"""The crossover: every load at which a draft length stops or begins to pay, with confidence.

"Never stops paying" and "never pays" are results, not failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crossover.decide.operating import Conditions, Rates
from crossover.decide.profile import Profile
from crossover.decide.variant import Variant

CONFIDENCE = 1.96
"""Standard errors either side: 95 %."""


class Verdict(StrEnum):
    CROSSES = "Crosses"
    ALWAYS_PAYS = "AlwaysPays"
    NEVER_PAYS = "NeverPays"


@dataclass(frozen=True, slots=True)
class Crossing:
    """One load at which S(b, K) = S(b, 0)."""

    running_requests: float
    low: float
    high: float
    """95 % interval; it ends where the measured range ends."""
    pays_below: bool
    """True when speculation pays below and costs above, the usual direction."""

    @property
    def shown(self) -> str:
        """``"38 (35-42)"``."""
        return f"{self.running_requests:.0f} ({self.low:.0f}-{self.high:.0f})"


@dataclass(frozen=True, slots=True)
class Crossover:
    """One draft length against one zero, over the range in which both were measured."""

    variant: Variant
    against: Variant
    verdict: Verdict
    crossings: tuple[Crossing, ...]
    measured: tuple[float, float]
    gain_at_low: float
    """S(K) / S(0) - 1 at the low end of the range, at the high end."""
    gain_at_high: float
    interpolated: bool = False
    """The draft length was not measured: its curve was made from those on both sides."""

    @property
    def shown(self) -> str:
        return f"{self._places}{', interpolated' if self.interpolated else ''}"

    @property
    def _places(self) -> str:
        if self.crossings:
            return ", ".join(crossing.shown for crossing in self.crossings)
        low, high = self.measured
        if self.verdict is Verdict.ALWAYS_PAYS:
            return f"none up to {high:.0f}"
        return f"never pays from {low:.0f} to {high:.0f}"


def crossovers(profile: Profile, conditions: Conditions | None = None) -> tuple[Crossover, ...]:
    """Every draft length against every zero that was measured."""
    under = conditions or Conditions(profile.context_tokens)
    rates = {variant: Rates.of(profile, variant, under) for variant in profile.measured}
    return tuple(
        between(profile, rates[variant], rates[zero])
        for variant in rates
        if variant.draft_tokens
        for zero in rates
        if not zero.draft_tokens
    )


def between(profile: Profile, speculating: Rates, zero: Rates) -> Crossover:
    low = max(speculating.measured[0], zero.measured[0])
    high = min(speculating.measured[1], zero.measured[1])
    batches = [low, *(b for b in speculating.running if low < b < high), high] if low < high else [low]
    gains = [math.log(zero.tpot(b) / speculating.tpot(b)) for b in batches]
    errors = [profile.gain_error(speculating.variant, zero.variant, b) for b in batches]
    found = [
        _crossing(batches, gains, errors, i)
        for i in range(len(batches) - 1)
        if gains[i] != 0 and (gains[i] > 0) != (gains[i + 1] > 0)
    ]
    crossings = tuple(item for item in found if item is not None)
    one_sided = Verdict.ALWAYS_PAYS if gains[0] > 0 else Verdict.NEVER_PAYS
    verdict = Verdict.CROSSES if crossings else one_sided
    return Crossover(
        speculating.variant,
        zero.variant,
        verdict,
        crossings,
        (low, high),
        math.expm1(gains[0]),
        math.expm1(gains[-1]),
        any(profile.curves[item.variant].interpolated for item in (speculating, zero)),
    )


def _crossing(batches: list[float], gains: list[float], errors: list[float], i: int) -> Crossing | None:
    """By interpolation in ln b, with the range around it in which the gain is not told from zero."""
    left, right = math.log(batches[i]), math.log(batches[i + 1])
    place = math.exp(left + (right - left) * gains[i] / (gains[i] - gains[i + 1]))
    first = next((j for j in range(i, -1, -1) if abs(gains[j]) > CONFIDENCE * errors[j]), None)
    last = next((j for j in range(i + 1, len(gains)) if abs(gains[j]) > CONFIDENCE * errors[j]), None)
    low = batches[0] if first is None else _edge(batches, gains, errors, first, i, place)
    high = batches[-1] if last is None else _edge(batches, gains, errors, last, i + 1, place)
    return Crossing(place, min(low, place), max(high, place), gains[i] > 0)


def _edge(batches: list[float], gains: list[float], errors: list[float], clear: int, near: int, place: float) -> float:
    """Where |gain| falls below its uncertainty, between a load where it is clear and the one next to the crossing."""
    step = 1 if near >= clear else -1
    beside = clear + step
    surplus = abs(gains[clear]) - CONFIDENCE * errors[clear]
    inside = (near - clear) * step >= 1
    there = batches[beside] if inside else place
    lack = abs(abs(gains[beside]) - CONFIDENCE * errors[beside]) if inside else CONFIDENCE * errors[clear]
    share = surplus / (surplus + lack) if surplus + lack > 0 else 0.0
    return math.exp(math.log(batches[clear]) + share * (math.log(there) - math.log(batches[clear])))


def crossover_document(item: Crossover) -> dict[str, Any]:
    """For the `--json` of every command that shows crossovers."""
    return {
        "draft_tokens": item.variant.draft_tokens,
        "against": item.against.name,
        "verdict": str(item.verdict),
        "crossings": [
            {
                "running_requests": crossing.running_requests,
                "low": crossing.low,
                "high": crossing.high,
                "pays_below": crossing.pays_below,
            }
            for crossing in item.crossings
        ],
        "measured_running_requests": list(item.measured),
        "gain_at_lowest": item.gain_at_low,
        "gain_at_highest": item.gain_at_high,
        "interpolated": item.interpolated,
    }
