"""What the clients saw over a window. Pure: flights in, means out.

Mean decode batch by Little's law, without trusting the server: the time that requests spend between first and last token,
per second of the window. Answers that come in one piece tell no first token; they take the mean of those that stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, quantiles

from crossover.calibrate.contract import Latency
from crossover.calibrate.load import Flight

LONG_WAIT = 0.5
"""Of the time that a request decodes: beyond it, answers in one piece do not tell when they began."""


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
    tokens_error: float = 0.0
    """Relative standard error of ``tokens_per_second`` from requests that cross the ends of the window at unknown places."""


def client_side(finished: Sequence[Flight], flying: Sequence[Flight], start: float, end: float) -> ClientSide:
    ended = [item for item in finished if item.ended is not None and start <= item.ended <= end]
    begun = [item for item in [*finished, *flying] if item.first is not None]
    waits = [item.first - item.started for item in begun if item.first is not None and start <= item.first <= end]
    waits = waits or [item.first - item.started for item in begun if item.first is not None]
    wait = fmean(waits) if waits else 0.0
    crowd = [item.first - item.started for item in begun if item.first is not None and not item.generation]
    at_start = fmean(crowd) if crowd else wait
    decoding = [(item, _first(item, wait, at_start), item.ended) for item in ended if item.ended is not None]
    per_token = [(last - first) / (item.output_tokens - 1) for item, first, last in decoding if item.output_tokens > 1]
    if not ended or not per_token:
        return ClientSide(requests=len(ended))
    tokens = sum(item.output_tokens - 1 for item in ended)
    mean_per_token = sum(last - first for _, first, last in decoding) / max(1, tokens)
    busy, written = 0.0, 0.0
    for item in [*finished, *flying]:
        first, last = _first(item, wait, at_start), item.ended if item.ended is not None else end
        inside = max(0.0, min(last, end) - max(first, start))
        busy += inside
        if item.ended is not None and last > first:
            written += item.output_tokens * inside / (last - first)
        elif mean_per_token > 0:
            written += min(inside / mean_per_token, item.wanted_tokens)
    seconds, unsure = end - start, 0.0
    if wait > LONG_WAIT * mean_per_token * tokens / len(ended):
        written = float(sum(item.output_tokens for item in ended))  # who decodes now is a guess: count what ended
        unsure = math.sqrt(busy / seconds / 6) * tokens / len(ended) / max(1.0, written)
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
        unsure,
    )


def latency(values: Sequence[float]) -> Latency:
    if not values:
        return Latency()
    if len(values) == 1:
        return Latency(values[0], values[0], values[0])
    cuts = quantiles(values, n=100, method="inclusive")
    return Latency(fmean(values), cuts[49], cuts[98])


def completions(finished: Sequence[Flight], edges: Sequence[float]) -> list[float]:
    """Output tokens/s of the answers that ended between neighbouring edges."""
    return [
        sum(item.output_tokens for item in finished if item.ended is not None and left < item.ended <= right)
        / (right - left)
        for left, right in pairwise(edges)
    ]


def _first(item: Flight, wait: float, at_start: float) -> float:
    """``at_start``: the wait of the first requests, whose prompts all came at once."""
    first = item.first if item.first is not None else item.started + (wait if item.generation else at_start)
    return first if item.ended is None else min(first, item.ended)


def _acceptance(ended: Sequence[Flight]) -> float | None:
    """Tokens per decode step; the first token of an answer comes from its prompt."""
    told = [item for item in ended if item.verify_steps]
    steps = sum(item.verify_steps or 0 for item in told)
    return sum(item.output_tokens - 1 for item in told) / steps if steps else None
