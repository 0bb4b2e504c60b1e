"""One point: keep so many requests in flight until the rate is known well enough, then say what it was.

The rate is the server's own count of tokens over the window, checked against the clients'; the batch is the clients', by
Little's law, checked against the server's gauge. Where the two disagree the point says so (`Measured.caveats`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import process_time

import httpx

from crossover.api.fleet import EngineType
from crossover.api.points import CalibrationPoint
from crossover.calibrate import probe
from crossover.calibrate.client_side import ClientSide, client_side, even_rates
from crossover.calibrate.contract import (
    Caveat,
    CaveatCode,
    Clock,
    Described,
    FailureReason,
    Measured,
    MeasureFailure,
    Phase,
    Precision,
    Progress,
    Report,
    Server,
)
from crossover.calibrate.counters import ServerSide, rate_blocks, server_side, was_restarted
from crossover.calibrate.doubts import doubts
from crossover.calibrate.load import GIVE_UP_SECONDS, ClosedLoop
from crossover.calibrate.probe import Template
from crossover.calibrate.steady import Steady, steady
from crossover.calibrate.workload import Workload
from crossover.decide.variant import GATED, OFF, Variant
from crossover.engines import ENGINES

POLLS = 16
"""Readings in the shortest window."""
SHORTEST_POLL, LONGEST_POLL = 0.1, 1.0
WARM_UP_SHARE = 0.4
"""Of the time of a point that warm-up may take at most."""
FEWEST_REQUESTS = 4
FEWEST_POLLS = 2
LUMPY = 0.05
"""Relative error from which a server's own rate is not taken where the clients count every step."""
SILENT_SECONDS = 8.0
"""So long may metrics that answered before stay away: a scrape may time out under load."""
PROBE_TOKENS = 64
LEAST_ERROR = 0.001
STEP_SCATTER, REQUEST_SCATTER = 0.5, 0.1


