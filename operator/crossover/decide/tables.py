"""Calibration points as a table: ``running_requests, draft_tokens`` and ``step_ms`` or ``tokens_per_second``; optional
``context_tokens, acceptance_length, off, verified_tokens, relative_error, acceptance_error,
asked_running_requests, interpolated``. ``draft_tokens`` may say ``off``.

Text in, points out, no file I/O. Tables of speed-ups only: `crossover.decide.sweeps`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from crossover.api.points import CalibrationPoint

POINT_COLUMNS = (
    "running_requests",
    "draft_tokens",
    "off",
    "context_tokens",
    "step_ms",
    "tokens_per_second",
    "acceptance_length",
    "verified_tokens",
    "relative_error",
    "acceptance_error",
    "asked_running_requests",
    "interpolated",
)
TRUE, FALSE = {"true", "yes", "1", "off"}, {"", "false", "no", "0", "gated"}
MOST_ROWS = 100_000


class TableError(ValueError):
    """What is wrong with which line and column, and what to write instead."""


Row = Mapping[str, str | None]


def rows_of(text: str) -> list[Row]:
    """Rows of a CSV with a header line. Raises `TableError`."""
    try:
        reader = csv.DictReader(StringIO(text.removeprefix("\ufeff")), strict=True)
        rows = [row for _, row in zip(range(MOST_ROWS + 1), reader, strict=False)]
    except csv.Error as error:
        raise TableError(f"not a CSV: {error}") from None
    if len(rows) > MOST_ROWS:
        raise TableError(f"more than {MOST_ROWS} rows: this is not a table of measurements")
    if not rows:
        raise TableError("no rows: the first line names the columns, every other line is one measurement")
    return [{(key or "").strip(): value for key, value in row.items() if isinstance(key, str)} for row in rows]


def read_points(rows: Sequence[Row]) -> list[CalibrationPoint]:
    """Raises `TableError` for the first line that cannot be used. Lines are counted with the header as line 1."""
    missing = [column for column in ("running_requests", "draft_tokens") if column not in rows[0]]
    if missing or not {"step_ms", "tokens_per_second"} & set(rows[0]):
        raise TableError(
            f"columns are {', '.join(list(rows[0])[:12])}: a table of points needs running_requests, draft_tokens and step_ms or "
            "tokens_per_second"
        )
    return [_point(row, line) for line, row in enumerate(rows, start=2)]


def _point(row: Row, line: int) -> CalibrationPoint:
    """One line, every value checked under its own column's name."""
    off = (row.get("draft_tokens") or "").strip().lower() == "off" or _flag(row, "off", line)
    draft_text = "0" if (row.get("draft_tokens") or "").strip().lower() == "off" else row.get("draft_tokens")
    draft = whole({"draft_tokens": draft_text}, "draft_tokens", line)
    if draft is None:
        raise TableError(f"line {line}, column draft_tokens: is missing: write the draft length, 0 or off")
    if off and draft:
        raise TableError(
            f"line {line}, column off: is true with draft_tokens {draft}: a process without speculation has 0"
        )
    running = above_zero(row, "running_requests", line)
    if running is None:
        raise TableError(f"line {line}, column running_requests: is missing: every point needs it")
    step, rate = above_zero(row, "step_ms", line), above_zero(row, "tokens_per_second", line)
    if step is None and rate is None:
        raise TableError(f"line {line}: neither step_ms nor tokens_per_second is given: write one of them")
    return CalibrationPoint(
        running_requests=running,
        draft_tokens=draft,
        off=off,
        context_tokens=above_zero(row, "context_tokens", line),
        step_seconds=step / 1000 if step is not None else None,
        output_tokens_per_second=rate,
        acceptance_length=_acceptance(row, draft, line),
        relative_error=above_zero(row, "relative_error", line),
        verified_tokens=whole(row, "verified_tokens", line),
        acceptance_error=above_zero(row, "acceptance_error", line),
        asked_running_requests=whole(row, "asked_running_requests", line),
        interpolated=_flag(row, "interpolated", line),
    )


def _acceptance(row: Row, draft: int, line: int) -> float | None:
    """Of a zero it is 1 whatever is written; of a draft it lies between 1 and K + 1, the bonus token counted."""
    length = number(row, "acceptance_length", line)
    if length is None or draft == 0:
        return None if length is None else 1.0
    if not 1 <= length <= draft + 1 + 1e-9:
        raise TableError(
            f"line {line}, column acceptance_length: {length:g} must lie between 1 and {draft + 1}: the bonus token counts, so "
            "without any acceptance it is 1"
        )
    return length


def write_points(points: Iterable[CalibrationPoint]) -> str:
    """The same table back."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(POINT_COLUMNS)
    for point in points:
        values = (
            point.running_requests,
            point.draft_tokens,
            "true" if point.off else "false",
            point.context_tokens,
            None if point.step_seconds is None else point.step_seconds * 1000,
            point.output_tokens_per_second,
            point.acceptance_length,
            point.verified_tokens,
            point.relative_error,
            point.acceptance_error,
            point.asked_running_requests,
            "true" if point.interpolated else None,
        )
        writer.writerow(
            ["" if value is None else f"{value:g}" if isinstance(value, float) else value for value in values]
        )
    return out.getvalue()


def number(row: Row, column: str, line: int) -> float | None:
    """A finite number; None where the cell is empty or the column is not there."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TableError(
            f"line {line}, column {column}: {text[:40]!r} is not a number: write a plain decimal or leave it empty"
        )
    return value


def above_zero(row: Row, column: str, line: int) -> float | None:
    value = number(row, column, line)
    if value is not None and value <= 0:
        raise TableError(f"line {line}, column {column}: {value:g} must be above 0: leave it empty where it is unknown")
    return value


def whole(row: Row, column: str, line: int) -> int | None:
    value = number(row, column, line)
    if value is not None and (value < 0 or value != int(value)):
        raise TableError(f"line {line}, column {column}: {value:g} must be a whole number of tokens, 0 or more")
    return None if value is None else int(value)


def _flag(row: Row, column: str, line: int) -> bool:
    text = (row.get(column) or "").strip().lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise TableError(f"line {line}, column {column}: {text[:40]!r} is neither true nor false")
