"""What the clients saw over a window. Pure: flights in, means out.

Mean decode batch by Little's law, without trusting the server: the time that requests spend between first and last token,
per second of the window. Answers that come in one piece tell no first token; they take the mean of those that stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev, quantiles

from crossover.calibrate.contract import Latency
from crossover.calibrate.load import Flight

LONG_WAIT = 0.5
"""Of the time that a request decodes: beyond it, answers in one piece do not tell when they began."""
MOST_WORK = 200_000
"""Blocks times requests that are looked at in one go."""


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Means over the window; None = no request could tell."""

    requests: int = 0
    tokens_per_second: float | None = None
    running_requests: float | None = None
    acceptance_length: float | None = None
    """Where answers tell their decode steps."""
    input_tokens: float | None = None
    asked_input_tokens: float | None = None
    context_tokens: float | None = None
    short_share: float = 0.0
    """Answers that ended early."""
    time_per_output_token: Latency = field(default_factory=Latency)
    time_to_first_token: Latency = field(default_factory=Latency)
    scatter: float = 0.0
    """Relative standard error of the mean time per output token, from how requests differ."""
    ends_error: float = 0.0
    """Relative standard error of a count of answers that ended, from those that cross the ends of the window."""
    counts_ends: bool = False
    """``tokens_per_second`` is such a count."""


def client_side(finished: Sequence[Flight], flying: Sequence[Flight], start: float, end: float) -> ClientSide:
    ended = [item for item in finished if item.ended is not None and start <= item.ended <= end]
    wait, at_start, waits = _waits(finished, flying, start, end)
    decoding = [(item, _first(item, wait, at_start), item.ended) for item in ended if item.ended is not None]
    per_token = [(last - first) / (item.output_tokens - 1) for item, first, last in decoding if item.output_tokens > 1]
    if not ended or not per_token:
        return ClientSide(requests=len(ended))
    spans = [
        (max(0.0, min(last, end) - max(first, start)), pace)
        for first, last, pace in _spans(finished, flying, start, end)
    ]
    busy, written = sum(inside for inside, _ in spans), sum(inside * pace for inside, pace in spans)
    seconds, counted = end - start, False
    mean_length = sum(item.output_tokens for item in ended) / len(ended)
    at_the_ends = math.sqrt(busy / seconds / 6) * mean_length / max(1.0, written)
    if wait > LONG_WAIT * sum(last - first for _, first, last in decoding) / len(ended):
        written = float(sum(item.output_tokens for item in ended))  # who decodes now is a guess: count what ended
        counted = True
    told = [item for item in ended if item.input_tokens is not None and item.generation]
    inputs = [item.input_tokens or item.asked_input for item in ended]
    long = sum(item.output_tokens for item in ended)
    return ClientSide(
        len(ended),
        written / seconds,
        busy / seconds,
        _acceptance(ended),
        fmean([item.input_tokens or 0 for item in told]) if told else None,
        fmean([item.asked_input for item in told]) if told else None,
        sum((given + item.output_tokens / 2) * item.output_tokens for given, item in zip(inputs, ended, strict=True))
        / max(1, long),
        sum(item.output_tokens < item.wanted_tokens for item in ended) / len(ended),
        latency(per_token),
        latency(waits),
        pstdev(per_token) / fmean(per_token) / math.sqrt(len(per_token)),
        at_the_ends,
        counted,
    )


def latency(values: Sequence[float]) -> Latency:
    if not values:
        return Latency()
    if len(values) == 1:
        return Latency(values[0], values[0], values[0])
    cuts = quantiles(values, n=100, method="inclusive")
    return Latency(fmean(values), cuts[49], cuts[98])


def even_rates(finished: Sequence[Flight], flying: Sequence[Flight], edges: Sequence[float]) -> list[float]:
    """Output tokens/s between neighbouring edges, every answer's tokens spread evenly over the time that it decoded. Empty
    while no answer has ended. Smooth where the server's own counter moves only when requests end."""
    spans = _spans(finished, flying, edges[0], edges[-1])
    if len(edges) * len(spans) > MOST_WORK:
        edges = edges[:: 1 + len(edges) * len(spans) // MOST_WORK]
    return [
        sum(pace * max(0.0, min(last, right) - max(first, left)) for first, last, pace in spans) / (right - left)
        for left, right in pairwise(edges)
        if spans
    ]


def _spans(
    finished: Sequence[Flight], flying: Sequence[Flight], start: float, end: float
) -> list[tuple[float, float, float]]:
    """(first token, last token or end, tokens/s) of every request that decoded in the window."""
    wait, at_start, _ = _waits(finished, flying, start, end)
    ended = [
        (_first(item, wait, at_start), item.ended, item.output_tokens) for item in finished if item.ended is not None
    ]
    seconds = sum(last - first for first, last, _ in ended if last > start)
    tokens = sum(count for _, last, count in ended if last > start)
    if not tokens or seconds <= 0:
        return []
    spans = [(first, last, count / (last - first)) for first, last, count in ended if last > max(first, start)]
    for item in flying:
        first, pace = _first(item, wait, at_start), tokens / seconds
        spans.append((first, min(end, first + item.wanted_tokens / pace), pace))
    return spans


def _waits(
    finished: Sequence[Flight], flying: Sequence[Flight], start: float, end: float
) -> tuple[float, float, list[float]]:
    """(mean wait for a first token, that of the first requests, whose prompts all came at once; waits within the window)."""
    begun = [item for item in [*finished, *flying] if item.first is not None]
    waits = [item.first - item.started for item in begun if item.first is not None and start <= item.first <= end]
    waits = waits or [item.first - item.started for item in begun if item.first is not None]
    wait = fmean(waits) if waits else 0.0
    crowd = [item.first - item.started for item in begun if item.first is not None and not item.generation]
    return wait, fmean(crowd) if crowd else wait, waits


def _first(item: Flight, wait: float, at_start: float) -> float:
    first = item.first if item.first is not None else item.started + (wait if item.generation else at_start)
    return first if item.ended is None else min(first, item.ended)


def _acceptance(ended: Sequence[Flight]) -> float | None:
    """Tokens per decode step; the first token of an answer comes from its prompt."""
    told = [item for item in ended if item.verify_steps]
    steps = sum(item.verify_steps or 0 for item in told)
    return sum(item.output_tokens - 1 for item in told) / steps if steps else None
