"""From points to an answer: curves, crossovers, capacity, the schedule in the engine's own words, one line that says it.

Pure; the one place where a calibration's outcome is put together, whoever measured it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from crossover.api.fleet import Capability
from crossover.api.points import CalibrationPoint
from crossover.decide.crossings import Crossover, Verdict, crossover_document, crossovers
from crossover.decide.operating import Conditions, Rates, all_rates, best_schedule
from crossover.decide.profile import Profile, fit_profile
from crossover.decide.schedule import Schedule, describe
from crossover.decide.tables import read_points, rows_of, write_points
from crossover.decide.variant import GATED, OFF, Variant
from crossover.engines import ENGINES
from crossover.engines.contract import ConfigFile, Refusal

__all__ = [
    "CalibrationResult",
    "Capacity",
    "from_csv",
    "from_json",
    "schedule_inside",
    "summarise",
    "to_csv",
    "to_json",
]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one scheduler that runs as ``variant``."""

    variant: Variant
    tokens_per_second: float
    """Most output tokens/s within TPOT target, limit and KV; 0 = no batch meets the target."""
    running_requests: float
    """The batch that gives it."""
    time_per_output_token_seconds: float
    extrapolated: bool
    """That batch lies beyond what was measured."""


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    points: tuple[CalibrationPoint, ...]
    profile: Profile
    conditions: Conditions
    crossovers: tuple[Crossover, ...]
    """Every draft length against every zero that was measured."""
    capacities: tuple[Capacity, ...]
    schedule: Schedule
    """(running requests from, draft length) inside of a speculating engine; empty = no draft length was measured."""
    rendered: ConfigFile | str | None
    """The schedule in the engine's dialect."""
    refusal: str | None
    """Why this engine cannot take it, where it cannot."""
    zero_is_assumed: bool
    """The schedule's 0 was not measured inside the engine; it is taken from the process without speculation."""
    verdict: str
    """One line for a person."""


def summarise(
    points: Iterable[CalibrationPoint],
    *,
    capability: Capability | None = None,
    limits: Mapping[Variant, float] | None = None,
    kv_capacity_tokens: float | None = None,
    tpot_seconds: float | None = None,
    output_tokens_per_request: float | None = None,
    source: str = "calibration",
) -> CalibrationResult:
    """Everything that points say. Raises `crossover.decide.profile.ProfileError`.

    ``capability``: of the speculating server; None = the schedule is not rendered. ``limits``: running requests each
    variant's server admits.
    """
    kept = tuple(points)
    profile = fit_profile(kept, limits=limits, output_tokens_per_request=output_tokens_per_request, source=source)
    conditions = Conditions(profile.context_tokens, kv_capacity_tokens=kv_capacity_tokens, tpot_seconds=tpot_seconds)
    rates = all_rates(profile, profile.curves, conditions)
    found = crossovers(profile, conditions)
    schedule, assumed = schedule_inside(profile, rates, capability)
    rendered, refusal = _rendered(schedule, capability)
    return CalibrationResult(
        kept,
        profile,
        conditions,
        found,
        tuple(_capacity(rates[variant]) for variant in profile.measured),
        schedule,
        rendered,
        refusal,
        assumed,
        _verdict(profile, rates, found, schedule),
    )


def schedule_inside(
    profile: Profile, rates: Mapping[Variant, Rates], capability: Capability | None = None
) -> tuple[Schedule, bool]:
    """(best draft length at every batch inside of the engine, whether its zero was not measured there)."""
    drafts = {variant: rates[variant] for variant in profile.measured if variant.draft_tokens}
    if not drafts:
        return (), False
    zero_allowed = capability is None or capability.zero_is_safe is not False
    if zero_allowed and GATED in rates and (GATED in profile.measured or OFF in profile.measured):
        inside = {**drafts, GATED: rates[GATED]}
        schedule = best_schedule(inside)
        assumed = GATED not in profile.measured and any(draft == 0 for _, draft in schedule)
        return schedule, assumed
    return best_schedule(drafts), False


def _rendered(schedule: Schedule, capability: Capability | None) -> tuple[ConfigFile | str | None, str | None]:
    if capability is None or not schedule:
        return None, None
    if capability.schedule_dialect is None:
        return None, capability.schedule_refusal
    try:
        return ENGINES[capability.engine].render(schedule, capability), None
    except Refusal as refused:
        return None, f"{refused.message} {refused.fix}"


def _capacity(rates: Rates) -> Capacity:
    batch = rates.batch_at(rates.capacity) if rates.capacity > 0 else 0.0
    running = batch if batch is not None else rates.limit
    return Capacity(rates.variant, rates.capacity, running, rates.tpot(running), running > 1.05 * rates.measured[1])


