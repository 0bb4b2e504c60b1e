"""Workers that take due keys from the `Agenda` and run one tick each. The clock is injected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from crossover.controller.agenda import Agenda

FleetKey = tuple[str, str]
"""(namespace, name) of a ModelAutoscaler."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None: ...


Tick = Callable[[FleetKey], Awaitable[float | None]]
"""Runs one tick; returns seconds until the next one, None = the fleet is gone."""

RETRY_SECONDS = 10.0
IDLE_SECONDS = 3600.0


class Ticker:
    """``workers`` ticks run side by side; a slow fleet occupies one of them and delays no other key of its own."""

    def __init__(self, tick: Tick, clock: Clock, *, workers: int = 32) -> None:
        self._tick = tick
        self._clock = clock
        self._workers = workers
        self._agenda: Agenda[FleetKey] = Agenda()
        self._wake = asyncio.Event()
        self._log = structlog.get_logger("crossover.ticker")
        self.last_progress_seconds = clock.now()
        """When a worker last looked at the agenda: the liveness probe's number."""

    def want(self, key: FleetKey, *, after_seconds: float = 0.0) -> None:
        self._agenda.want(key, self._clock.now() + after_seconds)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. An error in one tick is logged and the key comes back; it never ends the loop."""
        free = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.last_progress_seconds = self._clock.now()
                await free.acquire()
                key = self._agenda.take(self._clock.now())
                if key is None:
                    free.release()
                    await self._wait()
                    continue
                task = tasks.create_task(self._work(key))
                task.add_done_callback(lambda _: free.release())

    async def _work(self, key: FleetKey) -> None:
        again: float | None = RETRY_SECONDS
        try:
            again = await self._tick(key)
        except Exception:
            self._log.exception("tick failed", namespace=key[0], name=key[1])
        finally:
            self._agenda.done(key, None if again is None else self._clock.now() + again)
            self._wake.set()

    async def _wait(self) -> None:
        """Until the next due time, or until an event wakes the agenda."""
        due = self._agenda.next_due()
        delay = IDLE_SECONDS if due is None else max(0.0, due - self._clock.now())
        self._wake.clear()
        sleeper = asyncio.ensure_future(self._clock.sleep(min(delay, 1.0)))
        waker = asyncio.ensure_future(self._wake.wait())
        _, pending = await asyncio.wait({sleeper, waker}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
