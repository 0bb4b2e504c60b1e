"""Published sweeps as a table: speed-ups only, no step times.

A line has ``speedup`` (or ``ratio``) and a load: ``batch_or_concurrency``, ``running_requests``, ``batch`` or
``batch_or_qps`` with ``batch:32``. Or it has a speed that each user gets (``tok_s_per_user``): then load falls along the
axis and speculation pays *above* the break-even speed. Or it sums up a whole sweep: ``batch_min, speedup_at_min,
crossover_batch, batch_max, speedup_at_max``. Every other column that names something tells series apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crossover.decide.tables import Row, TableError, number

GAIN_COLUMNS = ("speedup", "ratio")
BATCH_COLUMNS = ("running_requests", "batch_or_concurrency", "batch_or_qps", "batch")
SPEED_COLUMN = "tok_s_per_user"
SUMMARY_COLUMNS = ("batch_min", "speedup_at_min", "batch_max", "speedup_at_max")
DRAFT_COLUMN = "draft_len"
SERIES_COLUMNS = (
    "source",
    "hardware",
    "engine",
    "model",
    "precision",
    "isl_osl",
    "method",
    "metric",
    DRAFT_COLUMN,
)


@dataclass(frozen=True, slots=True)
class Series:
    """Speed-up over the same server without speculation, along a load or a speed, ascending."""

    name: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    draft_tokens: int | None = None
    """None = not told, or the best one at each load."""
    by_speed: bool = False
    """The axis is output tokens/s of one user, so load falls along it."""

    @property
    def crossings(self) -> tuple[tuple[float, bool], ...]:
        """(place at which the speed-up passes 1 by straight lines between neighbours, whether it falls there)."""
        found = []
        for (left, before), (right, after) in zip(self.points, self.points[1:], strict=False):
            if before >= 1 > after or before < 1 <= after:
                found.append((left + (right - left) * (1 - before) / (after - before), before >= 1))
        return tuple(found)

    @property
    def crossover(self) -> float | None:
        """The first load at which speculation stops paying, or the first speed from which it pays; None when it never does
        or always does within what was measured."""
        if not self.by_speed and self.points[0][1] < 1:
            return None
        return next((place for place, falls in self.crossings if falls is not self.by_speed), None)

    @property
    def verdict(self) -> str:
        """``"crosses at 26.4"``, ``"none up to 64"``, ``"below 1 from the first point (2)"``, ``"pays from 32.9"``."""
        (first, gain), (last, _) = self.points[0], self.points[-1]
        place = self.crossover
        if self.by_speed:
            if place is not None:
                return f"pays from {place:.1f}"
            return f"pays from {first:g} on" if gain >= 1 else f"never pays up to {last:g}"
        if gain < 1:
            return f"below 1 from the first point ({first:g})"
        return f"crosses at {place:.1f}" if place is not None else f"none up to {last:g}"


def is_sweep(rows: Sequence[Row]) -> bool:
    """Speed-ups without step times."""
    sums_up = set(SUMMARY_COLUMNS) <= set(rows[0])
    return (sums_up or _gain_column(rows) is not None) and not {"step_ms", "tokens_per_second"} & set(rows[0])


def _gain_column(rows: Sequence[Row]) -> str | None:
    return next((column for column in GAIN_COLUMNS if column in rows[0]), None)


def read_sweeps(rows: Sequence[Row]) -> list[Series]:
    """Series in order of appearance; several rows at one load count by their mean. Raises `TableError`."""
    place = next((column for column in (*BATCH_COLUMNS, SPEED_COLUMN) if column in rows[0]), "")
    groups: dict[tuple[str, ...], dict[float, list[float]]] = {}
    for line, row in enumerate(rows, start=2):
        key = tuple((row.get(column) or "").strip() for column in SERIES_COLUMNS)
        for at, speedup in _measured(row, line, place, _gain_column(rows)):
            if at <= 0 or speedup <= 0:
                raise TableError(f"line {line}: load {at:g} and speed-up {speedup:g} must both be above 0")
            groups.setdefault(key, {}).setdefault(at, []).append(speedup)
    if not groups:
        raise TableError(f"no line has a speedup and a load: one of {', '.join(BATCH_COLUMNS)} is needed")
    return _best_at_each_load(_series(key, places, place == SPEED_COLUMN) for key, places in groups.items())


def _measured(row: Row, line: int, place: str, gain: str | None) -> list[tuple[float, float]]:
    """(load, speed-up) of one line: one, or the ends and the crossing of a sweep that is summed up, or none."""
    if gain is not None:
        pairs = [(_place(row, place, line), number(row, gain, line))]
    else:
        pairs = [(number(row, f"batch_{end}", line), number(row, f"speedup_at_{end}", line)) for end in ("min", "max")]
        pairs.append((number(row, "crossover_batch", line), 1.0))
    return [(at, speedup) for at, speedup in pairs if at is not None and speedup is not None]


def _place(row: Row, column: str, line: int) -> float | None:
    """``"32"`` or ``"batch:32"``; None for another axis (``"qps:4"``)."""
    text = (row.get(column) or "").strip()
    kind, colon, value = text.partition(":")
    if colon:
        return number({column: value}, column, line) if kind in {"batch", "concurrency"} else None
    return number(row, column, line) if "=" not in text else None


def _series(key: tuple[str, ...], places: Mapping[float, Sequence[float]], by_speed: bool) -> Series:
    name = {column: value for column, value in zip(SERIES_COLUMNS, key, strict=True) if value}
    points = tuple((place, sum(values) / len(values)) for place, values in sorted(places.items()))
    draft = name.get(DRAFT_COLUMN, "")
    return Series(name, points, int(draft) if draft.isdigit() else None, by_speed)


def _best_at_each_load(series: Iterable[Series]) -> list[Series]:
    """Lines that share everything but the draft length, and no load, and of which one length has a single load, are one
    series: the best length at each load, not sweeps of one point each."""
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for item in series:
        key = tuple((column, value) for column, value in item.name.items() if column != DRAFT_COLUMN)
        groups.setdefault(key, []).append(item)
    merged = []
    for key, items in groups.items():
        points = sorted(point for item in items for point in item.points)
        apart = len({place for place, _ in points}) == len(points)
        if len(items) > 1 and len(points) > 2 and apart and any(len(item.points) == 1 for item in items):
            merged.append(Series(dict(key), tuple(points), None, items[0].by_speed))
        else:
            merged.extend(items)
    return merged
