"""What a server's own numbers say over a window of readings. Pure. Sums over its schedulers; None = not told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, mode

from crossover.api.fleet import PodReading, SchedulerReading

Value = Callable[[SchedulerReading], float | None]
SAME_DRAFT = 0.25
"""Mean draft lengths this near to a whole number are that number."""
MOSTLY = 0.8
"""Where only a gauge tells the draft length, this share of the readings has to agree."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    """Means over the window."""

    seconds: float = 0.0
    tokens_per_second: float | None = None
    acceptance_length: float | None = None
    acceptance_by_position: tuple[float, ...] = ()
    draft_tokens: int | None = None
    draft_changed: bool = False
    running_requests: float | None = None
    waiting_requests: float | None = None
    kv_tokens: float | None = None
    kv_usage: float | None = None
    step_seconds: float | None = None
    """By its own count of steps, prefill steps included."""


def server_side(readings: Sequence[PodReading], start: float, end: float) -> ServerSide:
    """``start``, ``end`` on the clock of the readings."""
    inside = [item for item in readings if start <= item.observed_at_seconds <= end]
    if len(inside) < 2:
        return ServerSide()
    seconds = inside[-1].observed_at_seconds - inside[0].observed_at_seconds
    tokens = grown(inside, lambda s: s.output_tokens_total)
    steps = grown(inside, lambda s: s.engine_steps_total)
    draft, changed = _draft(inside)
    ranks = max(1, len(inside[-1].schedulers))
    return ServerSide(
        seconds,
        tokens / seconds if tokens is not None and seconds > 0 else None,
        _acceptance(inside),
        _by_position(inside),
        draft,
        changed,
        _mean(inside, lambda s: s.running_requests),
        _mean(inside, lambda s: s.waiting_requests),
        _mean(inside, lambda s: s.kv_tokens),
        _largest(inside, lambda s: s.kv_usage),
        ranks * seconds / steps if steps else None,
    )


def was_restarted(readings: Sequence[PodReading]) -> bool:
    """A counter fell: the process is not the one that was measured."""
    return any(
        (before := _total(a, lambda s: s.output_tokens_total)) is not None
        and (after := _total(b, lambda s: s.output_tokens_total)) is not None
        and after < before
        for a, b in pairwise(readings)
    )


def rate_blocks(readings: Sequence[PodReading]) -> list[tuple[float, float, float]]:
    """(start, end, rate) between neighbouring readings: request steps/s where the server counts them, for luck with drafts
    does not move them; else output tokens/s."""
    counter: Value = lambda s: s.request_steps_total  # noqa: E731
    if not readings or _total(readings[-1], counter) is None:
        counter = lambda s: s.output_tokens_total  # noqa: E731
    blocks = []
    for a, b in pairwise(readings):
        before, after = _total(a, counter), _total(b, counter)
        seconds = b.observed_at_seconds - a.observed_at_seconds
        if before is not None and after is not None and after >= before and seconds > 0:
            blocks.append((a.observed_at_seconds, b.observed_at_seconds, (after - before) / seconds))
    return blocks


def grown(readings: Sequence[PodReading], value: Value) -> float | None:
    """Growth of a counter over all schedulers; None when it is missing or fell."""
    first, last = _total(readings[0], value), _total(readings[-1], value)
    return None if first is None or last is None or last < first else last - first


def _total(reading: PodReading, value: Value) -> float | None:
    values = [value(scheduler) for scheduler in reading.schedulers]
    known = [item for item in values if item is not None]
    return sum(known) if known and len(known) == len(values) else None


def _known(readings: Sequence[PodReading], value: Value) -> list[float]:
    totals = (_total(reading, value) for reading in readings)
    return [total for total in totals if total is not None]


def _mean(readings: Sequence[PodReading], value: Value) -> float | None:
    known = _known(readings, value)
    return fmean(known) if known else None


def _largest(readings: Sequence[PodReading], value: Value) -> float | None:
    values = [value(scheduler) for reading in readings for scheduler in reading.schedulers]
    return max((item for item in values if item is not None), default=None)


def _acceptance(readings: Sequence[PodReading]) -> float | None:
    """Tokens per request and step: from counters, else the mean of what the gauge showed."""
    accepted = grown(readings, lambda s: s.accepted_tokens_total)
    steps = grown(readings, lambda s: s.request_steps_total)
    drafts = grown(readings, lambda s: s.drafts_total)
    per = steps or drafts
    if accepted is not None and per:
        return 1 + accepted / per
    shown = [s.acceptance_length for r in readings for s in r.schedulers if s.acceptance_length]
    return fmean(shown) if shown else None


def _by_position(readings: Sequence[PodReading]) -> tuple[float, ...]:
    """Marginals of position 1..K."""
    drafts = grown(readings, lambda s: s.drafts_total)
    rows = [s.accepted_tokens_by_position_total for s in readings[-1].schedulers]
    if not drafts or any(row is None for row in rows):
        return ()
    width = max((len(row) for row in rows if row is not None), default=0)
    marginals = []
    for place in range(width):
        accepted = grown(readings, lambda s, at=place: _position(s, at))  # type: ignore[misc]
        if accepted is None:
            return ()
        marginals.append(min(1.0, accepted / drafts))
    return tuple(marginals)


def _position(scheduler: SchedulerReading, place: int) -> float | None:
    row = scheduler.accepted_tokens_by_position_total
    return None if row is None else (row[place] if place < len(row) else 0.0)


def _draft(readings: Sequence[PodReading]) -> tuple[int | None, bool]:
    """(draft length in force, whether it was not the same all the time)."""
    drafts = grown(readings, lambda s: s.drafts_total)
    drafted = grown(readings, lambda s: s.draft_tokens_total)
    shown = [round(s.draft_tokens) for r in readings[1:] for s in r.schedulers if s.draft_tokens is not None]
    if drafts and drafted is not None:
        mean = drafted / drafts
        return round(mean), abs(mean - round(mean)) > SAME_DRAFT or (0 in shown and round(mean) > 0)
    if not shown:
        return None, False
    usual = mode(shown)
    return usual, shown.count(usual) < MOSTLY * len(shown)
