"""A continuous-batching scheduler on an injected clock: requests in, tokens out, step by step.

Pure: `advance(now)` runs every step that would have ended by then. The HTTP servers drive it in real time, tests with
any clock they like. Step times and acceptance come from a `Truth`, draws from one seeded generator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from crossover.emulate.drafts import Drafts
from crossover.emulate.requests import Counters, Limits, Request, Step
from crossover.emulate.truth import Truth

WATERMARK = 0.01
"""Share of the KV cache left free by admission, so that the newest request is not taken back at once."""
MOVES_KEPT = 200


class TooLongError(ValueError):
    """The prompt does not fit into the KV cache at all."""


@dataclass(frozen=True, slots=True)
class Move:
    """The draft length in force changed."""

    at_seconds: float
    draft_tokens: int
    batch: int
    """Requests in the step that used it first."""


class EngineCore:
    """One scheduler (one data-parallel rank)."""

    def __init__(
        self,
        truth: Truth,
        limits: Limits,
        drafts: Drafts,
        *,
        time_scale: float = 1.0,
        seed: int = 1,
        on_step: Callable[[EngineCore, Step], None] | None = None,
        on_first: Callable[[Request], None] | None = None,
        on_end: Callable[[Request], None] | None = None,
    ) -> None:
        self.truth, self.limits, self.drafts = truth, limits, drafts
        self._scale, self._random = time_scale, random.Random(seed)
        self._on_step, self._on_first, self._on_end = on_step, on_first, on_end
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.counters = Counters()
        self.running_cap: int | None = None
        """Live cap on the running batch; nothing that runs is evicted."""
        self.draft_in_force: int | None = None
        """None until the first decode step."""
        self.moves: deque[Move] = deque(maxlen=MOVES_KEPT)
        self.clock_seconds = 0.0
        self.kv_tokens = 0
        self.paused = False
        self._reserved = 0
        self._identity = 0
        self._step_ends: float | None = None
        self._step_seconds = 0.0
        self._decoding: list[Request] = []
        self._prefilling: list[tuple[Request, int]] = []

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        now_seconds: float,
        input_tokens: int,
        output_tokens: int,
        *,
        on_tokens: Callable[[Request, int], None] | None = None,
        on_end: Callable[[Request], None] | None = None,
    ) -> Request:
        """Queue one request. Raises `TooLongError`; an output that would not fit behind its prompt is cut short."""
        self.advance(now_seconds)
        room = int(self.limits.kv_capacity_tokens * (1 - WATERMARK)) - input_tokens
        if room < 1:
            raise TooLongError(f"{input_tokens} prompt tokens, {self.limits.kv_capacity_tokens} fit")
        self._identity += 1
        request = Request(
            self._identity,
            max(1, input_tokens),
            max(1, min(output_tokens, room)),
            now_seconds,
            self.truth.request_factor(self._random),
            on_tokens,
            on_end,
        )
        self.waiting.append(request)
        self._wake(now_seconds)
        return request

    def abort(self, request: Request, now_seconds: float) -> None:
        """Gone at once from queue or batch; `on_end` is told."""
        self.advance(now_seconds)
        if request.ended_at_seconds is not None:
            return
        request.aborted, request.ended_at_seconds = True, now_seconds
        self.counters.aborted += 1
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._release(request)
        if request.on_end is not None:
            request.on_end(request)

    def abort_all(self, now_seconds: float) -> int:
        """Every request, running or waiting; how many there were."""
        all_of_them = [*self.running, *self.waiting]
        for request in all_of_them:
            self.abort(request, now_seconds)
        return len(all_of_them)

    def pause(self) -> None:
        """The step in progress ends; no other begins until `resume`."""
        self.paused = True

    def resume(self, now_seconds: float) -> None:
        self.paused = False
        self._wake(now_seconds)

    def retract_all(self) -> None:
        """Everything that runs goes back to the queue and loses its cache."""
        while self.running:
            self._retract(self.running[-1])

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def max_running_requests(self) -> int:
        """The limit in force."""
        cap = self.running_cap
        return self.limits.max_running_requests if cap is None else min(cap, self.limits.max_running_requests)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_step_at(self) -> float | None:
        """When the step in progress ends; None = nothing is in progress."""
        return self._step_ends

    def advance(self, now_seconds: float) -> None:
        """Run all steps that end by ``now_seconds``."""
        while self._step_ends is not None and self._step_ends <= now_seconds:
            self.clock_seconds = self._step_ends
            self._end_step()
            self._begin_step()
        if self._step_ends is None:
            self.clock_seconds = max(self.clock_seconds, now_seconds)

    def _wake(self, now_seconds: float) -> None:
        if self._step_ends is None:
            self.clock_seconds = max(self.clock_seconds, now_seconds)
            self._begin_step()

    # -- the beginning of a step --------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """Admit, choose what runs and the draft length, and set the time at which the step will end."""
        self._step_ends = None
        if self.paused:
            return
        self._admit()
        if not self.running:
            return
        waiting_for_prefill = [item for item in self.running if item.to_prefill]
        mixed = self.limits.mixed
        self._decoding = (
            [item for item in self.running if not item.to_prefill] if mixed or not waiting_for_prefill else []
        )
        draft = self._choose_draft(waiting_for_prefill if mixed else [])
        verified = self.drafts.verified(draft)
        self._make_room(verified)
        budget = self.limits.prefill_tokens_per_step
        if mixed:
            budget = max(1, budget - len(self._decoding) * verified)
        self._prefilling = _chunks((item for item in waiting_for_prefill if item in self.running), budget)
        tokens = sum(taken for _, taken in self._prefilling)
        if self._decoding:
            self._step_seconds = self.truth.step_seconds(
                len(self._decoding),
                draft,
                self.kv_tokens,
                self._random,
                speculates=self.drafts.speculates,
                drafts_free=self.drafts.drafts_free,
                verified=verified,
                prefill_tokens=tokens,
            )
        else:
            self._step_seconds = self.truth.noisy(self.truth.model.prefill_seconds(tokens), self._random)
        self._step_seconds /= self._scale
        self._step_ends = self.clock_seconds + self._step_seconds

    def _admit(self) -> None:
        limit = self.max_running_requests
        if not self.waiting or len(self.running) >= limit:
            return
        capacity = int(self.limits.kv_capacity_tokens * (1 - WATERMARK))
        claimed = self._claimed()
        while self.waiting and len(self.running) < limit:
            request = self.waiting[0]
            whole = request.input_tokens + request.output_tokens
            claimed += whole if self.limits.reserves_output else request.to_prefill + 1
            if self.running and claimed > capacity:
                return
            self.waiting.popleft()
            self.running.append(request)
            self._reserved += whole
            if request.admitted_at_seconds is None:
                request.admitted_at_seconds = self.clock_seconds

    def _claimed(self) -> int:
        """KV tokens that running requests hold or are about to fill."""
        if self.limits.reserves_output:
            return self._reserved
        return self.kv_tokens + sum(item.to_prefill + 1 for item in self.running if item.to_prefill)

    def _choose_draft(self, prefilling: list[Request]) -> int:
        if not self._decoding:
            return 0
        batch = len(self._decoding) + len(prefilling)
        draft = self.drafts.choose(batch) if self.drafts.speculates else 0
        if self.drafts.speculates and draft != self.draft_in_force:
            self.moves.append(Move(self.clock_seconds, draft, batch))
        self.draft_in_force = draft
        return draft

    def _make_room(self, verified: int) -> None:
        """KV pressure: the newest requests go back to the queue, for all that this step may write has to fit."""
        if self.limits.reserves_output:
            return
        capacity = self.limits.kv_capacity_tokens
        while len(self.running) > 1 and self._claimed() + len(self._decoding) * verified > capacity:
            newest = self.running[-1]
            if newest in self._decoding:
                self._decoding.remove(newest)
            self._retract(newest)

    def _retract(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.retractions += 1
        self.counters.retractions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.kv_tokens -= request.prefilled_tokens
        self._reserved -= request.input_tokens + request.output_tokens
        request.prefilled_tokens = 0

    # -- the end of a step --------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        counters = self.counters
        before = (counters.output_tokens, counters.first_tokens, counters.accepted_tokens, counters.finished)
        prefilling = [(item, taken) for item, taken in self._prefilling if item in self.running]
        decoding = [item for item in self._decoding if item.ended_at_seconds is None and not item.to_prefill]
        if not decoding and not prefilling:
            return  # All that was in the step has been aborted: it tells nothing.
        draft = (self.draft_in_force or 0) if decoding else 0
        for request, taken in prefilling:
            self._prefill(request, taken)
        self._decode(decoding, draft)
        counters.engine_steps += 1
        if decoding:
            counters.decode_steps += 1
            counters.request_steps += len(decoding)
        if counters.finished != before[3]:
            self.running = [item for item in self.running if item.ended_at_seconds is None]
        step = Step(
            self.clock_seconds,
            self._step_seconds,
            len(decoding),
            len(decoding) + len(prefilling),
            len(prefilling),
            sum(taken for _, taken in prefilling),
            draft,
            counters.output_tokens - before[0],
            counters.first_tokens - before[1],
            counters.accepted_tokens - before[2],
            counters.finished - before[3],
        )
        self.drafts.observe(step)
        if self._on_step is not None:
            self._on_step(self, step)

    def _prefill(self, request: Request, taken: int) -> None:
        """A chunk of the prompt; the last one yields the first token."""
        request.prefilled_tokens += taken
        self.kv_tokens += taken
        self.counters.input_tokens += taken
        if not request.to_prefill:
            self.counters.first_tokens += 1
            if request.first_token_at_seconds is None:
                request.first_token_at_seconds = self.clock_seconds
                if self._on_first is not None:
                    self._on_first(request)
            self._emit(request, 1)

    def _decode(self, decoding: list[Request], draft: int) -> None:
        counters, speculates = self.counters, self.drafts.speculates
        if draft:
            counters.drafts += len(decoding)
            counters.draft_tokens += len(decoding) * draft
            short = draft - len(counters.accepted_by_position)
            if short > 0:
                counters.accepted_by_position.extend([0] * short)
        conditionals = self.truth.conditionals(draft)
        for request in decoding:
            accepted = self._accepted(request, conditionals) if draft else 0
            if speculates and not draft:
                request.cold = True
            request.verify_steps += 1
            request.accepted_tokens += accepted
            counters.accepted_tokens += accepted
            self._emit(request, min(accepted + 1, request.output_tokens - request.emitted_tokens))

    def _accepted(self, request: Request, conditionals: tuple[float, ...]) -> int:
        """Draft tokens accepted, the bonus token apart."""
        draw, by_position = self._random.random, self.counters.accepted_by_position
        forced = self.truth.forced_acceptance_length
        accepted = 0
        if forced is not None:
            accepted = min(len(conditionals), int(forced - 1 + draw()))
            for position in range(accepted):
                by_position[position] += 1
            return accepted
        factor = request.acceptance_factor
        if request.cold:
            factor *= self.truth.zero_gap_acceptance
        for conditional in conditionals:
            if draw() >= conditional * factor:
                break
            by_position[accepted] += 1
            accepted += 1
        return accepted

    def _emit(self, request: Request, tokens: int) -> None:
        request.emitted_tokens += tokens
        request.prefilled_tokens += tokens
        self.kv_tokens += tokens
        self.counters.output_tokens += tokens
        if request.on_tokens is not None:
            request.on_tokens(request, tokens)
        if request.emitted_tokens >= request.output_tokens:
            request.ended_at_seconds = self.clock_seconds
            self.counters.finished += 1
            self._release(request)
            if self._on_end is not None:
                self._on_end(request)
            if request.on_end is not None:
                request.on_end(request)


def _chunks(requests: Iterable[Request], budget: int) -> list[tuple[Request, int]]:
    """Prompt tokens for each request, first come first served, as far as the budget goes."""
    chunks: list[tuple[Request, int]] = []
    for request in requests:
        taken = min(budget, request.to_prefill)
        if taken <= 0:
            break
        chunks.append((request, taken))
        budget -= taken
    return chunks
