"""The shape of step times: the step-time model's terms, fitted to the measured points of one server.

    t = A h(n) + t0 + s kv + steps (D h(b) + d) + o b [n > b]        h(x) = sqrt(1 + (x / n*)^2)

with n = b x verified tokens per request; target and draft share the knee n*, which is the hardware's.

Same terms as `crossover.decide.step_model`, but no datasheet: for each knee n* the rest is linear and non-negative, so the
fit is exact least squares on a grid of knees. It carries strength between draft lengths and beyond the measured range;
where points say otherwise, the points win (`crossover.decide.curves`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.decide.linear import cholesky, forward, non_negative

FEWEST_POINTS = 6
LOWEST_KNEE, HIGHEST_KNEE = 8.0, 4096.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured step time, in seconds."""

    running: float
    verified: float
    """Tokens verified per request and step."""
    kv_tokens: float
    draft_steps: float
    """0 without speculation; 1 for a gated engine, which may still run its draft once."""
    seconds: float
    weight: float = 1.0
    """1 / relative variance, up to a common factor."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Fitted terms, seconds."""

    knee: float
    weights: float
    overhead: float
    per_kv_token: float
    draft_weights: float
    per_draft_step: float
    per_request: float
    relative_error: float
    """Root mean square over the points, as a share."""
    least: float = 0.0
    """No step is taken to be shorter, whatever the terms say far from the points."""
    factor: tuple[tuple[float, ...], ...] = ()
    """Cholesky factor of the information about the terms and ln(knee): how well the points determine them."""

    def seconds(self, running: float, verified: float, kv_tokens: float, draft_steps: float) -> float:
        gemm = self.weights * _bend(running * verified, self.knee)
        drafts = draft_steps * (self.draft_weights * _bend(running, self.knee) + self.per_draft_step)
        extra = self.per_request * running if verified > 1 else 0.0
        return max(self.least, gemm + self.overhead + self.per_kv_token * kv_tokens + drafts + extra)

    def gradient(self, running: float, verified: float, kv_tokens: float, draft_steps: float) -> list[float]:
        """Derivatives of ln t by each term and by ln(knee)."""
        total = self.seconds(running, verified, kv_tokens, draft_steps)
        step = 0.02
        moved = replace(self, knee=self.knee * math.exp(step)).seconds(running, verified, kv_tokens, draft_steps)
        terms = _terms(running, verified, kv_tokens, draft_steps, self.knee)
        return [*(value / total for value in terms), (moved - total) / step / total]

    def error_along(self, direction: Sequence[float]) -> float:
        """Standard error of a combination of terms: sqrt(g' C g)."""
        if not self.factor:
            return 0.0
        solved = forward([list(row) for row in self.factor], direction)
        return math.sqrt(sum(value * value for value in solved))


def _terms(running: float, verified: float, kv_tokens: float, draft_steps: float, knee: float) -> list[float]:
    """What each coefficient is multiplied with."""
    return [
        _bend(running * verified, knee),
        1.0,
        kv_tokens,
        draft_steps * _bend(running, knee),
        draft_steps,
        running if verified > 1 else 0.0,
    ]


def _bend(tokens: float, knee: float) -> float:
    return math.sqrt(1 + (tokens / knee) ** 2)


def fit(samples: Sequence[Sample]) -> StepShape | None:
    """Weighted least squares of relative errors; None for fewer points than make sense."""
    if len(samples) < FEWEST_POINTS or len({sample.running for sample in samples}) < 2:
        return None
    knees = [LOWEST_KNEE * (HIGHEST_KNEE / LOWEST_KNEE) ** (step / 24) for step in range(25)]
    best = min((_at_knee(samples, knee) for knee in knees), key=lambda shape: shape.relative_error)
    near = [best.knee * 1.3 ** ((step - 6) / 6) for step in range(13)]
    best = min((_at_knee(samples, knee) for knee in near), key=lambda shape: shape.relative_error)
    return replace(best, factor=_information(samples, best))


def _information(samples: Sequence[Sample], shape: StepShape) -> tuple[tuple[float, ...], ...]:
    """Cholesky factor of sum w g g', scaled down where the residuals are larger than the points' own errors say. A
    faint prior (each term known to within a few times the whole step) keeps it invertible."""
    gradients = [shape.gradient(s.running, s.verified, s.kv_tokens, s.draft_steps) for s in samples]
    size = len(gradients[0])
    spare = max(1, len(samples) - size)
    misfit = shape.relative_error**2 * sum(s.weight for s in samples) / spare
    scale = 1 / max(1.0, misfit)
    matrix = [
        [scale * sum(s.weight * g[i] * g[j] for s, g in zip(samples, gradients, strict=True)) for j in range(size)]
        for i in range(size)
    ]
    for i in range(size):
        matrix[i][i] += 0.1 * max(g[i] for g in gradients) ** 2 + 1e-12
    lower = cholesky(matrix)
    return tuple(tuple(row) for row in lower) if lower is not None else ()


def _at_knee(samples: Sequence[Sample], knee: float) -> StepShape:
    scales = [math.sqrt(sample.weight) / sample.seconds for sample in samples]
    rows = [_terms(s.running, s.verified, s.kv_tokens, s.draft_steps, knee) for s in samples]
    columns = [[row[i] * scale for row, scale in zip(rows, scales, strict=True)] for i in range(len(rows[0]))]
    target = [sample.seconds * scale for sample, scale in zip(samples, scales, strict=True)]
    (weights, overhead, per_kv, drafts, per_step, per_request), rest = non_negative(columns, target)
    error = math.sqrt(rest / sum(sample.weight for sample in samples))
    least = 0.05 * min(sample.seconds for sample in samples)
    return StepShape(knee, weights, overhead, per_kv, drafts, per_step, per_request, error, least)
