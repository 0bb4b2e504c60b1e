"""Crossover's policies: the very `decide.plan` of the operator, and the clairvoyant plan that knows the trace."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from crossover.api.decision import Decision, Lever, Memory
from crossover.api.fleet import (
    Capability,
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    ScheduleDialect,
    SchedulerReading,
    SpeculationSettings,
)
from crossover.api.intent import Intent, Objectives, ReplicaIntent, SpeculationIntent
from crossover.decide import plan, with_changes
from crossover.decide.profile import Profile
from crossover.decide.schedule import Schedule
from crossover.observe.rates import WINDOW_SECONDS
from crossover.simulate.fleet import MOST_PREFILL, Physics
from crossover.simulate.observation import Observation
from crossover.simulate.plant import Plant
from crossover.simulate.traces import Bin, Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    min: int
    max: int
    max_draft_tokens: int


class Counted:
    """One pod's counters as a server would show them, and the rates that the operator's observer takes from them: over
    `WINDOW_SECONDS`. Pods are alike, so one stands for all."""

    def __init__(self) -> None:
        self.tokens = self.finished = self._tpot_sum = 0.0
        self._history: deque[tuple[float, float, float, float]] = deque()

    def look(self, seen: Observation) -> None:
        step = seen.at_seconds - self._history[-1][0] if self._history else 0.0
        tokens = seen.output_rate / seen.ready * step
        self.tokens += tokens
        self.finished += tokens / max(seen.mean_output, 1.0)
        self._tpot_sum += tokens / max(seen.mean_output, 1.0) * seen.tpot_seconds
        self._history.append((seen.at_seconds, self.tokens, self.finished, self._tpot_sum))
        while len(self._history) > 2 and self._history[0][0] < seen.at_seconds - WINDOW_SECONDS:
            self._history.popleft()

    @property
    def mean_tpot_seconds(self) -> float:
        return self._tpot_sum / self.finished if self.finished else 0.0

    @property
    def rate(self) -> float | None:
        first, last = self._history[0], self._history[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None

    @property
    def tpot_seconds(self) -> float | None:
        first, last = self._history[0], self._history[-1]
        return (last[3] - first[3]) / (last[2] - first[2]) if last[2] > first[2] else None


class Crossover:
    """`plan(snapshot, intent, memory, profile)` every 5 s; without a profile: simple mode with ``target``.

    ``on_schedule`` is called when the plan writes another engine schedule (a rollout).
    """

    interval_seconds = 5.0

    def __init__(
        self,
        bounds: Bounds,
        physics: Physics,
        on_schedule: Callable[[Schedule], None],
        *,
        target: float | None = None,
        threshold: int = 32,
        profile: Profile | None = None,
        utilization: float = 0.85,
    ) -> None:
        self._profile, self._on_schedule = profile, on_schedule
        self._memory = Memory()
        self._schedule: Schedule = ()
        self._limit = physics.max_running_requests
        speculation = SpeculationIntent(
            disable_above_running_requests=None if profile is not None else threshold,
            enable_below_running_requests=None if profile is not None else int(threshold * 0.625),
            max_draft_tokens=bounds.max_draft_tokens,
        )
        running = None if target is None else max(1, round(target))
        replicas = ReplicaIntent(bounds.min, bounds.max, running, utilization)
        objectives = Objectives(physics.tpot_target_seconds, physics.ttft_target_seconds)
        self._intent = Intent(replicas, speculation, objectives)
        self._startup = physics.startup_median_seconds
        self._counted = Counted()
        self._max_draft = bounds.max_draft_tokens

    def decide(self, seen: Observation) -> int | None:
        decision: Decision = plan(self._snapshot(seen), self._intent, self._memory, self._profile)
        replicas = decision.replicas.target
        schedule = decision.draft.schedule if decision.draft.lever is Lever.ENGINE_SCHEDULE else ()
        written = decision.draft.target is not None and bool(schedule)
        self._memory = with_changes(decision.memory, decision, replicas=replicas is not None, draft=written)
        if written:
            self._schedule = schedule
            self._on_schedule(schedule)
        return replicas

    def _snapshot(self, seen: Observation) -> FleetSnapshot:
        """What the operator would see of this fleet."""
        self._counted.look(seen)
        pods = [self._pod(f"pod-{number:03}", seen) for number in range(seen.ready)]
        pods += [self._starting(f"new-{number:03}", seen) for number in range(seen.pending)]
        settings = SpeculationSettings(EngineType.SGLANG, True, "EAGLE", self._max_draft, self._schedule)
        return FleetSnapshot(
            at_seconds=seen.at_seconds,
            desired_replicas=seen.replicas,
            pods=tuple(pods),
            stale_after_seconds=30.0,
            rollout_in_progress=seen.rolling,
            settings=settings,
            startup_seconds=self._startup,
        )

    def _pod(self, name: str, seen: Observation) -> PodObservation:
        counted = self._counted
        capability = Capability(
            EngineType.SGLANG,
            "0.5.23",
            "EAGLE",
            max_draft_tokens=self._max_draft,
            schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE,
            follows_schedule=bool(self._schedule),
            zero_is_safe=True,
            max_running_requests=self._limit,
        )
        scheduler = SchedulerReading(
            "dp0",
            running_requests=seen.running / seen.ready,
            waiting_requests=seen.waiting / seen.ready,
            max_running_requests=float(self._limit),
            kv_usage=seen.kv_usage,
            kv_tokens=seen.kv_usage * seen.kv_capacity_tokens,
            kv_capacity_tokens=seen.kv_capacity_tokens,
            draft_tokens=float(seen.draft_tokens),
            acceptance_length=seen.acceptance_length,
            output_tokens_total=counted.tokens,
            time_per_output_token_seconds_sum=counted.finished * counted.mean_tpot_seconds,
            time_per_output_token_count=counted.finished,
        )
        reading = PodReading(EngineType.SGLANG, "0.5.23", "/v1/loads", seen.at_seconds, (scheduler,))
        return PodObservation(
            name=name,
            uid=name,
            phase=PodPhase.READY,
            address=None,
            template_hash="a",
            created_at_seconds=0.0,
            ready_at_seconds=self._startup,
            reading=reading if seen.known else None,
            reading_age_seconds=1.0 if seen.known else None,
            output_tokens_per_second=counted.rate,
            acceptance_length=seen.acceptance_length,
            time_per_output_token_seconds=counted.tpot_seconds,
            capability=capability,
        )

    def _starting(self, name: str, seen: Observation) -> PodObservation:
        return PodObservation(
            name=name,
            uid=name,
            phase=PodPhase.PENDING,
            address=None,
            template_hash="a",
            created_at_seconds=seen.at_seconds,
        )


def best_table(plant: Plant, physics: Physics, longest: int, context: float) -> list[int]:
    """Draft length with most output for every batch up to the limit, gated zero included: index = running requests."""
    table = [longest]
    for batch in range(1, physics.max_running_requests + 1):
        speeds = {
            draft: batch * plant.acceptance_length(draft) / plant.step_seconds(batch, draft, batch * context, False)
            for draft in range(longest + 1)
        }
        table.append(max(speeds, key=lambda draft: speeds[draft]))
    return table


def steady_tpot(physics: Physics, table: list[int], trace: Trace, rate: float) -> float | None:
    """TPOT of one replica that serves ``rate`` requests per second for ever; None = it cannot.

    Little's law: b = rate x output length x TPOT(b), with TPOT longer by the share of time that prefills take.
    """
    plant = physics.plant
    context = trace.mean_input_tokens + trace.mean_output_tokens / 2
    prefill = plant.prefill_seconds(rate * trace.mean_input_tokens)  # prompts of a second share their chunks
    if prefill >= MOST_PREFILL:
        return None
    limit = min(physics.max_running_requests, int(plant.kv_capacity_tokens / max(context, 1.0)))
    for batch in range(1, limit + 1):
        time = plant.step_seconds(batch, table[batch], batch * context, False)
        tpot = time / plant.acceptance_length(table[batch]) / (1 - prefill)
        if rate * trace.mean_output_tokens * tpot <= batch:
            return tpot
    return None


def most_requests(trace: Trace, physics: Physics, table: list[int]) -> float:
    """Highest rate of requests that one replica serves for ever within the TPOT target."""
    low, high = 0.0, 1000.0
    for _ in range(40):
        middle = (low + high) / 2
        tpot = steady_tpot(physics, table, trace, middle)
        low, high = (middle, high) if tpot is not None and tpot <= physics.tpot_target_seconds else (low, middle)
    return max(low, 1e-6)


class Clairvoyant:
    """Knows the trace and the plant: at every time as many replicas as the next start-up time will need. The limit.

    ``margin``: share of the rate at which a replica just meets the TPOT target that it is given.
    """

    interval_seconds = 5.0
    SMOOTH_SECONDS = 20.0

    def __init__(self, trace: Trace, physics: Physics, table: list[int], margin: float) -> None:
        per_replica = margin * most_requests(trace, physics, table)
        size = max(1, int(self.SMOOTH_SECONDS / trace.bin_seconds))
        self._window, self._startup = size * trace.bin_seconds, physics.startup_median_seconds * 1.5
        self._needed = []
        for first in range(0, len(trace.bins), size):
            part = trace.bins[first : first + size]
            rate = sum(item.requests * self._weight(item, trace) for item in part) / (len(part) * trace.bin_seconds)
            self._needed.append(max(1, math.ceil(rate / per_replica)))

    @staticmethod
    def _weight(item: Bin, trace: Trace) -> float:
        """Long requests count for more than the mean request."""
        return (item.input_tokens / trace.mean_input_tokens + item.output_tokens / trace.mean_output_tokens) / 2

    def decide(self, seen: Observation) -> int | None:
        now = int(seen.at_seconds / self._window)
        ahead = int((seen.at_seconds + self._startup) / self._window) + 1
        part = self._needed[now : ahead + 1] or self._needed[-1:]
        return max(part)
