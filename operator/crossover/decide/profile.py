"""The profile: what calibration measured, as curves that can be asked at any load, context and acceptance.

Units: running requests *per scheduler* (one data-parallel rank), seconds, tokens. A curve is step time t(b, kv); with
the acceptance length AL it gives output tokens/s S = b AL / t and time per output token TPOT = t / AL = b / S.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from crossover.api.points import CalibrationPoint
from crossover.decide.acceptance import shifted
from crossover.decide.curves import DEFAULT_ERROR, Point, Prior, best_spread, rising, smooth, straight_line
from crossover.decide.shape_of_steps import Sample, StepShape, fit
from crossover.decide.step_model import StepModel
from crossover.decide.variant import GATED, OFF, Variant

GRID_RATIO = 1.08
BEYOND = 4.0
"""The grid ends at this multiple of the largest measured load."""
MOST_KV = 0.9
"""Share of any measured step that KV reads may take."""
LITTLE_KNOWN = 0.1
"""Spread allowed around the prior where there are too few points to learn it."""


class ProfileError(ValueError):
    """Points that make no profile: which one and what to do."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One variant's step time over a grid of running requests."""

    variant: Variant
    running: tuple[float, ...]
    base_seconds: tuple[float, ...]
    """Step time without KV reads."""
    errors: tuple[float, ...]
    """Relative standard error of the step time."""
    kv_seconds_per_token: float
    acceptance_length: float
    """As calibrated. 1 where it was not measured: then only t / AL is known, and live acceptance cannot move it."""
    acceptance_known: bool
    measured: tuple[float, float]
    """Range of running requests that was measured; outside of it the curve is extrapolated."""
    points: int
    """0 = a stand-in for a zero that was not measured."""
    verified: float = 1.0
    """Tokens verified per request and step."""
    draft_steps: float = 0.0
    interpolated: bool = False
    """Nothing of it was measured: it was made from the draft lengths on both sides."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Curves of one server build on one hardware, with what was typical when they were measured."""

    curves: Mapping[Variant, Curve]
    context_tokens: float
    """Mean KV tokens per request in the calibration; 0 = not told."""
    limits: Mapping[Variant, float] = field(default_factory=dict)
    """Most running requests the engine admits as this variant, where known."""
    output_tokens_per_request: float | None = None
    """Of the calibrated workload."""
    source: str = "calibration"
    shape: StepShape | None = None
    spread: float = 0.0
    """How far points stray from the shape, as a share."""
    points: tuple[CalibrationPoint, ...] = ()
    """What it was fitted to."""

    @property
    def measured(self) -> tuple[Variant, ...]:
        """Without the stand-ins."""
        return tuple(variant for variant, curve in self.curves.items() if curve.points)

    def measured_rate(self, point: CalibrationPoint) -> float | None:
        """Output tokens/s of one of its points, as measured: S = b AL / t where the rate itself was not."""
        if point.output_tokens_per_second is not None or point.step_seconds is None:
            return point.output_tokens_per_second
        length = point.acceptance_length if point.draft_tokens else 1.0
        return point.running_requests * (length or 1.0) / point.step_seconds

    def acceptance(self, variant: Variant, shift: float = 0.0) -> float:
        curve = self.curves[variant]
        return (
            shifted(curve.acceptance_length, variant.draft_tokens, shift)
            if curve.acceptance_known
            else (curve.acceptance_length)
        )

    def step_seconds(self, variant: Variant, running: float, context_tokens: float | None = None) -> float:
        """t(b, kv) by interpolation; the last slope beyond the grid."""
        curve = self.curves[variant]
        context = self.context_tokens if context_tokens is None else context_tokens
        base = interpolated(curve.running, curve.base_seconds, running)
        return base + curve.kv_seconds_per_token * context * running

    def gain_error(self, variant: Variant, other: Variant, running: float) -> float:
        """Standard error of ln(t of one variant / t of another) at a batch and the calibrated context."""
        one, two = self.curves[variant], self.curves[other]
        own = math.hypot(interpolated(one.running, one.errors, running), interpolated(two.running, two.errors, running))
        if self.shape is None:
            return own
        kv = self.context_tokens * running
        first = self.shape.gradient(running, one.verified, kv, one.draft_steps)
        second = self.shape.gradient(running, two.verified, kv, two.draft_steps)
        return math.hypot(own, self.shape.error_along([a - b for a, b in zip(first, second, strict=True)]))

    def output_rate(self, variant: Variant, running: float, context_tokens: float | None = None) -> float:
        """S(b, K) in output tokens/s of one scheduler, at the calibrated acceptance."""
        return running * self.acceptance(variant) / self.step_seconds(variant, running, context_tokens)


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear; the first value before the first x, the last slope beyond the last."""
    if x <= xs[0]:
        return ys[0]
    low, high = 0, len(xs) - 1
    if x >= xs[high]:
        low = high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if xs[middle] <= x:
            low = middle
        else:
            high = middle
    return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low])


def fit_profile(
    points: Iterable[CalibrationPoint],
    *,
    prior: StepModel | None = None,
    limits: Mapping[Variant, float] | None = None,
    output_tokens_per_request: float | None = None,
    source: str = "calibration",
) -> Profile:
    """A profile from calibration points, in any order, repeats allowed. Raises `ProfileError`.

    The shape of step times is fitted to the points where there are enough, else ``prior`` (scaled to them), else a
    straight line between them. Points always win over the shape as far as their errors allow.
    """
    given = tuple(points)
    measured = [_read(point, number) for number, point in enumerate(given, start=1)]
    measured.sort(key=lambda item: (item.variant, item.sample.running, item.context, item.sample.seconds))
    if not measured:
        raise ProfileError("no calibration points: measure at least one draft length at two loads")
    contexts = [item.context for item in measured if item.context]
    context = fmean(contexts) if contexts else 0.0
    # What was interpolated tells nothing of the machine that its neighbours have not told.
    shape = fit([item.sample for item in measured if not item.interpolated])
    per_kv = shape.per_kv_token if shape is not None else (prior.kv_seconds(1.0) if prior is not None else 0.0)
    groups: dict[Variant, list[_Measured]] = {}
    for item in measured:
        groups.setdefault(item.variant, []).append(item)
    left_out = max(0.0, per_kv - _most_per_kv(groups.values()))
    per_kv -= left_out
    reduced = {variant: [_reduced(item, per_kv) for item in items] for variant, items in groups.items()}
    kept = left_out * context
    priors = {variant: _prior(variant, groups[variant], reduced[variant], shape, prior, kept) for variant in groups}
    enough = shape is not None
    seen = [v for v in groups if not all(item.interpolated for item in groups[v])]
    spread = best_spread([(reduced[v], priors[v]) for v in seen]) if enough else LITTLE_KNOWN
    grid = _grid(max(item.sample.running for item in measured))
    curves = {v: _curve(v, groups[v], reduced[v], priors[v], spread, grid, per_kv, context) for v in sorted(groups)}
    curves |= _stand_ins(curves, shape)
    return Profile(curves, context, dict(limits or {}), output_tokens_per_request, source, shape, spread, given)


def _stand_ins(curves: Mapping[Variant, Curve], shape: StepShape | None) -> dict[Variant, Curve]:
    """Where only one zero was measured, the other is the same curve, moved by what the shape says a gated engine's draft
    costs; and where neither was, both are the shape's. Unmeasured, so never part of a crossover that is shown."""
    found: dict[Variant, Curve] = {}
    for zero, other in ((OFF, GATED), (GATED, OFF)):
        model = curves.get(other) or next(iter(curves.values()))
        if zero in curves or (other not in curves and shape is None):
            continue
        steps = 0.0 if zero.off else 1.0
        seconds = model.base_seconds
        if shape is not None:
            there = [shape.seconds(b, model.verified, 0.0, model.draft_steps) for b in model.running]
            here = [shape.seconds(b, 1.0, 0.0, steps) for b in model.running]
            seconds = tuple(t * h / m for t, h, m in zip(model.base_seconds, here, there, strict=True))
        found[zero] = replace(
            model,
            variant=zero,
            base_seconds=tuple(rising(seconds)),
            acceptance_length=1.0,
            acceptance_known=True,
            points=0,
            verified=1.0,
            draft_steps=steps,
        )
    return found


