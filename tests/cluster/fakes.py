"""A clock that only moves when told, and an API server of one Lease with faults on demand."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from crossover.api.faults import AlreadyExists, Conflict, NotFound, Unavailable


class FakeClock:
    """Time stands still until `advance`; sleepers wake in order, each before time moves on."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float, *, check: Callable[[], None] = lambda: None) -> None:
        """``check`` runs after every step of time."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, at)
            check()
            future.set_result(None)
            await settle()
            check()
        self._now = end
        check()


async def settle() -> None:
    """Let every task run until it waits for something else than the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class LeaseServer:
    """The API server's side of Leases. One `client` for each elector, so that each can lose its way alone."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.writes = 0

    def client(self, clock: FakeClock) -> LeaseClient:
        return LeaseClient(self, clock)


class LeaseClient:
    """``fault``: raised by every request; ``hang``: requests never answer; ``lose_answers``: writes happen, then fail;
    ``to_server_seconds``, ``to_client_seconds``: how long a request and its answer take."""

    def __init__(self, server: LeaseServer, clock: FakeClock) -> None:
        self._server, self._clock = server, clock
        self.to_server_seconds = self.to_client_seconds = 0.0
        self.fault: Exception | None = None
        self.hang = False
        self.lose_answers = False

    async def request(self, method: str, path: str, body: Any = None, *, retries: int = 0) -> Any:
        assert retries == 0, "an elector decides itself when to try again"
        if self.hang:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault
        if self.to_server_seconds:
            await self._clock.sleep(self.to_server_seconds)
        answer = self._answer(method, path, body)
        if self.to_client_seconds:
            await self._clock.sleep(self.to_client_seconds)
        if self.lose_answers and method != "GET":
            raise Unavailable(method, path, reason="ServerDisconnectedError")
        return answer

    def _answer(self, method: str, path: str, body: Any) -> Any:
        leases = self._server.leases
        name = body["metadata"]["name"] if method == "POST" else path.rsplit("/", 1)[1]
        present = leases.get(name)
        if method == "POST" and present is not None:
            raise AlreadyExists(method, path, status=409)
        if method != "POST" and present is None:
            raise NotFound(method, path, status=404)
        if method == "PUT" and body["metadata"]["resourceVersion"] != present["metadata"]["resourceVersion"]:
            raise Conflict(method, path, status=409)
        if method != "GET":
            self._server.writes += 1
            leases[name] = copy.deepcopy(body)
            leases[name]["metadata"]["resourceVersion"] = str(self._server.writes)
        return copy.deepcopy(leases[name])
