"""Passive recalibration: what a live fleet does at steady moments, as calibration points. Pure; costs no extra load.

    state = observe(state, snapshot)               on every tick
    refined = refine(points, state)                now and then: points for `fit_profile`, and what has drifted

A pod's moment counts when its batch and draft length have stayed the same for longer than the window of its rates: then
batch and rate belong together (t = b AL / S). Moments are kept as means in cells of draft length and load, so the state
stays small and can live in a status (docs/design/0073).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossover.api.fleet import FleetSnapshot, PodObservation, PodPhase
from crossover.api.points import CalibrationPoint
from crossover.decide.profile import Profile, fit_profile
from crossover.decide.variant import OFF, Variant

STEADY_SECONDS = 45.0
"""Longer than the 30 s over which rates are taken."""
YOUNG_SECONDS = 90.0
"""A pod that became ready less than this ago still fills up."""
SAME_BATCH = 0.1
FEWEST_RUNNING = 2.0
"""Below this a batch says more about chance than about the machine."""
CELL = math.log(1.25)
FEWEST_MOMENTS = 6
"""Of a cell, before it counts."""
LEAST_ERROR = 0.02
"""Gauges lag and traffic is never quite even: no passive point is better than this."""
MOST_CELLS = 60
MEMORY = 200.0
"""A cell's mean forgets: older moments weigh no more than this many."""
DRIFT, SURE = 0.1, 3.0
"""A curve has drifted when it is off by this share, and by this many standard errors."""
LOWEST, HIGHEST = 0.5, 2.0
"""Bounds of the factor by which points that were not visited are moved."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Means over the moments of one variant at about one load."""

    variant: Variant
    moments: float
    running: float
    context_tokens: float | None
    acceptance_length: float | None
    log_step: float
    """Mean of ln(step seconds); of ln(seconds per token) where acceptance is unknown."""
    variance: float
    """Of ln(step seconds)."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One pod that has been steady since some time."""

    since: float
    variant: Variant
    running: float
    counted_at: float


@dataclass(frozen=True, slots=True)
class PassiveState:
    cells: tuple[Cell, ...] = ()
    watches: Mapping[str, Watch] = field(default_factory=dict)
    """By pod uid. Not kept over a restart: a pod is simply watched anew."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A curve that production has left: its steps take ``factor`` times as long as calibrated."""

    variant: Variant
    factor: float
    error: float
    """One standard error of ln(factor)."""


@dataclass(frozen=True, slots=True)
class Refined:
    points: tuple[CalibrationPoint, ...]
    """Calibrated points, moved where their curve has drifted, and one for every cell that was visited enough."""
    drifts: tuple[Drift, ...]
    moments: int


def observe(state: PassiveState, snapshot: FleetSnapshot) -> PassiveState:
    """One look. Nothing is learned during a rollout, from stale readings, or from pods that come or go."""
    if snapshot.rollout_in_progress:
        return replace(state, watches={})
    watches: dict[str, Watch] = {}
    cells = list(state.cells)
    for pod in snapshot.known:
        seen = _seen(pod, snapshot)
        if seen is None:
            continue
        variant, running = seen
        before = state.watches.get(pod.uid)
        if before is None or before.variant != variant or abs(running / before.running - 1) > SAME_BATCH:
            watches[pod.uid] = Watch(snapshot.at_seconds, variant, running, snapshot.at_seconds)
            continue
        if snapshot.at_seconds - before.counted_at >= STEADY_SECONDS:
            moment = _moment(pod, variant)
            cells = cells if moment is None else _added(cells, moment)
            before = replace(before, counted_at=snapshot.at_seconds, running=running)
        watches[pod.uid] = before
    return PassiveState(tuple(cells), watches)