# -- from points to samples --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    variant: Variant
    sample: Sample
    context: float
    acceptance: float | None
    error: float
    acceptance_error: float
    interpolated: bool = False


def _read(point: CalibrationPoint, number: int) -> _Measured:
    """One point checked and completed: S = b AL / t gives whichever of step time and rate is missing."""
    where = f"point {number} ({point.running_requests:g} running, draft {point.draft_tokens})"
    if not (math.isfinite(point.running_requests) and point.running_requests > 0):
        raise ProfileError(f"{where}: runningRequests must be above 0")
    if point.draft_tokens < 0 or (point.off and point.draft_tokens):
        raise ProfileError(
            f"{where}: draftTokens must be 0 or more, and 0 where the process was started without drafts"
        )
    acceptance = 1.0 if point.draft_tokens == 0 else point.acceptance_length
    if acceptance is None and point.acceptance_by_position:
        acceptance = 1 + sum(point.acceptance_by_position)
    if acceptance is not None and not 1 <= acceptance <= point.draft_tokens + 1 + 1e-9:
        raise ProfileError(
            f"{where}: acceptanceLength {acceptance:g} must lie between 1 and draftTokens + 1 (the bonus token counts)"
        )
    seconds = point.step_seconds
    if seconds is None and point.output_tokens_per_second:
        seconds = point.running_requests * (acceptance or 1.0) / point.output_tokens_per_second
    if seconds is None or not (math.isfinite(seconds) and seconds > 0):
        raise ProfileError(f"{where}: needs stepSeconds or outputTokensPerSecond above 0")
    if acceptance is None and point.step_seconds is not None and point.output_tokens_per_second:
        acceptance = point.output_tokens_per_second * point.step_seconds / point.running_requests
    variant = Variant(point.draft_tokens, point.off)
    verified = 1 if point.draft_tokens == 0 else (point.verified_tokens or point.draft_tokens + 1)
    context = point.context_tokens or 0.0
    steps = 0.0 if point.off else float(max(point.draft_tokens, 1))
    error = point.relative_error if point.relative_error is not None else DEFAULT_ERROR
    weight = 1 / max(error, 1e-3) ** 2
    sample = Sample(point.running_requests, verified, context * point.running_requests, steps, seconds, weight)
    luck = point.acceptance_error if point.acceptance_error is not None else error
    return _Measured(variant, sample, context, acceptance, error, luck, point.interpolated)


