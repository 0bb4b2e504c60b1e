"""The load: exactly so many requests in flight, each replaced the moment it ends.

It begins as it would be after a long time: first requests are drawn as a running request is found (long answers count by
their length), at a random place of their answer, with what they would have written so far in the prompt. So nothing has
to be waited for until all requests are out of step, and KV memory is full from the start (docs/design/0071).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time
from types import TracebackType
from typing import NoReturn

import httpx

from crossover.calibrate import wire
from crossover.calibrate.contract import Clock, Described, FailureReason, MeasureFailure, Route
from crossover.calibrate.prompts import prompt
from crossover.calibrate.workload import Workload

MOST_STREAMS = 16
"""Requests that stream, evenly among all: enough to tell first-token times; a stream costs far more CPU here than an answer
in one piece."""
GIVE_UP_SECONDS = 20.0
"""So long may nothing but refusals or failures come back."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 4.0
LATE_SECONDS = 0.05
"""The event loop is called late when a timer comes this much after its time."""
WORDS_PER_TOKEN = 0.75
CUT_SHORT = (
    "an answer ended before the length that was asked for, and this server (Triton's LLM API backend) neither takes "
    "ignore_eos nor counts tokens: give prompts that are answered at length (--prompts), or measure by trtllm-serve"
)
MOST_ANSWER_BYTES = 32_000_000


