"""From a series of equal blocks to a mean: where the steady state begins, and how sure the mean is. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

FEWEST_BLOCKS = 6


@dataclass(frozen=True, slots=True)
class Steady:
    start: int
    """First block that counts."""
    mean: float
    relative_error: float
    """One standard error of the mean, correlation between neighbouring blocks included."""


def steady(blocks: Sequence[float]) -> Steady | None:
    """None while there are too few blocks.

    Start: the truncation with the least sum of squares about the mean of the rest, over the square of its length (MSER,
    White 1997); at most half is cut off.
    """
    count = len(blocks)
    if count < FEWEST_BLOCKS:
        return None
    start = min(range(count // 2 + 1), key=lambda cut: _squares(blocks[cut:]) / (count - cut) ** 2)
    rest = blocks[start:]
    mean = fmean(rest)
    if mean <= 0 or len(rest) < 3:
        return None
    variance = _squares(rest) / (len(rest) - 1)
    inflation = (1 + (lag := _correlation(rest))) / (1 - lag)
    return Steady(start, mean, math.sqrt(variance * inflation / len(rest)) / mean)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _correlation(values: Sequence[float]) -> float:
    """Of neighbours; negative counts as none, so that an error is never made smaller by it."""
    mean, total = fmean(values), _squares(values)
    if total <= 0:
        return 0.0
    products = sum((a - mean) * (b - mean) for a, b in pairwise(values))
    return min(0.8, max(0.0, products / total))