class RealClock:
    """The event loop's clock."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def describe(
    server: Server, *, http: httpx.AsyncClient, clock: Clock | None = None, template: Template | None = None
) -> Described:
    """What a server is and runs as. Raises `MeasureFailure`. Sends a few short requests when only counters can tell.
    ``template``: what it was started from, where known; most engines tell nothing but their version."""
    clock = clock or RealClock()
    engine, metrics = await probe.identify(server, http)
    capability = await probe.capability_of(server, engine, http, template)
    server = replace(server, route=await probe.route_of(server, engine, http))
    model = await probe.model_of(server, http)
    limit = capability.max_running_requests if capability is not None else None
    described = Described(
        server, engine.type, model, server.variant or OFF, capability, most_running_requests=limit, metrics=metrics
    )
    if server.variant is not None:
        return described
    if capability is not None and engine.type is EngineType.SGLANG:
        # The only server that describes its start-up arguments; the others are known by their counters.
        return _as(described, Variant(capability.max_draft_tokens) if capability.max_draft_tokens else OFF)
    return await _described_by_load(described, http, clock)


async def _described_by_load(described: Described, http: httpx.AsyncClient, clock: Clock) -> Described:
    """From the counters before and after a few answers."""
    if not described.metrics:
        raise MeasureFailure(
            FailureReason.METRICS_OFF,
            "the server serves no metrics, so nothing tells its draft length: switch them on "
            "(--enable-metrics; enable_iter_perf_stats and return_perf_metrics; no --disable-log-stats), or say it (--draft)",
        )
    sensor = probe.Sensor(described.server, ENGINES[described.engine], described.capability, http)
    await sensor.read(clock)
    async with ClosedLoop(described, Workload.fixed(16, PROBE_TOKENS), http, clock) as load:
        load.start(2)
        began = clock.now()
        while len(load.tally.finished) < FEWEST_REQUESTS and clock.now() - began < probe.PROBE_SECONDS * 3:
            await clock.sleep(0.25)
            load.check()
            await sensor.read(clock)
        await sensor.read(clock)
    readings = sensor.readings
    seen = server_side(readings, -math.inf, math.inf).draft_tokens
    if seen is None:
        raise MeasureFailure(
            FailureReason.METRICS_OFF, "the server's metrics do not tell its draft length: say it (--draft)"
        )
    last = readings[-1].schedulers
    speculates = any(item.drafts_total is not None or item.draft_tokens_total is not None for item in last)
    algorithm = described.capability.speculative_algorithm if described.capability is not None else None
    return _as(described, Variant(seen) if seen else (GATED if speculates or algorithm else OFF))


def _as(described: Described, variant: Variant) -> Described:
    return replace(described, variant=variant)


async def measure(
    described: Described,
    running_requests: int,
    workload: Workload,
    *,
    http: httpx.AsyncClient,
    precision: Precision | None = None,
    clock: Clock | None = None,
    progress: Report | None = None,
    seed: int = 1,
    cpu_seconds: Callable[[], float] = process_time,
) -> Measured:
    """One steady state with ``running_requests`` in flight. Raises `MeasureFailure`; cancelling it leaves nothing running.

    Ends as soon as output tokens/s is known to ``precision.relative_error``, at the latest after ``most_seconds``.
    """
    precision, clock = precision or Precision(), clock or RealClock()
    sensor = probe.Sensor(described.server, ENGINES[described.engine], described.capability, http)
    give_up = min(GIVE_UP_SECONDS, precision.most_seconds)
    async with ClosedLoop(
        described, workload, http, clock, seed=seed, cpu_seconds=cpu_seconds, give_up_seconds=give_up
    ) as load:
        run = _Run(described, running_requests, precision, clock, sensor, load, progress)
        await load.prepare()
        load.start(running_requests)
        await run.warm_up()
        found = await run.until_clear()
        return run.result(found)


@dataclass(slots=True)
class _Run:
    described: Described
    in_flight: int
    precision: Precision
    clock: Clock
    sensor: probe.Sensor
    load: ClosedLoop
    progress: Report | None
    began: float = 0.0
    window: float = 0.0
    """Where the window begins."""
    edges: list[float] = field(default_factory=list)
    """When its readings were taken."""
    read_at: float = 0.0
    """The newest reading."""
    by_clients: bool = False
    """The clients know the rate better than the server's counter tells it."""
    decoded: list[tuple[int, int] | None] = field(default_factory=list)
    """(tokens, decode steps) by the clients at each edge, where they are told."""

    async def warm_up(self) -> None:
        """Until the first requests have their first tokens: the prompts they all came with are out of the way."""
        self.began = self.read_at = self.clock.now()
        latest = self.began + WARM_UP_SHARE * self.precision.most_seconds
        polls = 0
        while True:
            at = await self._poll(Phase.WARMING_UP, None)
            polls += 1
            flying = self.load.tally.flying.values()
            waiting = any(item.streams and item.generation == 0 and item.first is None for item in flying)
            begun = len(flying) + len(self.load.tally.finished) >= self.in_flight
            if (begun and not waiting and polls >= FEWEST_POLLS) or at >= latest:
                break
        self.window = at
        self.edges = [at]
        self.decoded = [self.load.decoded()]
        self.load.begin_window()

    def _poll_seconds(self) -> float:
        return min(LONGEST_POLL, max(SHORTEST_POLL, self.precision.least_seconds / POLLS))

    async def until_clear(self) -> Steady | None:
        found: Steady | None = None
        while True:
            now = await self._poll(Phase.MEASURING, found)
            if not self.described.metrics or now == self.read_at:
                self.edges.append(now)
                self.decoded.append(self.load.decoded() if self.decoded[-1] is not None else None)
                found = self._found()
            enough = len([f for f in self.load.tally.finished if (f.ended or 0.0) >= self.window]) >= min(
                FEWEST_REQUESTS, self.in_flight
            )
            clear = found is not None and found.relative_error <= self.precision.relative_error
            if clear and enough and now - self.window >= self.precision.least_seconds:
                return found
            if now - self.began >= self.precision.most_seconds:
                if not self.load.tally.finished:
                    raise MeasureFailure(
                        FailureReason.NO_PROGRESS,
                        f"no answer was finished within {self.precision.most_seconds:g} s: allow more time for a point",
                    )
                return found

    def _found(self) -> Steady | None:
        """The better known of two series: the server's, and the clients' with every answer spread evenly over its time. A
        server's counter that moves only when requests end is the worse one."""
        tally = self.load.tally
        theirs = steady(self._blocks())
        if theirs is not None and theirs.relative_error <= max(LUMPY / 2, self.precision.relative_error):
            self.by_clients = False
            return theirs
        if len(self.edges) % POLLS and self.edges[-1] - self.began < 0.9 * self.precision.most_seconds:
            return theirs  # the other series costs too much to be looked at every time
        flying = list(tally.flying.values())
        ours = steady(even_rates(tally.finished, flying, self.edges))
        if ours is not None:
            scatter = client_side(tally.finished, flying, self.window, self.edges[-1]).scatter
            ours = replace(ours, start=0, relative_error=math.hypot(ours.relative_error, scatter))
        self.by_clients = ours is not None and (theirs is None or 2 * ours.relative_error < theirs.relative_error)
        return ours if self.by_clients else theirs

    def _blocks(self) -> list[float]:
        """Rates of equal blocks since the window began: decode steps where the clients are told, else by the server."""
        told = [item for item in self.decoded if item is not None]
        if len(told) == len(self.edges) and told[-1][1] > told[0][1]:
            pairs = zip(pairwise(told), pairwise(self.edges), strict=True)
            return [(after[1] - before[1]) / (right - left) for (before, after), (left, right) in pairs]
        return [rate for start, _, rate in rate_blocks(self.sensor.readings) if start >= self.window - 1e-9]

    async def _poll(self, phase: Phase, found: Steady | None) -> float:
        """When it was read."""
        await self.clock.sleep(self._poll_seconds())
        self.load.check()
        at = self.clock.now()
        if self.described.metrics:
            reading = await self.sensor.read(self.clock)
            if reading is not None:
                self.read_at = at = reading.observed_at_seconds
            elif self.clock.now() - self.read_at > SILENT_SECONDS:
                raise MeasureFailure(
                    FailureReason.SERVER_DIED, f"its metrics have not answered for {SILENT_SECONDS:g} s"
                )
            if was_restarted(self.sensor.readings[-2:]):
                raise MeasureFailure(
                    FailureReason.SERVER_DIED, "the server's counters began again: its process was replaced"
                )
        if self.progress is not None:
            passed = self.clock.now() - self.began
            error = found.relative_error if found is not None else None
            share = passed / self.precision.most_seconds
            if error:
                share = max(share, min(0.99, (self.precision.relative_error / error) ** 2))
            self.progress(Progress(phase, passed, min(1.0, share), error))
        return at

    # -- the result ---------------------------------------------------------------------------------------------------

    def result(self, found: Steady | None) -> Measured:
        end = self.edges[-1]
        start = self._steady_from(found)
        tally = self.load.tally
        client = client_side(tally.finished, list(tally.flying.values()), start, end)
        told = self._told(found)
        if told is not None:
            tokens, steps = told
            rate = tokens / (end - start)
            client = replace(client, acceptance_length=tokens / steps, tokens_per_second=rate)
            theirs = steady([rate for _, _, rate in rate_blocks(self.sensor.readings)])
            self.by_clients = theirs is None or theirs.relative_error > LUMPY
        server = server_side(self.sensor.readings, start, end) if self.described.metrics else ServerSide()
        if client.running_requests is None or client.tokens_per_second is None:
            raise MeasureFailure(
                FailureReason.NO_PROGRESS, "too few answers ended to measure anything: allow more time for a point"
            )
        error = found.relative_error if found is not None else 0.5
        late = sum(seconds for at, seconds in tally.late if at >= self.window) / max(1e-9, end - self.window)
        caveats = doubts(
            self.described,
            self.in_flight,
            client,
            server,
            relative_error=error,
            wanted_error=self.precision.relative_error,
            refused=tally.refused,
            busy_share=self.load.busy_share,
            late_share=late,
            server_counts_late=self.by_clients,
        )
        return self._measured(client, server, error, end - start, caveats)

    def _told(self, found: Steady | None) -> tuple[int, int] | None:
        """(tokens, decode steps) over the very window of the rate, so that luck with drafts cancels in the step time."""
        first = self.decoded[min(found.start, len(self.decoded) - 2) if found is not None else 0]
        last = self.decoded[-1]
        if first is None or last is None or last[1] <= first[1]:
            return None
        return last[0] - first[0], last[1] - first[1]

    def _steady_from(self, found: Steady | None) -> float:
        """Blocks lie between edges, so a block's number is its edge's."""
        return self.edges[min(found.start, len(self.edges) - 2)] if found is not None else self.edges[0]

    def _measured(
        self, client: ClientSide, server: ServerSide, error: float, seconds: float, caveats: tuple[Caveat, ...]
    ) -> Measured:
        variant = self.described.variant
        if server.draft_tokens is not None and server.draft_tokens != variant.draft_tokens and not variant.off:
            variant = Variant(server.draft_tokens)
        running = client.running_requests
        assert running is not None
        if server.running_requests and any(caveat.code is CaveatCode.LIMIT_MET for caveat in caveats):
            running = server.running_requests  # waits for room are long and uneven: the gauge knows better
        rate = client.tokens_per_second if self.by_clients else (server.tokens_per_second or client.tokens_per_second)
        assert rate is not None
        told = server.acceptance_length if server.acceptance_by_position else None
        length = told or client.acceptance_length or server.acceptance_length
        acceptance = 1.0 if not variant.draft_tokens else length
        kv = server.kv_tokens
        point = CalibrationPoint(
            running_requests=running,
            draft_tokens=variant.draft_tokens,
            off=variant.off,
            context_tokens=kv / running if kv else client.context_tokens,
            step_seconds=running * acceptance / rate if acceptance is not None else None,
            output_tokens_per_second=rate,
            acceptance_length=acceptance,
            acceptance_by_position=server.acceptance_by_position if variant.draft_tokens else (),
            relative_error=max(LEAST_ERROR, error),
            verified_tokens=self.described.verified_tokens if variant.draft_tokens else None,
            asked_running_requests=self.in_flight,
            acceptance_error=_luck(variant, running, seconds, rate, acceptance, client.requests),
        )
        return Measured(
            point,
            seconds,
            client.requests,
            client.time_per_output_token,
            client.time_to_first_token,
            client.tokens_per_second,
            server.tokens_per_second,
            kv,
            caveats,
        )


def _luck(
    variant: Variant, running: float, seconds: float, rate: float, acceptance: float | None, requests: int
) -> float | None:
    """Relative standard error of the acceptance length: of a request and step it scatters by about half of itself, and
    requests differ by about a tenth (published per-request logs, docs/design/0071)."""
    if acceptance is None or not variant.draft_tokens:
        return None
    request_steps = max(1.0, rate * seconds / acceptance)
    return math.hypot(
        STEP_SCATTER / math.sqrt(request_steps), REQUEST_SCATTER / math.sqrt(max(1.0, requests + running))
    )
