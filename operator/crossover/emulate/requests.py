"""What the scheduler of the emulators works on and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One generation. Times are the core's clock, in seconds; None = not yet.

    ``on_tokens(request, count)`` is called after every step that gave it tokens, ``on_end(request)`` once.
    """

    identity: int
    input_tokens: int
    output_tokens: int
    arrived_at_seconds: float
    acceptance_factor: float = 1.0
    on_tokens: Callable[[Request, int], None] | None = None
    on_end: Callable[[Request], None] | None = None
    prefilled_tokens: int = 0
    emitted_tokens: int = 0
    verify_steps: int = 0
    """Decode steps it took part in."""
    accepted_tokens: int = 0
    retractions: int = 0
    admitted_at_seconds: float | None = None
    first_token_at_seconds: float | None = None
    ended_at_seconds: float | None = None
    aborted: bool = False
    cold: bool = False
    """It lived through a step at draft length 0."""

    @property
    def kv_tokens(self) -> int:
        """Prompt and emitted tokens held in the cache; after a retraction the emitted ones are prefilled again."""
        return self.prefilled_tokens

    @property
    def to_prefill(self) -> int:
        return max(0, self.input_tokens + self.emitted_tokens - self.prefilled_tokens)


@dataclass(slots=True)
class Counters:
    """Monotone since the start (or since a reset).

    output_tokens = first_tokens + tokens of decode; tokens of decode <= request_steps + accepted_tokens, less only where a
    request reached its length in mid-draft.
    """

    output_tokens: int = 0
    first_tokens: int = 0
    """Emitted by prefill."""
    input_tokens: int = 0
    """Prompt tokens computed, those of retracted requests again."""
    engine_steps: int = 0
    decode_steps: int = 0
    request_steps: int = 0
    """(request, step) pairs of decode."""
    drafts: int = 0
    """(request, step) pairs with a draft."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    finished: int = 0
    aborted: int = 0
    retractions: int = 0


@dataclass(slots=True)
class Step:
    """One engine step that has just ended."""

    ended_at_seconds: float
    seconds: float
    """As clients saw it: divided by the time scale."""
    decoding: int
    """Requests that took a decode step."""
    scheduled: int
    """With those that were prefilling."""
    prefilling: int
    prefill_tokens: int
    draft_tokens: int
    emitted_tokens: int
    first_tokens: int
    accepted_tokens: int
    finished: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler never exceeds."""

    max_running_requests: int
    kv_capacity_tokens: int
    prefill_tokens_per_step: int = 8192
    """Chunked prefill: prompt tokens in one step; with ``mixed`` what decode leaves of it."""
    mixed: bool = False
    """Prompt chunks ride in decode steps (vLLM, TensorRT-LLM); else a prefill step holds up decode (SGLang)."""
    reserves_output: bool = False
    """A request is admitted only when its whole output fits: nothing is ever retracted."""
