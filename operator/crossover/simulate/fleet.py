"""A fleet as a fluid: arrivals, a first-come queue, continuous batching, KV and batch limits, start-up and drain.

Replicas share the load equally (a least-requests router). In a bin of dt seconds the running requests follow
db/dt = admitted - b AL / (t L) with step time t, acceptance length AL and mean output length L, solved implicitly, so a
bin may be longer than a request. What this loses against a request-by-request run is measured in bench/fluid.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from crossover.simulate.plant import Plant
from crossover.simulate.traces import Bin

DROP_SECONDS = 300.0
"""A client that has waited this long for its first token has gone."""
MOST_PREFILL = 0.9
ITERATIONS = 3
DraftTable = Callable[[float], tuple[int, bool]]
"""Running requests per replica -> (draft length, off)."""


@dataclass(frozen=True, slots=True)
class Physics:
    """Things that no policy can change."""

    plant: Plant
    max_running_requests: int = 256
    startup_median_seconds: float = 180.0
    startup_sigma: float = 0.42
    """Lognormal; 95th percentile twice the median."""
    ttft_target_seconds: float = 2.0
    tpot_target_seconds: float = 0.04
    failure_seconds: float | None = None
    """One pod fails at this time of the trace and is replaced."""


@dataclass(slots=True)
class Served:
    """One cohort that got its first token."""

    requests: float
    output_tokens: float
    ttft_seconds: float
    tpot_seconds: float


@dataclass(slots=True)
class Cohort:
    arrived_at: float
    requests: float
    input_tokens: float
    output_tokens: float


@dataclass(slots=True)
class State:
    """Everything a policy may look at, through `observe`."""

    now: float = 0.0
    ready: int = 1
    pending: list[float] = field(default_factory=list)
    """Times at which starting replicas become ready."""
    draining: list[float] = field(default_factory=list)
    running: float = 0.0
    mean_output: float = 200.0
    mean_context: float = 500.0
    queue: deque[Cohort] = field(default_factory=deque)
    draft_tokens: int = 0
    step_seconds: float = 0.0
    tpot_seconds: float = 0.0
    prefill_share: float = 0.0
    output_rate: float = 0.0
    arrival_rate: float = 0.0
    input_rate: float = 0.0
    gpu_seconds: float = 0.0
    dropped: float = 0.0

    @property
    def waiting(self) -> float:
        return sum(item.requests for item in self.queue)

    @property
    def replicas(self) -> int:
        return self.ready + len(self.pending)


class Fleet:
    """Advance with `step`; change with `scale`."""

    def __init__(self, physics: Physics, replicas: int, table: DraftTable, seed: int) -> None:
        self.physics, self.table = physics, table
        self.state = State(ready=replicas)
        self.rollout_until: float | None = None
        self._next_table: DraftTable | None = None
        self._chance = random.Random(seed)
        self.restarts = 0

    def scale(self, replicas: int) -> None:
        """More start now and are ready later; fewer stop taking requests at once and drain. Starting ones go first."""
        state = self.state
        while state.replicas < replicas:
            state.pending.append(state.now + self.startup_seconds())
        while state.replicas > max(replicas, 1) and state.pending:
            state.pending.remove(max(state.pending))
        leaving = min(state.ready - 1, state.replicas - replicas)
        if leaving > 0:
            drain = state.mean_output * max(state.tpot_seconds, 0.005)
            state.draining += [state.now + drain] * leaving
            state.running *= 1 - leaving / state.ready  # they finish there, and their tokens are counted already
            state.ready -= leaving

    def startup_seconds(self) -> float:
        physics = self.physics
        return physics.startup_median_seconds * self._chance.lognormvariate(0.0, physics.startup_sigma)

    def roll(self, table: DraftTable) -> None:
        """Replace every pod, one surge pod at a time: the new table counts when the last is ready."""
        self.rollout_until = self.state.now + self.state.ready * self.physics.startup_median_seconds
        self._next_table = table
        self.restarts += self.state.ready

    def step(self, arrivals: Bin, dt: float) -> list[Served]:
        state = self.state
        state.now += dt
        self._lifecycle(dt)
        if arrivals.requests:
            state.queue.append(Cohort(state.now, arrivals.requests, arrivals.input_tokens, arrivals.output_tokens))
        self._smooth(arrivals, dt)
        # A request feels the prefills of others over its whole life, not those of one bin.
        life = max(dt, state.mean_output * max(state.tpot_seconds, 0.002))
        state.prefill_share += dt / life * (self._prefill_share(arrivals, dt) - state.prefill_share)
        room, turnover = self._settle(dt)
        admitted = self._admit(room)
        whole = state.running + sum(item.requests for item in admitted)
        state.running = whole / (1 + turnover)
        state.output_rate = (whole - state.running) * state.mean_output / dt
        return admitted

    def _settle(self, dt: float) -> tuple[float, float]:
        """Requests that may start in this bin, and how often the batch turns over in it.

        The step time is that of the batch at the end of the bin, found by a few averaged iterations: a bin may be longer
        than a request, and then more requests than the batch limit pass through it.
        """
        state, physics = self.state, self.physics
        by_kv = physics.plant.kv_capacity_tokens / max(state.mean_context, 1.0)
        limit = state.ready * min(physics.max_running_requests, by_kv)
        offered, running = state.waiting, state.running
        for _ in range(ITERATIONS):
            per_replica = running / state.ready
            draft, off = self.table(per_replica)
            time = physics.plant.step_seconds(max(per_replica, 1.0), draft, per_replica * state.mean_context, off)
            tpot = time / physics.plant.acceptance_length(draft) / (1 - min(MOST_PREFILL, state.prefill_share))
            turnover = dt / (tpot * state.mean_output)
            room = max(limit * (1 + turnover) - state.running, 0.0)
            running = (running + (state.running + min(offered, room)) / (1 + turnover)) / 2
        state.draft_tokens, state.step_seconds, state.tpot_seconds = draft, time, tpot
        return room, turnover

    def _lifecycle(self, dt: float) -> None:
        state = self.state
        came = [at for at in state.pending if at <= state.now]
        state.pending = [at for at in state.pending if at > state.now]
        state.ready += len(came)
        state.draining = [at for at in state.draining if at > state.now]
        surge = 1 if self.rollout_until is not None else 0
        state.gpu_seconds += dt * (state.ready + len(state.pending) + len(state.draining) + surge)
        failure = self.physics.failure_seconds
        if failure is not None and state.now - dt < failure <= state.now and state.ready > 1:
            state.dropped += state.running / state.ready
            state.running *= 1 - 1 / state.ready
            state.ready -= 1
            state.pending.append(state.now + self.startup_seconds())
        if self.rollout_until is not None and state.now >= self.rollout_until:
            assert self._next_table is not None
            self.table, self.rollout_until = self._next_table, None

    def _smooth(self, arrivals: Bin, dt: float) -> None:
        state = self.state
        weight = min(1.0, dt / 60.0)
        state.arrival_rate += weight * (arrivals.requests / dt - state.arrival_rate)
        state.input_rate += weight * (arrivals.requests * arrivals.input_tokens / dt - state.input_rate)
        if arrivals.requests:
            share = min(1.0, arrivals.requests / (arrivals.requests + state.running + 1.0))
            state.mean_output += share * (arrivals.output_tokens - state.mean_output)
            whole = arrivals.input_tokens + arrivals.output_tokens / 2
            state.mean_context += share * (whole - state.mean_context)

    def _prefill_share(self, arrivals: Bin, dt: float) -> float:
        tokens = arrivals.requests * arrivals.input_tokens / self.state.ready
        return self.physics.plant.prefill_seconds(tokens) / dt if tokens else 0.0

    def _admit(self, room: float) -> list[Served]:
        """First come, first served, as far as batch and KV limits let them."""
        state, physics = self.state, self.physics
        served = []
        while state.queue:
            cohort = state.queue[0]
            waited = state.now - cohort.arrived_at
            if waited > DROP_SECONDS:
                state.dropped += state.queue.popleft().requests
                continue
            if room <= 0:
                break
            taken = min(room, cohort.requests)
            ttft = waited + physics.plant.prefill_seconds(cohort.input_tokens) + state.step_seconds
            served.append(Served(taken, cohort.output_tokens, ttft, state.tpot_seconds))
            room -= taken
            cohort.requests -= taken
            if cohort.requests <= 1e-9:
                state.queue.popleft()
        return served