def refine(points: Sequence[CalibrationPoint], state: PassiveState) -> Refined:
    """Raises `crossover.decide.profile.ProfileError` for points that make no profile."""
    profile = fit_profile(points)
    visited = [cell for cell in state.cells if cell.moments >= FEWEST_MOMENTS and cell.variant in profile.measured]
    drifts = tuple(_drifts(profile, visited))
    factors = {item.variant: min(HIGHEST, max(LOWEST, item.factor)) for item in drifts}
    spreads = {variant: _spread(found) for variant, found in deviations(profile, visited).items()}
    kept = [
        _doubted(moved(point, factors.get(variant, 1.0)), spreads.get(variant, 0.0))
        for point in points
        for variant in (Variant(point.draft_tokens, point.off),)
    ]
    live = [_point(cell) for cell in visited]
    return Refined((*kept, *live), drifts, round(sum(cell.moments for cell in state.cells)))


# -- moments -----------------------------------------------------------------------------------------------------------


def _seen(pod: PodObservation, snapshot: FleetSnapshot) -> tuple[Variant, float] | None:
    """(what it runs as, mean batch of its schedulers); None when this moment says nothing."""
    reading = pod.reading
    settled = pod.ready_at_seconds is not None and snapshot.at_seconds - pod.ready_at_seconds >= YOUNG_SECONDS
    if reading is None or pod.phase is not PodPhase.READY or not settled or not reading.schedulers:
        return None
    batches = [item.running_requests for item in reading.schedulers]
    known = [batch for batch in batches if batch is not None]
    if len(known) < len(batches) or sum(known) / len(known) < FEWEST_RUNNING:
        return None
    if snapshot.settings is not None and not snapshot.settings.enabled:
        return OFF, sum(known) / len(known)
    drafts = {item.draft_tokens for item in reading.schedulers}
    draft = next(iter(drafts))
    if len(drafts) > 1 or draft is None or abs(draft - round(draft)) > 0.1:
        return None
    return Variant(round(draft)), sum(known) / len(known)


def _moment(pod: PodObservation, variant: Variant) -> Cell | None:
    reading, rate = pod.reading, pod.output_tokens_per_second
    if reading is None or not rate or rate <= 0:
        return None
    ranks = len(reading.schedulers)
    running = sum(item.running_requests or 0.0 for item in reading.schedulers) / ranks
    length = 1.0 if not variant.draft_tokens else pod.acceptance_length
    tokens = [item.kv_tokens for item in reading.schedulers]
    told = [item for item in tokens if item]
    context = sum(told) / len(told) / running if len(told) == ranks else None
    return Cell(variant, 1.0, running, context, length, math.log(running * (length or 1.0) / (rate / ranks)), 0.0)


def _added(cells: Sequence[Cell], moment: Cell) -> list[Cell]:
    """Into the cell of its load, else a cell of its own; the least visited one makes room."""
    near = [
        cell
        for cell in cells
        if cell.variant == moment.variant
        and abs(math.log(cell.running / moment.running)) <= CELL / 2
        and (cell.acceptance_length is None) == (moment.acceptance_length is None)
    ]
    if not near:
        kept = sorted(cells, key=lambda cell: -cell.moments)[: MOST_CELLS - 1]
        return [*kept, moment]
    cell = min(near, key=lambda cell: abs(math.log(cell.running / moment.running)))
    weight = min(cell.moments, MEMORY)
    share = 1 / (weight + 1)
    step = moment.log_step - cell.log_step
    merged = Cell(
        cell.variant,
        cell.moments + 1,
        cell.running + share * (moment.running - cell.running),
        _blend(cell.context_tokens, moment.context_tokens, share),
        _blend(cell.acceptance_length, moment.acceptance_length, share),
        cell.log_step + share * step,
        (1 - share) * (cell.variance + share * step * step),
    )
    return [merged if item is cell else item for item in cells]


def _blend(old: float | None, new: float | None, share: float) -> float | None:
    if old is None or new is None:
        return new if old is None else old
    return old + share * (new - old)


# -- against the calibration -------------------------------------------------------------------------------------------


def _error(cell: Cell) -> float:
    spread = math.sqrt(cell.variance / max(1.0, min(cell.moments, MEMORY) - 1))
    return max(LEAST_ERROR, spread)


