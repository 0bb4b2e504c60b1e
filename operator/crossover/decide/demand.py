"""Demand: the output tokens/s that users ask of the fleet, whatever the fleet makes of them.

Occupancy depends on the draft length, demand does not (docs/design/0044). With L the mean output tokens per request:

    D = L (finished per second + d(waiting + running)/dt)          where the engine counts finished requests
    D = served + L d(waiting + running / 2)/dt                     where it does not

The first is exact: every arrival is either finished, running or waiting. In the second a running request owes half of its
output on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from crossover.api.decision import Memory
from crossover.api.fleet import FleetSnapshot, PodObservation
from crossover.decide.load import FleetLoad

FAST, MEDIUM, SLOW, LAST = "demand_fast", "demand_medium", "demand_slow", "demand_last_sample"
FAST_SECONDS, MEDIUM_SECONDS, SLOW_SECONDS = 30.0, 120.0, 600.0
OWED, OWED_AT, OWED_PODS = "owed_requests", "owed_at_seconds", "owed_pods"
INSIDE, FINISHED, OUTPUT = "requests_inside", "requests_finished", "output_tokens_per_request"
LONGEST_STEP_SECONDS = 60.0
FEWEST_FINISHED = 20
DEFAULT_STARTUP_SECONDS = 180.0
RUNNING_SHARE = 0.5
"""A running request has, on average, half of its output before it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Output tokens/s over the fleet."""

    now: float
    """Short horizon: the last half minute, or the lower of the last two samples when that is more: a surge shows in two
    ticks, one noisy sample does not."""
    forecast: float
    """At ``horizon_seconds`` from now, when a replica ordered now would be ready."""
    horizon_seconds: float
    trend: float
    """Tokens/s per second, as far as short and long horizon agree; 0 where they do not."""
    served: float
    backlog_tokens: float
    """Output tokens of the requests that wait; 0 where the output length is unknown."""
    lower_bound: bool
    """Full batches hide a queue: the demand is at least this."""

    @property
    def to_plan_for(self) -> float:
        return max(self.now, self.forecast)


ServedBy = Callable[[PodObservation], float | None]
"""Output tokens/s of a pod that does not tell them, from its batch."""


def observe_demand(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    memory: Memory,
    *,
    served_by: ServedBy | None = None,
    output_tokens: float | None = None,
) -> tuple[Demand | None, Memory]:
    """One sample into three moving averages. None = nothing is known now (the averages rest).

    ``output_tokens``: mean output length where the engine does not tell it. Pods that are ready and unknown are taken to
    serve what the known ones do on average.
    """
    seen = dict(memory.observations)
    rate = _served(snapshot, load, served_by)
    if rate is None:
        return None, memory
    length = _output_length(snapshot, seen, output_tokens)
    if length is not None:
        seen[OUTPUT] = length
    arrived = _arrived(snapshot, load, seen, length)
    sample = max(0.0, arrived if arrived is not None else rate + _growth(snapshot, load, seen, length))
    for name, horizon in ((FAST, FAST_SECONDS), (MEDIUM, MEDIUM_SECONDS), (SLOW, SLOW_SECONDS)):
        seen[name] = _average(seen.get(name), sample, _since(snapshot, seen), horizon)
    _note_owed(snapshot, load, seen)
    horizon = snapshot.startup_seconds if snapshot.startup_seconds is not None else DEFAULT_STARTUP_SECONDS
    trend = _trend(seen)
    now = max(seen[FAST], min(sample, seen.get(LAST, 0.0)))
    seen[LAST] = sample
    demand = Demand(
        now,
        max(0.0, now + trend * (horizon + FAST_SECONDS)),
        horizon,
        trend,
        rate,
        (length or 0.0) * (load.waiting or 0.0) * _whole(load),
        load.hidden_queues > 0,
    )
    return demand, replace(memory, observations=seen)


def _served(snapshot: FleetSnapshot, load: FleetLoad, served_by: ServedBy | None) -> float | None:
    """Sum over ready pods; unknown ones at the mean of the known."""
    rates = []
    for pod in snapshot.known:
        rate = pod.output_tokens_per_second
        if rate is None:
            rate = _from_tpot(pod)
        if rate is None and served_by is not None:
            rate = served_by(pod)
        if rate is not None and math.isfinite(rate):
            rates.append(max(0.0, rate))
    if not rates:
        return None
    return sum(rates) / len(rates) * (load.known + load.unknown)


def _from_tpot(pod: PodObservation) -> float | None:
    """S = b / TPOT."""
    tpot, reading = pod.time_per_output_token_seconds, pod.reading
    if not tpot or reading is None:
        return None
    running = [scheduler.running_requests for scheduler in reading.schedulers]
    known = [value for value in running if value is not None]
    return sum(known) / tpot if known and len(known) == len(running) else None


def _output_length(snapshot: FleetSnapshot, seen: Mapping[str, float], given: float | None) -> float | None:
    """Tokens per finished request over the lifetimes of the processes: one number, hardly noisy, no state needed."""
    tokens, finished = 0.0, 0.0
    for pod in snapshot.known:
        schedulers = pod.reading.schedulers if pod.reading is not None else ()
        counts = [s.time_per_output_token_count for s in schedulers if s.time_per_output_token_count is not None]
        totals = [s.output_tokens_total for s in schedulers if s.output_tokens_total is not None]
        if counts and totals:
            tokens, finished = tokens + sum(totals), finished + sum(counts)
    if finished >= FEWEST_FINISHED and tokens > 0:
        return tokens / finished
    return given if given is not None else seen.get(OUTPUT)


def _arrived(snapshot: FleetSnapshot, load: FleetLoad, seen: Mapping[str, float], length: float | None) -> float | None:
    """Output tokens/s that arrived since the last sample, by counting requests; None where it cannot be counted."""
    inside, finished, seconds = seen.get(INSIDE), seen.get(FINISHED), _seconds_comparable(snapshot, load, seen)
    now = _finished(snapshot)
    if length is None or inside is None or finished is None or now is None or seconds is None or now < finished:
        return None
    return length * (now - finished + _inside(load) - inside) / seconds * _whole(load)


def _finished(snapshot: FleetSnapshot) -> float | None:
    """Requests finished since the start of the processes; None when one known pod does not count them."""
    total = 0.0
    for pod in snapshot.known:
        schedulers = pod.reading.schedulers if pod.reading is not None else ()
        counts = [s.time_per_output_token_count for s in schedulers if s.time_per_output_token_count is not None]
        if not counts:
            return None
        total += sum(counts)
    return total


def _inside(load: FleetLoad) -> float:
    return (load.waiting or 0.0) + (load.running or 0.0)


def _owed(load: FleetLoad) -> float:
    """Requests that are owed, running ones by half; unknown pods like the known."""
    return ((load.waiting or 0.0) + RUNNING_SHARE * (load.running or 0.0)) * _whole(load)


def _whole(load: FleetLoad) -> float:
    """From the known pods to all ready ones."""
    return (load.known + load.unknown) / load.known if load.known else 1.0


def _seconds_comparable(snapshot: FleetSnapshot, load: FleetLoad, seen: Mapping[str, float]) -> float | None:
    """Seconds since the last sample when it was of the same pods: what a leaving pod still works on is not demand that
    vanished."""
    at = seen.get(OWED_AT)
    if at is None or seen.get(OWED_PODS) != _pods(snapshot, load):
        return None
    seconds = snapshot.at_seconds - at
    return seconds if 0 < seconds <= LONGEST_STEP_SECONDS else None


def _growth(snapshot: FleetSnapshot, load: FleetLoad, seen: Mapping[str, float], length: float | None) -> float:
    """Growth of what is owed in tokens/s; 0 where it cannot be told."""
    before, seconds = seen.get(OWED), _seconds_comparable(snapshot, load, seen)
    if before is None or length is None or seconds is None:
        return 0.0
    return length * (_owed(load) - before) / seconds


def _pods(snapshot: FleetSnapshot, load: FleetLoad) -> float:
    """Changes whenever the set of known pods does (up to collisions that cost one noisy sample)."""
    names = sum(sum(pod.uid.encode()) * (1 + len(pod.uid)) for pod in snapshot.known)
    return float(names % 1_000_003 + 1_000_003 * load.known)


def _note_owed(snapshot: FleetSnapshot, load: FleetLoad, seen: dict[str, float]) -> None:
    seen[OWED], seen[OWED_AT], seen[OWED_PODS] = _owed(load), snapshot.at_seconds, _pods(snapshot, load)
    seen[INSIDE] = _inside(load)
    finished = _finished(snapshot)
    if finished is None:
        seen.pop(FINISHED, None)
    else:
        seen[FINISHED] = finished


def _since(snapshot: FleetSnapshot, seen: Mapping[str, float]) -> float:
    at = seen.get(OWED_AT)
    return 0.0 if at is None else min(LONGEST_STEP_SECONDS, max(0.0, snapshot.at_seconds - at))


def _average(before: float | None, sample: float, seconds: float, horizon: float) -> float:
    """Exponential average in continuous time; the first sample stands for the whole past."""
    if before is None:
        return sample
    return before + (sample - before) * (1 - math.exp(-seconds / horizon))


def _trend(seen: Mapping[str, float]) -> float:
    """On a ramp of slope s an average of horizon h lags by s h: two differences give two slopes. Only as much trend as
    both show counts, so that a step is no ramp and noise is no trend."""
    short = (seen[FAST] - seen[MEDIUM]) / (MEDIUM_SECONDS - FAST_SECONDS)
    long = (seen[MEDIUM] - seen[SLOW]) / (SLOW_SECONDS - MEDIUM_SECONDS)
    if short * long <= 0:
        return 0.0
    return math.copysign(min(abs(short), abs(long)), short)