def _reduced(item: _Measured, per_kv: float) -> Point:
    """The KV reads taken out."""
    return Point(item.sample.running, item.sample.seconds - per_kv * item.sample.kv_tokens, item.error)


def _most_per_kv(groups: Iterable[Sequence[_Measured]]) -> float:
    """Most seconds per KV token under which what is left of every measured step still rises with the load, within the
    points' errors. Points of one context cannot tell KV reads from whatever else grows with the load; more than this would
    bend curves away from their points."""
    most = math.inf
    for items in groups:
        for low, item in enumerate(items):
            if item.sample.kv_tokens:
                most = min(most, MOST_KV * item.sample.seconds / item.sample.kv_tokens)
            for other in items[low + 1 :]:
                tokens = other.sample.kv_tokens - item.sample.kv_tokens
                if tokens <= 0:
                    continue
                slack = 2 * math.hypot(item.error * item.sample.seconds, other.error * other.sample.seconds)
                most = min(most, max(0.0, other.sample.seconds - item.sample.seconds + slack) / tokens)
    return most


def _prior(
    variant: Variant,
    items: Sequence[_Measured],
    points: Sequence[Point],
    shape: StepShape | None,
    prior: StepModel | None,
    kept: float,
) -> Prior:
    """``kept``: seconds per running request of KV reads that stay in the curves."""
    sample = items[0].sample
    if shape is not None:
        fitted = shape
        return lambda running: fitted.seconds(running, sample.verified, 0.0, sample.draft_steps) + kept * running
    if prior is None:
        return straight_line(points)

    def raw(running: float) -> float:
        verified = int(sample.verified) if variant.draft_tokens else None
        return prior.step_seconds(running, variant.draft_tokens, 0.0, off=variant.off, verified_tokens=verified)

    scale = math.exp(fmean(math.log(point.seconds / raw(point.running)) for point in points))
    return lambda running: scale * raw(running)


def _grid(largest: float) -> tuple[float, ...]:
    grid, last = [1.0], max(BEYOND * largest, 64.0)
    while grid[-1] < last:
        grid.append(max(grid[-1] + 1.0, round(grid[-1] * GRID_RATIO)))
    return tuple(grid)


def _curve(
    variant: Variant,
    items: Sequence[_Measured],
    points: Sequence[Point],
    prior: Prior,
    spread: float,
    grid: tuple[float, ...],
    per_kv: float,
    context: float,
) -> Curve:
    smoothed = smooth(points, prior, spread, grid, per_kv * context)
    told = [
        (item.acceptance, 1 / max(item.acceptance_error, 1e-3) ** 2) for item in items if item.acceptance is not None
    ]
    known = len(told) == len(items)
    weight = sum(share for _, share in told)
    length = sum(value * share for value, share in told) / weight if known else 1.0
    loads = [point.running for point in points]
    return Curve(
        variant,
        grid,
        smoothed.seconds,
        smoothed.errors,
        per_kv,
        length if variant != OFF else 1.0,
        known,
        (min(loads), max(loads)),
        len(points),
        items[0].sample.verified,
        items[0].sample.draft_steps,
        all(item.interpolated for item in items),
    )
