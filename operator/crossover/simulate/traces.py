"""Load traces as bins of equal length: how many requests arrive in each, how long they are.

Formats, plain or gzip, told apart by their columns:

- one row a request: ``t_s`` or ``timestamp`` (seconds, or ISO 8601), ``input_tokens``, ``output_tokens``;
- one row a window: ``t_s``, ``req_per_s``, ``rate_weighted_cv``, with lengths from ``servegen_length_quantiles.csv`` beside the
  trace (or given). Windows with no client are gaps in collection, not idle time: they repeat the last rate.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

QUANTILES = "servegen_length_quantiles.csv"
SHORT_SECONDS = 4 * 3600.0
"""Traces up to this long are binned by the second, longer ones by ten seconds."""


class TraceError(ValueError):
    """A trace that cannot be used: which file, which line or column, what to do."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests that arrive in one bin; mean lengths in tokens."""

    requests: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    bin_seconds: float
    bins: tuple[Bin, ...]

    @property
    def seconds(self) -> float:
        return self.bin_seconds * len(self.bins)

    @property
    def requests(self) -> float:
        return sum(item.requests for item in self.bins)

    @property
    def mean_input_tokens(self) -> float:
        return sum(item.requests * item.input_tokens for item in self.bins) / max(self.requests, 1e-9)

    @property
    def mean_output_tokens(self) -> float:
        return sum(item.requests * item.output_tokens for item in self.bins) / max(self.requests, 1e-9)

    def window(self, start_seconds: float, seconds: float | None) -> Trace:
        """A part of it. Raises TraceError when nothing is left."""
        first = int(start_seconds / self.bin_seconds)
        last = len(self.bins) if seconds is None else first + int(seconds / self.bin_seconds)
        if not self.bins[first:last]:
            raise TraceError(f"{self.name}: nothing at --start {start_seconds:.0f} s: it lasts {self.seconds:.0f} s")
        return replace(self, bins=self.bins[first:last])

    def scaled(self, factor: float) -> Trace:
        return replace(self, bins=tuple(replace(item, requests=item.requests * factor) for item in self.bins))


def read(path: Path, *, seed: int = 1, lengths: tuple[float, float] | None = None) -> Trace:
    """``lengths``: mean (input, output) tokens for traces of rates. Raises TraceError, OSError."""
    rows = list(_rows(path))
    if not rows:
        raise TraceError(f"{path}: no rows")
    columns = set(rows[0])
    if {"input_tokens", "output_tokens"} <= columns and columns & {"t_s", "timestamp"}:
        return _of_requests(path, rows)
    if {"t_s", "req_per_s"} <= columns:
        return _of_rates(path, rows, seed, lengths or _lengths_beside(path))
    raise TraceError(
        f"{path}: columns are {', '.join(sorted(columns))}; needed are t_s or timestamp, input_tokens, output_tokens, "
        "or t_s, req_per_s"
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    yield from csv.DictReader(io.StringIO(text.decode("utf-8-sig")))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


def _of_requests(path: Path, rows: Sequence[dict[str, str]]) -> Trace:
    column = "t_s" if "t_s" in rows[0] else "timestamp"
    try:
        requests = sorted((_seconds(r[column]), float(r["input_tokens"]), float(r["output_tokens"])) for r in rows)
    except (ValueError, TypeError):
        raise TraceError(f"{path}: a row holds something that is no number") from None
    begin, end = requests[0][0], requests[-1][0]
    size = 1.0 if end - begin <= SHORT_SECONDS else 10.0
    sums = [[0.0, 0.0, 0.0] for _ in range(int((end - begin) / size) + 1)]
    for at, input_tokens, output_tokens in requests:
        place = sums[int((at - begin) / size)]
        place[0] += 1
        place[1] += input_tokens
        place[2] += output_tokens
    return Trace(_name(path), size, tuple(_bin(*item) for item in sums))


def _bin(count: float, input_tokens: float, output_tokens: float) -> Bin:
    return Bin(count, input_tokens / count, max(1.0, output_tokens / count)) if count else Bin(0.0, 0.0, 1.0)


def _of_rates(path: Path, rows: Sequence[dict[str, str]], seed: int, lengths: tuple[float, float]) -> Trace:
    """Arrivals of each bin are drawn around the window's rate: variance (1 + cv^2) / 2 times Poisson's."""
    times = [float(row["t_s"]) for row in rows]
    window = times[1] - times[0] if len(times) > 1 else 600.0
    size = 1.0 if window * len(rows) <= SHORT_SECONDS else 10.0
    chance = random.Random(seed)
    bins: list[Bin] = []
    rate, cv = 0.0, 1.0
    for row in rows:
        if float(row["req_per_s"]) > 0:
            rate, cv = float(row["req_per_s"]), float(row.get("rate_weighted_cv") or 1.0)
        mean = rate * size
        spread = (mean * (1 + cv * cv) / 2) ** 0.5
        bins += [Bin(max(0.0, chance.gauss(mean, spread)), *lengths) for _ in range(int(window / size))]
    return Trace(_name(path), size, tuple(bins))


def _lengths_beside(path: Path) -> tuple[float, float]:
    """Mean lengths from the quantile table of the same collection."""
    table = path.with_name(QUANTILES)
    if not table.exists():
        raise TraceError(f"{path}: a trace of rates needs lengths: put {QUANTILES} beside it, or give --lengths IN,OUT")
    workload = _name(path).removeprefix("servegen_rate_")
    rows = [row for row in _rows(table) if row["workload"].replace("-", "_") == workload.replace("-", "_")]
    sides = {side: _mean([row for row in rows if row["side"].startswith(side)]) for side in ("in", "out")}
    if not rows or sides["out"] is None:
        raise TraceError(f"{table}: no lengths for workload {workload}: give --lengths IN,OUT")
    return sides["in"] or 500.0, sides["out"]


def _mean(rows: Sequence[dict[str, str]]) -> float | None:
    """Mean of a distribution known by quantiles: straight lines between them."""
    points = sorted((float(row["quantile"]), float(row["tokens"])) for row in rows)
    if not points:
        return None
    total = points[0][0] * points[0][1]
    for (low, first), (high, second) in pairwise(points):
        total += (high - low) * (first + second) / 2
    return total + (1 - points[-1][0]) * points[-1][1]


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
