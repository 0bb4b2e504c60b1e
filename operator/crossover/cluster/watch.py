"""List, then watch, for ever: a slim reflector over one path of the Kubernetes API.

Generic over a msgspec Struct that names only the fields wanted, so that what is not wanted is never built. Lists come
in chunks, watches continue from the last resourceVersion (bookmarks keep it fresh), 410 lists again, a stream that is
silent for longer than bookmarks take is opened anew, and every fault is answered with a jittered pause. It never ends
by itself: only cancelling it does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog

from crossover.api.faults import ClusterError, Gone, Unavailable, fault_for
from crossover.cluster.client import Client

CHUNK = 500
SILENCE_SECONDS = 75.0
"""Bookmarks come about every 60 s: longer silence means a dead connection, even when TCP does not notice."""
SERVER_SECONDS = (300, 600)
"""The API server ends each watch by itself after a random time in this range, as client-go asks for."""
MAX_PAUSE_SECONDS = 30.0
MAX_LINE_BYTES = 32 * 1024 * 1024
"""An object is at most about 3 MB; a line beyond this is no Kubernetes answer."""


class ListMeta(msgspec.Struct, rename="camel"):
    """The part of metadata that the reflector itself needs."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    name: str = ""
    namespace: str = ""


class HasMeta(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


class _List(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""


class Clock(Protocol):
    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


Item = TypeVar("Item")
Seen_contra = TypeVar("Seen_contra", contravariant=True)


class Sink(Protocol[Seen_contra]):
    """Where the reflector puts what it sees. Calls are synchronous and must be quick."""

    def replace(self, items: Sequence[Seen_contra]) -> None:
        """Everything there is, after a list: what is not in it is gone."""

    def put(self, item: Seen_contra) -> None: ...

    def drop(self, item: Seen_contra) -> None: ...


@dataclass(slots=True)
class WatchState:
    """How a reflector is doing."""

    synced: bool = False
    """A list has succeeded since the start."""
    last_heard_seconds: float | None = None
    """Clock time of the last answer, event or bookmark; None = never."""
    fault: ClusterError | None = None
    """The newest fault; None again after the next success."""
    lists: int = 0
    watches: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class ListWatch(Generic[Item]):
    """One reflector. ``run`` it as a task; ``state`` tells how it is doing.

    ``item_type``: a msgspec Struct of the wanted fields. ``query``: further list parameters (labelSelector).
    """

    def __init__(
        self,
        client: Client,
        path: str,
        item_type: type[Item],
        sink: Sink[Item],
        clock: Clock,
        *,
        query: dict[str, str] | None = None,
        chunk: int = CHUNK,
        silence_seconds: float = SILENCE_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self.state = WatchState()
        self.path = path
        self._client, self._sink, self._clock = client, sink, clock
        self._decoder = msgspec.json.Decoder(item_type)
        self._query = dict(query or {})
        self._chunk = chunk
        self._silence_seconds = silence_seconds
        self._rng = rng or random.Random()
        self._log = structlog.get_logger("crossover.watch")
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone:
                self._version = ""
                await self._pause(None)
            except ClusterError as fault:
                await self._pause(fault)
            except Exception as error:  # a bug or an answer nobody expected must not end the watch
                self._log.exception("watch failed", path=self.path)
                self._version = ""
                await self._pause(Unavailable("GET", self.path, reason=type(error).__name__))

    async def _list(self) -> None:
        """All items in chunks; the sink sees them only when all have come."""
        items: list[Item] = []
        query = {**self._query, "limit": str(self._chunk)}
        while True:
            answer = await self._client.request_bytes("GET", self.path, params=query, retries=1)
            page = msgspec.json.decode(answer, type=_List)
            items += [self._decoder.decode(raw) for raw in page.items]
            self._heard()
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._sink.replace(items)
        self._version = page.metadata.resource_version
        self.state.lists += 1
        self.state.synced = True
        self.state.ready.set()
        self._succeeded()

    async def _watch(self) -> None:
        """One stream, from open to end. An orderly end (server timeout) just returns."""
        query = {
            **self._query,
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(*SERVER_SECONDS)),
        }
        began = self._clock.now()
        async with self._client.stream(self.path, params=query, silence_seconds=self._silence_seconds) as answer:
            self.state.watches += 1
            self.state.fault = None
            self._heard()
            async for line in _lines(answer, self.path):
                self._take(line)
                self._heard()
                self._succeeded()
        if self._clock.now() - began < 1.0:  # a proxy that closes at once must not make us spin
            await self._pause(Unavailable("GET", self.path, reason="WatchEndedAtOnce"))

    def _take(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise fault_for("GET", self.path, status.code or 500, status.reason)
        meta = msgspec.json.decode(event.object, type=HasMeta).metadata
        if event.type != "BOOKMARK":
            item = self._decoder.decode(event.object)
            if event.type == "DELETED":
                self._sink.drop(item)
            else:
                self._sink.put(item)
        if meta.resource_version:
            self._version = meta.resource_version

    def _heard(self) -> None:
        self.state.last_heard_seconds = self._clock.now()

    def _succeeded(self) -> None:
        self.state.fault = None
        self._failures = 0

    async def _pause(self, fault: ClusterError | None) -> None:
        """0.25 s, doubling to half a minute, with jitter: thousands of operators must not come back in step."""
        if fault is not None:
            self.state.fault = fault
            if self._failures == 0:
                self._log.warning("watch interrupted", path=self.path, fault=str(fault))
        base = min(MAX_PAUSE_SECONDS, 0.25 * 2.0 ** min(self._failures, 10))
        self._failures += 1
        await self._clock.sleep(self._rng.uniform(0.5, 1.0) * base)


async def _lines(answer: aiohttp.ClientResponse, path: str) -> AsyncIterator[bytes]:
    """The newline-separated events of a watch, whatever pieces the network cuts them into."""
    rest = b""
    async for piece in answer.content.iter_any():
        head, newline, tail = piece.rpartition(b"\n")
        if not newline:
            rest += piece
            if len(rest) > MAX_LINE_BYTES:
                raise Unavailable("GET", path, reason="LineTooLong")
            continue
        for line in (rest + head).split(b"\n"):
            if line:
                yield line
        rest = tail
