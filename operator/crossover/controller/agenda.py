"""When each fleet is looked at next: a keyed queue with due times, pure, the time is an argument.

A key is handed out to one worker at a time. An event on a key that is being worked on makes it due again afterwards, so
nothing is lost and nothing runs twice at once. Lost or repeated events are harmless: the tick is level-triggered.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Agenda(Generic[Key]):
    """Due times in seconds on whatever clock the caller uses."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._working: dict[Key, float | None] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._due.keys() | self._working.keys())

    def want(self, key: Key, at_seconds: float) -> None:
        """Make ``key`` due at that time, or earlier if it already is."""
        if key in self._working:
            wanted = self._working[key]
            self._working[key] = at_seconds if wanted is None else min(wanted, at_seconds)
            return
        if key not in self._due or at_seconds < self._due[key]:
            self._push(key, at_seconds)

    def take(self, now_seconds: float) -> Key | None:
        """The key that has been due longest, now in work; None when none is due."""
        while self._heap and self._heap[0][0] <= now_seconds:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due and key not in self._working:
                del self._due[key]
                self._working[key] = None
                return key
        return None

    def done(self, key: Key, next_at_seconds: float | None) -> None:
        """Work on ``key`` has ended. It comes back at ``next_at_seconds`` (None = only if an event asked for it)."""
        wanted = self._working.pop(key, None)
        times = [time for time in (wanted, next_at_seconds) if time is not None]
        if times:
            self._push(key, min(times))

    def drop(self, key: Key) -> None:
        """Forget a key that is not in work; one in work is forgotten by `done(key, None)`."""
        self._due.pop(key, None)

    def next_due(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _push(self, key: Key, at_seconds: float) -> None:
        self._due[key] = at_seconds
        self._order += 1
        heapq.heappush(self._heap, (at_seconds, self._order, key))
