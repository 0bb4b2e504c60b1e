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
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path

QUANTILES = "servegen_length_quantiles.csv"
BINS = ((4 * 3600.0, 1.0), (48 * 3600.0, 2.0), (math.inf, 5.0))
"""(Traces up to this long, have bins of so many seconds). Longer bins hide bursts: bench/fluid.py says how much."""


class TraceError(ValueError):
    """A trace that cannot be used: which file, which line or column, what to do."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests that arrive in one bin; mean lengths in tokens."""

    requests: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True)
class Trace:
    name: str
    bin_seconds: float
    bins: tuple[Bin, ...]

    @property
    def seconds(self) -> float:
        return self.bin_seconds * len(self.bins)

    @cached_property
    def requests(self) -> float:
        return sum(item.requests for item in self.bins)

    @cached_property
    def mean_input_tokens(self) -> float:
        return sum(item.requests * item.input_tokens for item in self.bins) / max(self.requests, 1e-9)

    @cached_property
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


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of a request: mean and standard deviation."""

    mean: float
    deviation: float = 0.0

    def mean_of(self, count: float, chance: random.Random) -> float:
        """The mean of ``count`` requests drawn at random."""
        return max(1.0, self.mean + chance.gauss(0.0, self.deviation / max(count, 1.0) ** 0.5))


def read(path: Path, *, seed: int = 1, lengths: tuple[float, float] | None = None, hours: float | None = None) -> Trace:
    """``lengths``: mean (input, output) tokens for traces of rates; ``hours``: how much of it will be used, which sets the
    bins. Raises TraceError, OSError."""
    rows = list(_rows(path))
    if not rows:
        raise TraceError(f"{path}: no rows")
    columns = set(rows[0])
    if {"input_tokens", "output_tokens"} <= columns and columns & {"t_s", "timestamp"}:
        return _of_requests(path, rows, hours)
    if {"t_s", "req_per_s"} <= columns:
        given = (Length(lengths[0]), Length(lengths[1])) if lengths is not None else _lengths_beside(path)
        return _of_rates(path, rows, seed, given, hours)
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


def _bin_seconds(seconds: float, hours: float | None) -> float:
    used = seconds if hours is None else min(seconds, hours * 3600)
    return next(size for most, size in BINS if used <= most)


def _of_requests(path: Path, rows: Sequence[dict[str, str]], hours: float | None) -> Trace:
    column = "t_s" if "t_s" in rows[0] else "timestamp"
    try:
        requests = sorted((_seconds(r[column]), float(r["input_tokens"]), float(r["output_tokens"])) for r in rows)
    except (ValueError, TypeError):
        raise TraceError(f"{path}: a row holds something that is no number") from None
    begin, end = requests[0][0], requests[-1][0]
    size = _bin_seconds(end - begin, hours)
    sums = [[0.0, 0.0, 0.0] for _ in range(int((end - begin) / size) + 1)]
    for at, input_tokens, output_tokens in requests:
        place = sums[int((at - begin) / size)]
        place[0] += 1
        place[1] += input_tokens
        place[2] += output_tokens
    return Trace(_name(path), size, tuple(_bin(*item) for item in sums))


def _bin(count: float, input_tokens: float, output_tokens: float) -> Bin:
    return Bin(count, input_tokens / count, max(1.0, output_tokens / count)) if count else Bin(0.0, 0.0, 1.0)


def _of_rates(
    path: Path, rows: Sequence[dict[str, str]], seed: int, lengths: tuple[Length, Length], hours: float | None
) -> Trace:
    """Arrivals of each bin are drawn around the window's rate, variance (1 + cv^2) / 2 times Poisson's, and their mean lengths
    around the collection's."""
    times = [float(row["t_s"]) for row in rows]
    window = times[1] - times[0] if len(times) > 1 else 600.0
    size = _bin_seconds(window * len(rows), hours)
    chance = random.Random(seed)
    bins: list[Bin] = []
    rate, cv = 0.0, 1.0
    for row in rows:
        if float(row["req_per_s"]) > 0:
            rate, cv = float(row["req_per_s"]), float(row.get("rate_weighted_cv") or 1.0)
        mean = rate * size
        spread = (mean * (1 + cv * cv) / 2) ** 0.5
        counts = [max(0.0, chance.gauss(mean, spread)) for _ in range(int(window / size))]
        bins += [Bin(count, *(length.mean_of(count, chance) for length in lengths)) for count in counts]
    return Trace(_name(path), size, tuple(bins))


def _lengths_beside(path: Path) -> tuple[Length, Length]:
    """Lengths from the quantile table of the same collection."""
    table = path.with_name(QUANTILES)
    if not table.exists():
        raise TraceError(f"{path}: a trace of rates needs lengths: put {QUANTILES} beside it, or give --lengths IN,OUT")
    workload = _name(path).removeprefix("servegen_rate_")
    rows = [row for row in _rows(table) if row["workload"].replace("-", "_") == workload.replace("-", "_")]
    sides = {side: _length([row for row in rows if row["side"].startswith(side)]) for side in ("in", "out")}
    if not rows or sides["out"] is None:
        raise TraceError(f"{table}: no lengths for workload {workload}: give --lengths IN,OUT")
    return sides["in"] or Length(500.0), sides["out"]


def _length(rows: Sequence[dict[str, str]]) -> Length | None:
    """Mean and deviation of a distribution known by quantiles: straight lines between them."""
    points = sorted((float(row["quantile"]), float(row["tokens"])) for row in rows)
    if not points:
        return None
    ends = [(0.0, points[0][1]), *points, (1.0, points[-1][1])]
    mean = square = 0.0
    for (low, first), (high, second) in pairwise(ends):
        mean += (high - low) * (first + second) / 2
        square += (high - low) * (first * first + first * second + second * second) / 3
    return Length(mean, max(0.0, square - mean * mean) ** 0.5)


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