# -- the one line ------------------------------------------------------------------------------------------------------


def _verdict(profile: Profile, rates: Mapping[Variant, Rates], found: Sequence[Crossover], schedule: Schedule) -> str:
    drafts = [variant for variant in profile.measured if variant.draft_tokens]
    if not drafts:
        return "No draft length was measured: nothing to compare. Measure a server that speculates."
    if not found:
        return "No zero was measured: nothing to compare with. Measure the same model without speculation."
    zero = OFF if OFF in profile.measured else GATED
    against = [item for item in found if item.against == zero]
    if len(against) == 1:
        return _of_one(against[0])
    if all(item.verdict is Verdict.NEVER_PAYS for item in against):
        low, high = _range(against)
        return (
            f"No draft length pays at any load from {low:.0f} to {high:.0f} running requests: run without speculation."
        )
    parts = "; ".join(f"draft {item.variant.draft_tokens} {_short(item)}" for item in against)
    return f"Best inside the engine: {describe(schedule)} (against {zero.shown}: {parts})."


def _of_one(item: Crossover) -> str:
    low, high = item.measured
    name = f"Draft {item.variant.draft_tokens}"
    rest = f"({item.gain_at_low:+.0%} output tokens/s at {low:.0f}, {item.gain_at_high:+.0%} at {high:.0f})"
    if item.verdict is Verdict.ALWAYS_PAYS:
        return f"{name} pays at every load from {low:.0f} to {high:.0f} running requests {rest}: leave it on."
    if item.verdict is Verdict.NEVER_PAYS:
        return f"{name} does not pay at any load from {low:.0f} to {high:.0f} running requests {rest}: run without it."
    return f"{name} {_short(item)} running requests {rest}."


def _short(item: Crossover) -> str:
    """``"pays up to 38 (35-42)"``, ``"pays from 8 (7-9) to 62 (58-66)"``."""
    if item.verdict is Verdict.ALWAYS_PAYS:
        return "always pays"
    if item.verdict is Verdict.NEVER_PAYS:
        return "never pays"
    spans: list[str] = []
    begin: str | None = None if item.crossings[0].pays_below else ""
    for crossing in item.crossings:
        if crossing.pays_below:
            spans.append(f"up to {crossing.shown}" if not begin else f"from {begin} to {crossing.shown}")
            begin = ""
        else:
            begin = crossing.shown
    if begin:
        spans.append(f"from {begin} on")
    return "pays " + " and ".join(spans)


def _range(found: Sequence[Crossover]) -> tuple[float, float]:
    return max(item.measured[0] for item in found), min(item.measured[1] for item in found)


# -- in and out --------------------------------------------------------------------------------------------------------


def to_csv(points: Iterable[CalibrationPoint]) -> str:
    """The table that `crossover fit` reads."""
    return write_points(points)


def from_csv(text: str) -> list[CalibrationPoint]:
    """Raises `crossover.decide.tables.TableError`."""
    return read_points(rows_of(text))


def to_json(points: Iterable[CalibrationPoint]) -> list[dict[str, Any]]:
    """Plain dictionaries, unknown left out."""
    return [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(point).items()
            if value not in (None, ())
        }
        for point in points
    ]


def from_json(documents: Iterable[Mapping[str, Any]]) -> list[CalibrationPoint]:
    """The way back. Raises `ValueError` for a key that no point has."""
    points = []
    for number, document in enumerate(documents, start=1):
        try:
            point = CalibrationPoint(**document)
        except TypeError as error:
            raise ValueError(f"point {number}: {error}") from None
        points.append(replace(point, acceptance_by_position=tuple(point.acceptance_by_position)))
    return points


def as_document(result: CalibrationResult) -> dict[str, Any]:
    """For `--json`. Keys as in `crossover fit --json` where they mean the same. Unknown is null."""
    rendered = result.rendered
    return {
        "verdict": result.verdict,
        "context_tokens": result.profile.context_tokens,
        "crossovers": [crossover_document(item) for item in result.crossovers],
        "schedule": [list(entry) for entry in result.schedule],
        "schedule_text": describe(result.schedule),
        "schedule_zero_is_assumed": result.zero_is_assumed,
        "rendered": rendered.content if isinstance(rendered, ConfigFile) else rendered,
        "refusal": result.refusal,
        "capacity": [
            {
                "variant": item.variant.name,
                "tokens_per_second": item.tokens_per_second or None,
                "running_requests": item.running_requests or None,
                "extrapolated": item.extrapolated,
            }
            for item in result.capacities
        ],
        "points": to_json(result.points),
    }
