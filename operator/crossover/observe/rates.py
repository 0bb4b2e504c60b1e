"""From counters to rates: pure, survives process restarts, never guesses.

A counter that fell was reset: that step contributes nothing (its tokens before the reset are lost, after it unknown),
and a rate needs at least one clean step in its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from crossover.api.fleet import PodReading, SchedulerReading

WINDOW_SECONDS = 30.0
MIN_STEP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class PodRates:
    """Over the window, per pod. None = the engine has no counter for it, or nothing happened that could tell."""

    output_tokens_per_second: float | None = None
    acceptance_length: float | None = None
    time_per_output_token_seconds: float | None = None
    time_to_first_token_seconds: float | None = None


Counter = Callable[[SchedulerReading], float | None]


def pod_rates(history: Sequence[PodReading]) -> PodRates:
    """``history``: readings of one pod, oldest first; those older than the window before the newest are ignored."""
    if not history:
        return PodRates()
    newest = history[-1]
    window = [item for item in history if item.observed_at_seconds >= newest.observed_at_seconds - WINDOW_SECONDS]
    tokens, seconds = _grown(window, lambda s: s.output_tokens_total)
    drafts = _grown(window, lambda s: s.drafts_total)[0]
    accepted = _grown(window, lambda s: s.accepted_tokens_total)[0]
    gauge = _gauge_sum(newest, lambda s: s.output_tokens_per_second)
    acceptance = 1 + accepted / drafts if drafts and accepted is not None else _acceptance_gauge(newest)
    return PodRates(
        tokens / seconds if tokens is not None and seconds >= MIN_STEP_SECONDS else gauge,
        acceptance,
        _mean(window, lambda s: s.time_per_output_token_seconds_sum, lambda s: s.time_per_output_token_count),
        _mean(window, lambda s: s.time_to_first_token_seconds_sum, lambda s: s.time_to_first_token_count),
    )


def was_reset(before: PodReading, after: PodReading) -> bool:
    """True when a counter fell: the process was restarted (or rebuilt its counters)."""
    old = {scheduler.name: scheduler.output_tokens_total for scheduler in before.schedulers}
    return any(
        scheduler.output_tokens_total is not None
        and (previous := old.get(scheduler.name)) is not None
        and scheduler.output_tokens_total < previous
        for scheduler in after.schedulers
    )


def _grown(window: Sequence[PodReading], counter: Counter) -> tuple[float | None, float]:
    """(sum of clean increments over the pod's schedulers, seconds they cover); None when no step could tell."""
    grown: float | None = None
    seconds = 0.0
    for before, after in pairwise(window):
        step = _step(before, after, counter)
        if step is not None:
            grown = (grown or 0.0) + step
            seconds += after.observed_at_seconds - before.observed_at_seconds
    return grown, seconds


def _step(before: PodReading, after: PodReading, counter: Counter) -> float | None:
    old = {scheduler.name: counter(scheduler) for scheduler in before.schedulers}
    total = 0.0
    for scheduler in after.schedulers:
        now, then = counter(scheduler), old.get(scheduler.name)
        if now is None or then is None or now < then:
            return None
        total += now - then
    return total if after.schedulers else None


def _mean(window: Sequence[PodReading], total: Counter, count: Counter) -> float | None:
    """Mean over the requests that ended in the window, from a histogram's sum and count."""
    grown, events = 0.0, 0.0
    for before, after in pairwise(window):
        seconds, number = _first_step(before, after, total), _first_step(before, after, count)
        if seconds is not None and number is not None:
            grown, events = grown + seconds, events + number
    return grown / events if events else None


def _first_step(before: PodReading, after: PodReading, counter: Counter) -> float | None:
    """Latency series belong to the pod and stand on one scheduler: the others have None."""
    old = [value for value in map(counter, before.schedulers) if value is not None]
    new = [value for value in map(counter, after.schedulers) if value is not None]
    if not old or not new or sum(new) < sum(old):
        return None
    return sum(new) - sum(old)


def _gauge_sum(reading: PodReading, gauge: Counter) -> float | None:
    values = [gauge(scheduler) for scheduler in reading.schedulers]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _acceptance_gauge(reading: PodReading) -> float | None:
    """Weighted by the batch: a rank with one request says little."""
    pairs = [
        (scheduler.acceptance_length, scheduler.running_requests)
        for scheduler in reading.schedulers
        if scheduler.acceptance_length is not None and scheduler.running_requests
    ]
    weight = sum(running for _, running in pairs)
    return sum(length * running for length, running in pairs) / weight if weight else None
