"""List and watch through everything a network and an API server do to a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from crossover.api.faults import Forbidden
from crossover.cluster.watch import ListWatch
from tests.cluster.http_server import Answer, Rig, ok, serving, status, stream, text


class Meta(msgspec.Struct):
    name: str


class Item(msgspec.Struct):
    metadata: Meta


class Names:
    """A sink that keeps names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.replaced = 0

    def replace(self, items: Sequence[Item]) -> None:
        self.names = {item.metadata.name for item in items}
        self.replaced += 1

    def put(self, item: Item) -> None:
        self.names.add(item.metadata.name)

    def drop(self, item: Item) -> None:
        self.names.discard(item.metadata.name)


class ImpatientClock:
    """Real time, but pauses only yield: a test must not wait for a backoff."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


def listed(version: str, *names: str, more: str = "") -> Answer:
    items = [{"metadata": {"name": name}} for name in names]
    return ok({"metadata": {"resourceVersion": version, "continue": more}, "items": items})


def event(kind: str, name: str, version: str) -> bytes:
    body = {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}
    return json.dumps(body).encode() + b"\n"


BOOKMARK = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}).encode() + b"\n"
EXPIRED = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode() + b"\n"


class Watching:
    def __init__(self, rig: Rig, watch: ListWatch[Item], sink: Names, clock: ImpatientClock) -> None:
        self.rig, self.watch, self.sink, self.clock = rig, watch, sink, clock

    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.rig.script.requests]

    async def until(self, check: Callable[[], object]) -> Any:
        async with asyncio.timeout(10):
            while not (found := check()):
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def watching(*answers: Answer, silence_seconds: float = 30.0) -> AsyncIterator[Watching]:
    async with serving(*answers) as rig:
        sink, clock = Names(), ImpatientClock()
        watch = ListWatch(rig.client, "/api/v1/pods", Item, sink, clock, silence_seconds=silence_seconds)
        task = asyncio.create_task(watch.run())
        try:
            yield Watching(rig, watch, sink, clock)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


IDLE = stream(then="hang")


async def test_a_list_in_chunks_then_a_watch_from_its_version() -> None:
    async with watching(listed("7", "a", "b", more="token"), listed("7", "c"), IDLE) as it:
        await it.until(lambda: it.watch.state.watches)
        assert it.sink.names == {"a", "b", "c"}
        assert it.sink.replaced == 1
        first, second, third = it.queries()
        assert (first["limit"], second["continue"]) == ("500", "token")
        assert (third["resourceVersion"], third["allowWatchBookmarks"]) == ("7", "true")


async def test_events_in_any_pieces() -> None:
    data = event("ADDED", "b", "8") + event("DELETED", "a", "9") + event("MODIFIED", "c", "10")
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    async with watching(listed("7", "a"), stream(*pieces, then="hang")) as it:
        await it.until(lambda: it.sink.names == {"b", "c"})


async def test_a_watch_continues_from_the_last_bookmark() -> None:
    async with watching(listed("7", "a"), stream(event("ADDED", "b", "8"), BOOKMARK), IDLE) as it:
        await it.until(lambda: len(it.queries()) == 3)
        assert it.queries()[2]["resourceVersion"] == "50"
        assert it.sink.replaced == 1


@pytest.mark.parametrize("gone", [stream(EXPIRED, then="hang"), status(410, "Expired")])
async def test_410_lists_again(gone: Answer) -> None:
    async with watching(listed("7", "a"), gone, listed("90", "b"), IDLE) as it:
        await it.until(lambda: it.watch.state.watches and it.sink.names == {"b"})
        assert it.queries()[-1].get("resourceVersion") in (None, "90")


async def test_a_list_that_expires_between_chunks_starts_over() -> None:
    async with watching(listed("7", "a", more="token"), status(410, "Expired"), listed("9", "b"), IDLE) as it:
        await it.until(lambda: it.sink.names == {"b"})
        assert "continue" not in it.queries()[2]


async def test_a_silent_stream_is_opened_anew() -> None:
    async with watching(
        listed("7", "a"), IDLE, stream(event("ADDED", "b", "8"), then="hang"), silence_seconds=0.2
    ) as it:
        await it.until(lambda: it.sink.names == {"a", "b"})
        assert it.sink.replaced == 1


async def test_a_reset_while_opening_and_in_the_middle() -> None:
    async with watching(
        listed("7", "a"),
        stream(then="reset"),
        stream(event("ADDED", "b", "8"), b'{"type": "ADD', then="reset"),
        stream(event("ADDED", "c", "9"), then="hang"),
    ) as it:
        await it.until(lambda: it.sink.names == {"a", "b", "c"})
        assert it.queries()[3]["resourceVersion"] == "8"


@pytest.mark.parametrize("nonsense", [b"<html>login</html>\n", b"[1]\n", b'{"type": "ADDED", "object": {"no": 1}}\n'])
async def test_nonsense_in_a_stream_lists_again(nonsense: bytes) -> None:
    async with watching(listed("7", "a"), stream(nonsense, then="hang"), listed("9", "b"), IDLE) as it:
        await it.until(lambda: it.sink.names == {"b"})


async def test_an_html_page_instead_of_a_list() -> None:
    async with watching(text(200, "<html>"), listed("9", "b"), IDLE) as it:
        await it.until(lambda: it.sink.names == {"b"})


async def test_a_right_that_is_taken_away_is_told_and_survived() -> None:
    async with watching(status(403, "Forbidden"), status(403, "Forbidden"), listed("7", "a"), IDLE) as it:
        await it.until(lambda: it.sink.names == {"a"})
        assert it.watch.state.synced
        assert it.watch.state.fault is None
    async with watching(status(403, "Forbidden")) as it:
        fault = await it.until(lambda: it.watch.state.fault)
        assert isinstance(fault, Forbidden)
        assert not it.watch.state.synced


async def test_a_proxy_that_ends_every_stream_at_once_is_not_hammered() -> None:
    async with watching(listed("7", "a"), stream()) as it:
        await it.until(lambda: it.watch.state.watches > 12)
        assert max(it.clock.pauses) >= 15.0
        assert it.sink.replaced == 1