def _point(cell: Cell) -> CalibrationPoint:
    seconds = math.exp(cell.log_step)
    known = cell.acceptance_length is not None
    return CalibrationPoint(
        running_requests=cell.running,
        draft_tokens=cell.variant.draft_tokens,
        off=cell.variant.off,
        context_tokens=cell.context_tokens,
        step_seconds=seconds if known else None,
        output_tokens_per_second=cell.running * (cell.acceptance_length or 1.0) / seconds,
        acceptance_length=_possible(cell) if known else None,
        relative_error=_error(cell),
    )


def _possible(cell: Cell) -> float:
    return min(cell.variant.draft_tokens + 1.0, max(1.0, cell.acceptance_length or 1.0))


def deviations(profile: Profile, cells: Iterable[Cell]) -> dict[Variant, list[tuple[float, float]]]:
    """ln(live / calibrated) and its error, by cell of each variant."""
    by_variant: dict[Variant, list[tuple[float, float]]] = {}
    for cell in cells:
        curve = profile.curves[cell.variant]
        expected = profile.step_seconds(cell.variant, cell.running, cell.context_tokens)
        if cell.acceptance_length is None:
            expected /= curve.acceptance_length
        by_variant.setdefault(cell.variant, []).append((cell.log_step - math.log(expected), _error(cell)))
    return by_variant


def _spread(found: Sequence[tuple[float, float]]) -> float:
    """How much more the cells of a variant disagree than their errors allow: one factor does not describe them."""
    weight = sum(1 / error**2 for _, error in found)
    mean = sum(value / error**2 for value, error in found) / weight
    beyond = sum((value - mean) ** 2 - error**2 for value, error in found) / len(found)
    return math.sqrt(max(0.0, beyond))


def _doubted(point: CalibrationPoint, spread: float) -> CalibrationPoint:
    """Where the shape of a curve changed, a point that was only moved says less than one that was visited."""
    if spread == 0.0:
        return point
    return replace(point, relative_error=math.hypot(point.relative_error or LEAST_ERROR, spread))


def _drifts(profile: Profile, cells: Iterable[Cell]) -> Iterable[Drift]:
    """Weighted mean over the cells of each variant."""
    for variant, found in sorted(deviations(profile, cells).items()):
        weight = sum(1 / error**2 for _, error in found)
        mean = sum(value / error**2 for value, error in found) / weight
        error = math.sqrt(1 / weight)
        if abs(math.expm1(mean)) > DRIFT and abs(mean) > SURE * error:
            yield Drift(variant, math.exp(mean), error)


def moved(point: CalibrationPoint, factor: float) -> CalibrationPoint:
    """Its step time times ``factor``."""
    if factor == 1.0:
        return point
    rate, step = point.output_tokens_per_second, point.step_seconds
    return replace(
        point,
        step_seconds=step * factor if step is not None else None,
        output_tokens_per_second=rate / factor if rate is not None else None,
        relative_error=max(LEAST_ERROR, point.relative_error or 0.0),
    )


# -- to keep -----------------------------------------------------------------------------------------------------------


def to_json(state: PassiveState) -> list[dict[str, Any]]:
    """The cells, rounded: what has to survive a restart."""
    return [
        {
            "draftTokens": cell.variant.draft_tokens,
            "off": cell.variant.off,
            "moments": round(cell.moments),
            "running": round(cell.running, 2),
            "contextTokens": None if cell.context_tokens is None else round(cell.context_tokens),
            "acceptanceLength": None if cell.acceptance_length is None else round(cell.acceptance_length, 4),
            "logStep": round(cell.log_step, 5),
            "variance": round(cell.variance, 7),
        }
        for cell in state.cells
    ]


def from_json(cells: Iterable[Mapping[str, Any]]) -> PassiveState:
    return PassiveState(
        tuple(
            Cell(
                Variant(int(cell["draftTokens"]), bool(cell["off"])),
                float(cell["moments"]),
                float(cell["running"]),
                cell["contextTokens"],
                cell["acceptanceLength"],
                float(cell["logStep"]),
                float(cell["variance"]),
            )
            for cell in cells
        )
    )
