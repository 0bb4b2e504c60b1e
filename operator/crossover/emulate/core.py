"""A continuous-batching scheduler on an injected clock: requests in, tokens out, step by step.

Pure: `advance(now)` runs every decode step that would have ended by then. The HTTP servers drive it in real time, tests
with any clock they like. Step times come from the step-time model, acceptance from a seeded generator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from crossover.decide.step_model import StepModel

CHUNK_TOKENS = 8192
"""Prefill tokens per step."""


@dataclass(slots=True)
class Request:
    """One generation. ``on_tokens(count, at_seconds)`` is called after every step that gave it tokens, if set."""

    identity: int
    input_tokens: int
    output_tokens: int
    arrived_at_seconds: float
    acceptance: float
    on_tokens: Callable[[int, float], None] | None = None
    on_end: Callable[[Request], None] | None = None
    prefilled_tokens: int = 0
    emitted_tokens: int = 0
    verify_steps: int = 0
    first_token_at_seconds: float | None = None
    ended_at_seconds: float | None = None
    aborted: bool = False

    @property
    def kv_tokens(self) -> int:
        return self.prefilled_tokens + self.emitted_tokens


@dataclass(slots=True)
class Counters:
    """Monotone since the start."""

    output_tokens: int = 0
    input_tokens: int = 0
    engine_steps: int = 0
    decode_steps: int = 0
    request_steps: int = 0
    """(request, step) pairs of decode."""
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    ttft_seconds: float = 0.0
    ttft_count: int = 0
    tpot_seconds: float = 0.0
    tpot_count: int = 0


@dataclass(slots=True)
class Step:
    """What the last step was, for gauges and logs."""

    ended_at_seconds: float
    running: int
    draft_tokens: int
    emitted: int
    prefill: bool


class EngineCore:
    """One scheduler (one data-parallel rank)."""

    def __init__(
        self,
        model: StepModel,
        *,
        max_running_requests: int,
        kv_capacity_tokens: int,
        draft_length: Callable[[int, EngineCore], int],
        speculates: bool,
        drafts_free: bool = False,
        acceptance: float = 0.67,
        acceptance_spread: float = 0.1,
        time_scale: float = 1.0,
        seed: int = 1,
        on_step: Callable[[EngineCore, Step], None] | None = None,
    ) -> None:
        self.model, self.max_running_requests = model, max_running_requests
        self.kv_capacity_tokens, self.speculates, self.drafts_free = kv_capacity_tokens, speculates, drafts_free
        self._draft_length, self._acceptance, self._spread = draft_length, acceptance, acceptance_spread
        self._scale, self._random, self._on_step = time_scale, random.Random(seed), on_step
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.counters = Counters()
        self.running_cap: int | None = None
        """Live cap on the running batch; nothing that runs is evicted."""
        self.draft_in_force: int | None = None
        self._clock = 0.0
        self._identity = 0
        self._step_ends: float | None = None

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        now_seconds: float,
        input_tokens: int,
        output_tokens: int,
        *,
        on_tokens: Callable[[int, float], None] | None = None,
        on_end: Callable[[Request], None] | None = None,
    ) -> Request:
        self._identity += 1
        spread = self._random.gauss(0.0, self._spread * self._acceptance)
        acceptance = min(0.98, max(0.02, self._acceptance + spread))
        request = Request(
            self._identity, max(1, input_tokens), max(1, output_tokens), now_seconds, acceptance, on_tokens, on_end
        )
        self.waiting.append(request)
        if self._step_ends is None:
            self._clock = max(self._clock, now_seconds)
            self._begin_step()
        return request

    def abort(self, request: Request, now_seconds: float) -> None:
        """The client went away: gone at once from queue or batch."""
        if request.ended_at_seconds is None:
            request.aborted, request.ended_at_seconds = True, now_seconds
            self.counters.aborted += 1
            self.running = [item for item in self.running if item is not request]
            self.waiting = deque(item for item in self.waiting if item is not request)

    @property
    def kv_tokens(self) -> int:
        return sum(request.kv_tokens for request in self.running)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_step_at(self) -> float | None:
        """When the step in progress ends; None = idle."""
        return self._step_ends

    def advance(self, now_seconds: float) -> None:
        """Run all steps that end by ``now_seconds``."""
        while self._step_ends is not None and self._step_ends <= now_seconds:
            self._clock = self._step_ends
            self._end_step()
            self._begin_step()
        if self._step_ends is None:
            self._clock = max(self._clock, now_seconds)

    def _begin_step(self) -> None:
        """Admit, choose the draft length, and set the time at which the step will end."""
        self._admit()
        self._prefilling = [item for item in self.running if item.prefilled_tokens < item.input_tokens]
        self._decoding = [item for item in self.running if item.prefilled_tokens >= item.input_tokens]
        if not self.running:
            self._step_ends = None
            return
        seconds = 0.0
        if self._prefilling:
            tokens = min(CHUNK_TOKENS, sum(item.input_tokens - item.prefilled_tokens for item in self._prefilling))
            seconds += self.model.prefill_seconds(tokens)
        if self._decoding:
            draft = self._draft_length(len(self._decoding), self) if self.speculates else 0
            self.draft_in_force = draft
            seconds += self.model.step_seconds(
                len(self._decoding),
                draft,
                sum(item.kv_tokens for item in self._decoding),
                off=not self.speculates,
                drafts_free=self.drafts_free,
            )
        self._step_ends = self._clock + seconds / self._scale

    def _admit(self) -> None:
        limit = self.max_running_requests
        if self.running_cap is not None:
            limit = min(limit, self.running_cap)
        used = self.kv_tokens
        while self.waiting and len(self.running) < limit:
            request = self.waiting[0]
            needed = request.input_tokens + request.emitted_tokens + 1
            if used + needed > self.kv_capacity_tokens and self.running:
                return
            used += needed
            self.running.append(self.waiting.popleft())

    def _end_step(self) -> None:
        counters = self.counters
        counters.engine_steps += 1
        self._end_prefill()
        emitted = 0
        draft = self.draft_in_force or 0
        decoding = [item for item in self._decoding if item.ended_at_seconds is None]
        for request in decoding:
            emitted += self._decode_one(request, draft)
        if decoding:
            counters.decode_steps += 1
            counters.request_steps += len(decoding)
        counters.output_tokens += emitted
        step = Step(self._clock, len(decoding), draft, emitted, bool(self._prefilling))
        self.running = [item for item in self.running if item.ended_at_seconds is None]
        self._retract()
        if self._on_step is not None:
            self._on_step(self, step)

    def _end_prefill(self) -> None:
        budget = CHUNK_TOKENS
        for request in self._prefilling:
            if request.ended_at_seconds is not None or budget <= 0:
                continue
            taken = min(budget, request.input_tokens - request.prefilled_tokens)
            request.prefilled_tokens += taken
            budget -= taken
            self.counters.input_tokens += taken

    def _decode_one(self, request: Request, draft: int) -> int:
        """Tokens this request gets from the step."""
        accepted = self._accepted(request, draft)
        tokens = min(accepted + 1, request.output_tokens - request.emitted_tokens)
        request.emitted_tokens += tokens
        request.verify_steps += 1
        if request.first_token_at_seconds is None:
            request.first_token_at_seconds = self._clock
            self.counters.ttft_seconds += self._clock - request.arrived_at_seconds
            self.counters.ttft_count += 1
        if request.on_tokens is not None:
            request.on_tokens(tokens, self._clock)
        if request.emitted_tokens >= request.output_tokens:
            self._finish(request)
        return tokens

    def _accepted(self, request: Request, draft: int) -> int:
        counters = self.counters
        if not draft:
            return 0
        counters.drafts += 1
        counters.draft_tokens += draft
        while len(counters.accepted_by_position) < draft:
            counters.accepted_by_position.append(0)
        accepted = 0
        while accepted < draft and self._random.random() < request.acceptance:
            counters.accepted_by_position[accepted] += 1
            accepted += 1
        counters.accepted_tokens += accepted
        return accepted

    def _finish(self, request: Request) -> None:
        request.ended_at_seconds = self._clock
        self.counters.finished += 1
        if request.output_tokens > 1 and request.first_token_at_seconds is not None:
            seconds = (self._clock - request.first_token_at_seconds) / (request.output_tokens - 1)
            self.counters.tpot_seconds += seconds
            self.counters.tpot_count += 1
        if request.on_end is not None:
            request.on_end(request)

    def _retract(self) -> None:
        """KV pressure: the newest request goes back to the queue and is prefilled again later."""
        while len(self.running) > 1 and self.kv_tokens > self.kv_capacity_tokens:
            request = self.running.pop()
            request.prefilled_tokens = 0
            self.counters.retractions += 1
            self.waiting.appendleft(request)
