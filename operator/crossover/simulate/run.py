"""One policy through one trace on one plant, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from crossover.simulate.fleet import DraftTable, Fleet, Physics, Served
from crossover.simulate.observation import Observation, observe
from crossover.simulate.policies.base import ReplicaPolicy
from crossover.simulate.traces import Trace

REVERSAL_SECONDS = 600.0
SERIES_POINTS = 600

MakePolicy = Callable[[Fleet], ReplicaPolicy]


@dataclass(frozen=True, slots=True)
class Bounds:
    min: int
    max: int


@dataclass(slots=True)
class Series:
    """What happened, thinned for plots."""

    seconds: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measures of one run. Attainment is the share of all requests, dropped ones included, within the target."""

    policy: str
    seed: int
    gpu_hours: float
    ttft_attainment: float
    tpot_attainment: float
    attainment: float
    output_tokens_within_slo_per_gpu_hour: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    replica_changes: int
    draft_changes: int
    restarts: int
    reversals: int
    dropped_requests: float
    series: Series


def run(
    name: str,
    trace: Trace,
    physics: Physics,
    bounds: Bounds,
    table: DraftTable,
    make: MakePolicy,
    *,
    seed: int,
    metric_loss: float = 0.0,
    metric_delay_seconds: float = 5.0,
    start: int | None = None,
) -> Outcome:
    """``start``: replicas at the beginning, by default enough for the first minutes. Same arguments, same outcome."""
    fleet = Fleet(physics, start if start is not None else bounds.min, table, seed)
    policy = make(fleet)
    chance = random.Random(seed * 7919)
    ledger = _Ledger(physics, max(1, len(trace.bins) // SERIES_POINTS))
    due, seen = 0.0, observe(fleet)
    delayed: list[Observation] = []
    for number, arrivals in enumerate(trace.bins):
        ledger.served(fleet.step(arrivals, trace.bin_seconds))
        ledger.look(number, fleet, arrivals.requests / trace.bin_seconds)
        delayed.append(observe(fleet))
        if fleet.state.now < due:
            continue
        due = fleet.state.now + policy.interval_seconds
        while len(delayed) > 1 and delayed[1].at_seconds <= fleet.state.now - metric_delay_seconds:
            delayed.pop(0)
        seen = _as_seen(delayed[0], fleet, chance.random() >= metric_loss)
        wanted = policy.decide(seen)
        if wanted is not None:
            ledger.scaled(fleet, min(max(wanted, bounds.min), bounds.max))
        del delayed[: -int(2 * metric_delay_seconds / trace.bin_seconds) - 60]
    return ledger.outcome(name, seed, fleet)


def _as_seen(old: Observation, fleet: Fleet, known: bool) -> Observation:
    """Load is seen late; the replica count is the API server's and is not."""
    state = fleet.state
    scale = state.ready / old.ready
    return Observation(
        at_seconds=state.now,
        ready=state.ready,
        pending=len(state.pending),
        running=old.running * min(1.0, scale),
        waiting=old.waiting,
        kv_usage=old.kv_usage,
        max_running_requests=old.max_running_requests,
        kv_capacity_tokens=old.kv_capacity_tokens,
        draft_tokens=old.draft_tokens,
        output_rate=old.output_rate,
        arrival_rate=old.arrival_rate,
        input_rate=old.input_rate,
        mean_input=old.mean_input,
        mean_output=old.mean_output,
        mean_context=old.mean_context,
        tpot_seconds=old.tpot_seconds,
        acceptance_length=old.acceptance_length,
        rolling=fleet.rollout_until is not None,
        known=known,
    )


class _Ledger:
    """Adds up what happened."""

    def __init__(self, physics: Physics, stride: int) -> None:
        self._physics, self._stride = physics, stride
        self._served: list[Served] = []
        self._series = Series()
        self._changes: list[tuple[float, int]] = []
        self._draft: int | None = None
        self._draft_changes = 0

    def served(self, cohorts: list[Served]) -> None:
        self._served += cohorts

    def look(self, number: int, fleet: Fleet, arrivals: float) -> None:
        state = fleet.state
        if self._draft is not None and state.draft_tokens != self._draft:
            self._draft_changes += 1
        self._draft = state.draft_tokens
        if number % self._stride:
            return
        series = self._series
        series.seconds.append(state.now)
        series.arrivals.append(arrivals)
        series.ready.append(state.ready)
        series.batch.append(state.running / state.ready)
        series.draft.append(state.draft_tokens)
        series.tpot.append(state.tpot_seconds)
        series.waiting.append(state.waiting)

    def scaled(self, fleet: Fleet, wanted: int) -> None:
        before = fleet.state.replicas
        if wanted != before:
            fleet.scale(wanted)
            self._changes.append((fleet.state.now, wanted - before))

    def outcome(self, name: str, seed: int, fleet: Fleet) -> Outcome:
        physics, state = self._physics, fleet.state
        lost = state.dropped + state.waiting
        total = sum(item.requests for item in self._served) + lost
        in_ttft = sum(i.requests for i in self._served if i.ttft_seconds <= physics.ttft_target_seconds)
        in_tpot = sum(i.requests for i in self._served if i.tpot_seconds <= physics.tpot_target_seconds)
        good = [i for i in self._served if self._within(i)]
        hours = state.gpu_seconds / 3600
        return Outcome(
            policy=name,
            seed=seed,
            gpu_hours=hours,
            ttft_attainment=in_ttft / max(total, 1e-9),
            tpot_attainment=in_tpot / max(total, 1e-9),
            attainment=sum(item.requests for item in good) / max(total, 1e-9),
            output_tokens_within_slo_per_gpu_hour=sum(i.requests * i.output_tokens for i in good) / max(hours, 1e-9),
            ttft_p50_s=_quantile([(i.ttft_seconds, i.requests) for i in self._served], 0.5),
            ttft_p99_s=_quantile([(i.ttft_seconds, i.requests) for i in self._served], 0.99),
            tpot_p50_s=_quantile([(i.tpot_seconds, i.requests) for i in self._served], 0.5),
            tpot_p99_s=_quantile([(i.tpot_seconds, i.requests) for i in self._served], 0.99),
            replica_changes=len(self._changes),
            draft_changes=self._draft_changes,
            restarts=fleet.restarts,
            reversals=self._reversals(),
            dropped_requests=state.dropped,
            series=self._series,
        )

    def _within(self, item: Served) -> bool:
        physics = self._physics
        return item.ttft_seconds <= physics.ttft_target_seconds and item.tpot_seconds <= physics.tpot_target_seconds

    def _reversals(self) -> int:
        """Changes against the direction of the one before, within ten minutes of it."""
        return sum(
            1
            for (first_at, first), (at, change) in pairwise(self._changes)
            if first * change < 0 and at - first_at <= REVERSAL_SECONDS
        )


def _quantile(pairs: list[tuple[float, float]], share: float) -> float:
    """Weighted by requests; 0 where nothing was served."""
    total = sum(weight for _, weight in pairs)
    left = share * total
    for value, weight in sorted(pairs):
        left -= weight
        if left <= 0:
            return value
    return 0.0