@dataclass(slots=True)
class Flight:
    """One request. Times on the clock of the measurement."""

    started: float
    wanted_tokens: int
    asked_input: int
    streams: bool = False
    generation: int = 0
    """0 = its worker's first."""
    first: float | None = None
    """First token, where it streams."""
    ended: float | None = None
    input_tokens: int | None = None
    output_tokens: int = 0
    verify_steps: int | None = None
    latest: bytes = b""
    """Newest event of a stream, not looked into until somebody asks."""


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    finished: list[Flight] = field(default_factory=list)
    flying: dict[int, Flight] = field(default_factory=dict)
    refused: int = 0
    """429 and 503."""
    failed: int = 0
    late: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds) that the event loop came late."""
    cpu_since: tuple[float, float] = (0.0, 0.0)
    """(clock, CPU seconds of this process) at the start of the window."""


class ClosedLoop:
    """Use as an async context manager: leaving it cancels everything in flight."""

    def __init__(
        self,
        described: Described,
        workload: Workload,
        http: httpx.AsyncClient,
        clock: Clock,
        *,
        seed: int = 1,
        cpu_seconds: Callable[[], float] = process_time,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        self._give_up_seconds = give_up_seconds
        self._described, self._workload, self._http, self._clock = described, workload, http, clock
        self._random = random.Random(seed)
        self._cpu_seconds = cpu_seconds
        self._route = wire.resolved(described.server.route, described.engine)
        self._may_stream = True
        self._words_per_token = WORDS_PER_TOKEN
        self._stride, self._learned = 1, 0
        self._good_at = clock.now()
        self._answered = False
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: MeasureFailure | None = None
        self.tally = Tally()

    async def __aenter__(self) -> ClosedLoop:
        self._tasks.append(asyncio.create_task(self._watch_lateness()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def prepare(self) -> None:
        """One short request: what cannot work fails here, and the length of prompts is learned. Raises MeasureFailure."""
        self._good_at = self._clock.now()
        given, _ = self._workload.draw(self._random)
        pause = FIRST_PAUSE
        while not await self._one(0, 0, given, 2):
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        self.tally.finished.clear()
        self._learned = 1

    def start(self, in_flight: int) -> None:
        """Begin to keep ``in_flight`` requests in flight."""
        self._good_at = self._clock.now()
        self._stride = -(-in_flight // MOST_STREAMS)
        self._tasks += [asyncio.create_task(self._work(worker)) for worker in range(in_flight)]

    def check(self) -> None:
        """Raises what made the load stop."""
        if self.failure is not None:
            raise self.failure

    def begin_window(self) -> None:
        self.tally.cpu_since = (self._clock.now(), self._cpu_seconds())

    def decoded(self) -> tuple[int, int] | None:
        """(tokens, decode steps) of all requests since the beginning, prompts' own tokens not counted. None unless every
        request streams and events tell their steps (SGLang's own route)."""
        tokens = steps = 0
        for item in [*self.tally.finished, *self.tally.flying.values()]:
            told = wire.usage([item.latest]) if item.ended is None and item.latest else None
            written = told.output_tokens if told is not None else item.output_tokens
            verified = told.verify_steps if told is not None else item.verify_steps
            if not item.streams or (item.latest and (written is None or verified is None)):
                return None
            if item.latest:
                tokens, steps = tokens + max(0, (written or 1) - 1), steps + (verified or 0)
        return tokens, steps

    @property
    def busy_share(self) -> float:
        """CPU of this process since the window began, as a share of one core."""
        at, cpu = self.tally.cpu_since
        passed = self._clock.now() - at
        return (self._cpu_seconds() - cpu) / passed if passed > 0 else 0.0

    # -- one worker ---------------------------------------------------------------------------------------------------

    async def _work(self, worker: int) -> None:
        given, wanted = self._running_request()
        pause, generation = FIRST_PAUSE, 0
        try:
            while self.failure is None:
                if await self._one(worker, generation, given, wanted):
                    pause, generation = FIRST_PAUSE, generation + 1
                    given, wanted = self._workload.draw(self._random)
                    continue
                await self._clock.sleep(pause * self._random.uniform(0.5, 1.5))
                pause = min(LONGEST_PAUSE, 2 * pause)
        except MeasureFailure as failure:
            self.failure = self.failure or failure

    def _running_request(self) -> tuple[int, int]:
        """A request as it is found running: (input so far, output still to come)."""
        pairs = self._workload.pairs
        given, wanted = self._random.choices(pairs, [output for _, output in pairs])[0]
        written = self._random.randrange(0, wanted - 1)
        return given + written, wanted - written

    async def _one(self, worker: int, generation: int, given: int, wanted: int) -> bool:
        """One request; False = refused or failed, to be tried again. Raises MeasureFailure for what no retry mends."""
        stream = self._may_stream and worker % self._stride == 0
        flight = Flight(self._clock.now(), wanted, given, stream, generation)
        self.tally.flying[worker] = flight
        try:
            status = await self._send(flight, given, wanted, stream=stream)
        except httpx.TransportError as error:
            self._failed(error)
            return False
        finally:
            del self.tally.flying[worker]
        return self._judge(status, flight)

    async def _send(self, flight: Flight, given: int, wanted: int, *, stream: bool) -> int:
        server = self._described.server
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
        text = self._text(given)
        document = wire.body(self._route, self._described.model, text, wanted, stream=stream)
        url = server.base_url.rstrip("/") + wire.path(self._route, self._described.model, stream=stream)
        async with self._http.stream("POST", url, json=document, headers=headers) as answer:
            if answer.status_code != 200:
                return answer.status_code
            kept = await self._streamed(answer, flight) if stream else [await _whole(answer)]
        flight.ended = self._clock.now()
        told = wire.usage(kept)
        if told.failed:
            return 500
        if told.is_cut_short:
            self._fail(FailureReason.REJECTED, CUT_SHORT)
        flight.input_tokens, flight.verify_steps = told.input_tokens, told.verify_steps
        # In a stream of Triton nobody says whether a count is of the event or of the answer: its length is what was asked for.
        counted = told.output_tokens if not (stream and self._route is Route.TRITON) else None
        flight.output_tokens = counted if counted is not None else wanted
        if told.accepted_tokens is not None and flight.output_tokens > 1 + told.accepted_tokens:
            flight.verify_steps = flight.output_tokens - 1 - told.accepted_tokens
        return 200

    async def _streamed(self, answer: httpx.Response, flight: Flight) -> list[bytes]:
        """The last two events: usage may come in one of its own."""
        kept: list[bytes] = []
        rest = b""
        async for chunk in answer.aiter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                data = wire.event(line)
                if data is not None:
                    if flight.first is None:
                        flight.first = self._clock.now()
                    kept = [*kept[-1:], data]
                    flight.latest = data
        return kept

    def _text(self, tokens: int) -> str:
        if self._workload.prompts:
            return self._random.choice(self._workload.prompts)
        return prompt(max(2, round(tokens * self._words_per_token)), self._random)

    # -- what came back -----------------------------------------------------------------------------------------------

    def _judge(self, status: int, flight: Flight) -> bool:
        if status == 200:
            self._good_at, self._answered = self._clock.now(), True
            self.tally.finished.append(flight)
            if flight.input_tokens and not self._workload.prompts:
                seen = flight.asked_input * self._words_per_token / flight.input_tokens
                share = max(0.1, 1 / (1 + self._learned))
                self._learned += 1
                self._words_per_token += share * (min(2.0, max(0.2, seen)) - self._words_per_token)
            return True
        if status in (429, 503):
            self.tally.refused += 1
            self._give_up_after(
                FailureReason.OVERLOADED, f"the server answers HTTP {status} for {self._give_up_seconds:g} s"
            )
            return False
        if status in (400, 500) and self._may_stream and not self._answered and self._route is Route.TRITON:
            self._may_stream = False  # without the decoupled policy a model answers in one piece only
            return False
        if status in (401, 403):
            self._fail(
                FailureReason.UNAUTHORIZED,
                f"the server answers HTTP {status}: give the token it expects (--token-file, or the Secret reference)",
            )
        if status == 404 and self._route is not Route.GENERATE:
            self._fail(
                FailureReason.WRONG_MODEL,
                "the server answers HTTP 404: it knows no model of that name (--model), or not this route (--route)",
            )
        if 400 <= status < 500:
            self._fail(
                FailureReason.REJECTED,
                f"the server rejects the requests with HTTP {status}: input plus output tokens may exceed its context, or "
                "it does not take ignore_eos (try another --route)",
            )
        self.tally.failed += 1
        self._give_up_after(
            FailureReason.SERVER_DIED, f"the server answers HTTP {status} for {self._give_up_seconds:g} s"
        )
        return False

    def _failed(self, error: httpx.TransportError) -> None:
        self.tally.failed += 1
        if isinstance(error, httpx.ReadTimeout):
            self._fail(FailureReason.NO_PROGRESS, "no answer within the time limit of one request")
        if isinstance(error, httpx.ConnectError) and not self._answered:
            self._give_up_after(FailureReason.UNREACHABLE, "connection refused")
            return
        half = self._give_up_seconds / 2
        self._give_up_after(FailureReason.SERVER_DIED, f"{type(error).__name__} since {half:g} s", half)

    def _give_up_after(self, reason: FailureReason, message: str, seconds: float | None = None) -> None:
        if self._clock.now() - self._good_at >= (self._give_up_seconds if seconds is None else seconds):
            self._fail(reason, message)

    def _fail(self, reason: FailureReason, message: str) -> NoReturn:
        raise MeasureFailure(reason, message)

    async def _watch_lateness(self) -> None:
        while True:
            before = self._clock.now()
            await self._clock.sleep(0.1)
            late = self._clock.now() - before - 0.1
            if late > LATE_SECONDS:
                self.tally.late.append((before, late))


async def _whole(answer: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.aiter_bytes():
        size += len(chunk)
        if size > MOST_ANSWER_BYTES:
            raise httpx.ReadError("answer too large")
        chunks.append(chunk)
    return b"".join(chunks)
