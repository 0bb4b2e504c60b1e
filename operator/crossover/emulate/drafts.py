"""How an engine chooses the draft length of its next decode step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from crossover.emulate.requests import Request, Step
from crossover.emulate.truth import Truth


class Drafts(Protocol):
    """The engine's own control. One per scheduler."""

    speculates: bool
    """The process was started with speculation: its draft, its buffers and its extra work are there."""
    drafts_free: bool
    """Drafts come from a table of n-grams, not from a model."""

    def choose(self, batch: int) -> int:
        """Draft tokens for a step of that many requests."""

    def verified(self, draft: int) -> int:
        """Tokens verified per request at that draft length."""

    def observe(self, step: Step) -> None:
        """What the step gave, for controls that learn."""


class Off:
    """Started without speculation."""

    speculates = False
    drafts_free = True

    def choose(self, batch: int) -> int:
        return 0

    def verified(self, draft: int) -> int:
        return 1

    def observe(self, step: Step) -> None:
        pass


class Fixed:
    """Always the same. ``tree`` is the number of tokens verified where the draft is a tree, not a chain."""

    speculates = True

    def __init__(self, draft: int, *, tree: int | None = None, drafts_free: bool = False) -> None:
        self._draft, self._tree, self.drafts_free = draft, tree, drafts_free

    def choose(self, batch: int) -> int:
        return self._draft

    def verified(self, draft: int) -> int:
        return self._tree if self._tree is not None and draft else draft + 1

    def observe(self, step: Step) -> None:
        pass


class Scheduled:
    """By the batch alone, without hysteresis: (from batch, draft tokens), ascending; before the first key its length."""

    speculates = True

    def __init__(self, schedule: Sequence[tuple[int, int]], *, drafts_free: bool = False) -> None:
        self.drafts_free = drafts_free
        self._keys = [key for key, _ in schedule]
        self._lengths = [length for _, length in schedule]

    def choose(self, batch: int) -> int:
        return self._lengths[max(0, bisect_right(self._keys, batch) - 1)]

    def verified(self, draft: int) -> int:
        return draft + 1

    def observe(self, step: Step) -> None:
        pass


class UpTo:
    """By the batch, (up to batch, draft tokens), ascending; nothing above the last key."""

    speculates = True

    def __init__(self, schedule: Sequence[tuple[int, int]], *, floor: int = 0, drafts_free: bool = False) -> None:
        self.drafts_free, self._floor = drafts_free, floor
        self._keys = [key for key, _ in schedule]
        self._lengths = [*(length for _, length in schedule), 0]

    def choose(self, batch: int) -> int:
        return max(self._floor, self._lengths[bisect_left(self._keys, batch)])

    def verified(self, draft: int) -> int:
        return draft + 1

    def observe(self, step: Step) -> None:
        pass


class BestLength:
    """The engine weighs its own step times at start-up: the length with the most tokens per second for each batch."""

    speculates = True

    def __init__(
        self, truth: Truth, most: int, *, kv_tokens_per_request: int = 1000, drafts_free: bool = False
    ) -> None:
        self._truth, self._most, self._kv, self.drafts_free = truth, most, kv_tokens_per_request, drafts_free
        self._known: dict[int, int] = {}

    def choose(self, batch: int) -> int:
        if batch not in self._known:
            self._known[batch] = max(range(self._most + 1), key=lambda draft: self._goodput(batch, draft))
        return self._known[batch]

    def _goodput(self, batch: int, draft: int) -> float:
        length, survival = 1.0, 1.0
        for conditional in self._truth.conditionals(draft):
            survival *= conditional
            length += survival
        model = self._truth.model
        return length / model.step_seconds(batch, draft, batch * self._kv, drafts_free=self.drafts_free)

    def verified(self, draft: int) -> int:
        return draft + 1

    def observe(self, step: Step) -> None:
        pass


class Gated:
    """A gate on acceptance that closes for good: once the mean over ``window`` ended requests is below ``threshold``, the
    engine drafts no more until it is started again. ``by_rate``: the threshold is a share of draft tokens, else a length."""

    speculates = True

    def __init__(self, inner: Drafts, window: int, threshold: float, *, longest: int, by_rate: bool) -> None:
        self._inner, self._window, self._threshold = inner, window, threshold
        self.drafts_free = inner.drafts_free
        self._longest, self._by_rate = longest, by_rate
        self._recent: deque[float] = deque(maxlen=window)
        self.closed = False

    def choose(self, batch: int) -> int:
        return 0 if self.closed else self._inner.choose(batch)

    def verified(self, draft: int) -> int:
        return self._inner.verified(draft)

    def observe(self, step: Step) -> None:
        self._inner.observe(step)

    def ended(self, request: Request) -> None:
        """One request's acceptance; those that never decoded say nothing."""
        if not request.verify_steps or self.closed:
            return
        accepted = request.accepted_tokens / request.verify_steps
        self._recent.append(accepted / self._longest if self._by_rate else 1 + accepted)
        full = len(self._recent) == self._window
        self.closed = full and sum(self._recent) / self._window < self._threshold
