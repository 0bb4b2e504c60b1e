"""One step-time curve from measured points: what the shape predicts, moved to the points as far as their noise lets it.

The ratio of measured to predicted step time is smoothed over ln b by Gaussian-process regression with a Matern-3/2 kernel:
neighbouring points average out their noise, beyond the last point the curve falls back to the shape, and its variance is the
uncertainty of the curve. The spread tau is chosen by marginal likelihood over all curves of a profile: small where the shape
explains the points, large where it does not (docs/design/0042).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossover.decide.linear import Matrix, backward, cholesky, forward

LENGTH = 1.0
"""Correlation length in ln(running requests): a factor e of load."""
SPREADS = (0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5)
"""Candidates for tau, as a share of the step time."""
DEFAULT_ERROR = 0.01
"""Relative standard error of a point that does not say its own."""

Prior = Callable[[float], float]
"""Running requests -> predicted step seconds without KV reads."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point of one curve, KV reads already taken out."""

    running: float
    seconds: float
    error: float


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Over a grid of running requests: step seconds without KV reads, and their relative standard error."""

    seconds: tuple[float, ...]
    errors: tuple[float, ...]


def smooth(
    points: Sequence[Point], prior: Prior, spread: float, grid: Sequence[float], kv_seconds: float = 0.0
) -> Smoothed:
    """The curve on ``grid``. ``points`` is not empty. ``kv_seconds``: KV reads per running request where the points were
    measured; together with them the curve never falls with load."""
    places = [math.log(point.running) for point in points]
    ratios = [math.log(point.seconds / prior(point.running)) for point in points]
    lower = _factor(points, places, spread)
    pulls = backward(lower, forward(lower, ratios))
    seconds, errors = [], []
    for running in grid:
        kernel = [_kernel(math.log(running), place, spread) for place in places]
        mean = sum(k * w for k, w in zip(kernel, pulls, strict=True))
        explained = sum(value * value for value in forward(lower, kernel))
        seconds.append(prior(running) * math.exp(mean))
        errors.append(math.sqrt(max(0.0, spread * spread - explained)))
    weights = [1 / max(error, 1e-4) ** 2 for error in errors]
    whole = level([base + kv_seconds * running for base, running in zip(seconds, grid, strict=True)], weights)
    base_seconds = [total - kv_seconds * running for total, running in zip(whole, grid, strict=True)]
    return Smoothed(tuple(base_seconds), tuple(errors))


def best_spread(curves: Sequence[tuple[Sequence[Point], Prior]]) -> float:
    """The tau under which the points of all curves are most likely."""
    return max(SPREADS, key=lambda spread: sum(_likelihood(points, prior, spread) for points, prior in curves))


def _likelihood(points: Sequence[Point], prior: Prior, spread: float) -> float:
    """Log marginal likelihood up to a constant."""
    places = [math.log(point.running) for point in points]
    ratios = [math.log(point.seconds / prior(point.running)) for point in points]
    lower = _factor(points, places, spread)
    white = forward(lower, ratios)
    return -0.5 * sum(value * value for value in white) - sum(math.log(lower[i][i]) for i in range(len(lower)))


def _factor(points: Sequence[Point], places: Sequence[float], spread: float) -> Matrix:
    matrix = [
        [_kernel(a, b, spread) + (max(points[i].error, 1e-4) ** 2 if i == j else 0.0) for j, b in enumerate(places)]
        for i, a in enumerate(places)
    ]
    lower = cholesky(matrix)
    assert lower is not None, "a Matern kernel with noise is positive definite"
    return lower


def _kernel(a: float, b: float, spread: float) -> float:
    distance = math.sqrt(3) * abs(a - b) / LENGTH
    return spread * spread * (1 + distance) * math.exp(-distance)


def rising(values: Sequence[float]) -> list[float]:
    """Running maximum: a larger batch never takes a shorter step."""
    highest, kept = -math.inf, []
    for value in values:
        highest = max(highest, value)
        kept.append(highest)
    return kept


def level(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that fall are averaged (pool adjacent violators). A running maximum
    would follow the noise upwards."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, sure, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, mass, size = blocks.pop()
            mean, sure, count = (before * mass + mean * sure) / (mass + sure), mass + sure, size + count
        blocks.append((mean, sure, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


def straight_line(points: Sequence[Point]) -> Prior:
    """Piecewise linear through few points (means at equal load, made monotone), the last slope beyond them."""
    sums: dict[float, list[float]] = {}
    for point in points:
        sums.setdefault(point.running, []).append(point.seconds)
    xs = sorted(sums)
    ys = rising([sum(sums[x]) / len(sums[x]) for x in xs])

    def seconds(running: float) -> float:
        if len(xs) == 1 or running <= xs[0]:
            return ys[0]
        right = next((i for i, x in enumerate(xs) if x >= running), len(xs) - 1)
        slope = (ys[right] - ys[right - 1]) / (xs[right] - xs[right - 1])
        return ys[right] + slope * (running - xs[right])

    return seconds
