"""Fetching from pods: bounded in time, size and number; never follows a redirect; never passes a remote text on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from crossover.api.fleet import ScrapeFault
from crossover.engines.contract import Answer

MAX_BODY_BYTES = 5_000_000
"""Far above the 110 kB of the largest exposition seen; a mistaken port may serve anything."""


class Unusable(Exception):  # noqa: N818 - an outcome of a scrape
    """No usable answer. ``detail`` is ours and short, without remote text."""

    def __init__(self, fault: ScrapeFault, detail: str | None = None) -> None:
        super().__init__(f"{fault}: {detail}" if detail else str(fault))
        self.fault, self.detail = fault, detail


class Scraper:
    """One HTTP session for all fleets. Use as an async context manager."""

    def __init__(self, *, timeout_seconds: float = 2.0, concurrency: int = 200) -> None:
        self._timeout_seconds = timeout_seconds
        self._free = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Scraper:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, connect=self._timeout_seconds),
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json, text/plain", "Accept-Encoding": "gzip, identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, address: str, port: int, path: str) -> Answer:
        """One GET. Raises Unusable on anything that is not an HTTP answer of bounded size, in time, without redirect."""
        return await self._send("GET", address, port, path, None)

    async def post(self, address: str, port: int, path: str, body: bytes) -> Answer:
        """One POST of JSON, with the bounds of `fetch`. Raises Unusable."""
        return await self._send("POST", address, port, path, body)

    async def _send(self, method: str, address: str, port: int, path: str, body: bytes | None) -> Answer:
        assert self._session is not None
        url = f"http://[{address}]:{port}{path}" if ":" in address else f"http://{address}:{port}{path}"
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self._free:
            try:
                async with self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as answer:
                    if 300 <= answer.status < 400:
                        raise Unusable(ScrapeFault.REDIRECTED, f"HTTP {answer.status}")
                    content = await _bounded(answer.content)
                    return Answer(path, answer.status, content, answer.headers.get("Content-Type", "")[:128])
            except TimeoutError:
                raise Unusable(ScrapeFault.TIMED_OUT, f"after {self._timeout_seconds:g} s") from None
            except aiohttp.ClientConnectorError:
                raise Unusable(ScrapeFault.UNREACHABLE, "connection refused") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise Unusable(ScrapeFault.UNREACHABLE, type(error).__name__) from None

    def door(self, address: str, port: int) -> PodDoor:
        """One pod's HTTP for `act.live`."""
        return PodDoor(self, address, port)

    async def first_group(self, address: str, port: int, groups: Sequence[Sequence[str]]) -> list[Answer]:
        """The answers of the first group whose first path answers 200.

        The other paths of a group are a bonus: when one of them fails it is left out. When no group answers, the answer
        that says most: an error status before a path that does not exist. Raises Unusable when the pod does not answer
        at all; asking the next path would only take as long again.
        """
        heads: list[Answer] = []
        for first, *others in groups:
            try:
                head = await self.fetch(address, port, first)
            except Unusable as unusable:
                if unusable.fault is ScrapeFault.REDIRECTED and heads:
                    continue  # it answers, and has another name for this path
                raise
            if head.status == 200:
                more = await asyncio.gather(*(self._bonus(address, port, path) for path in others))
                return [head, *(answer for answer in more if answer is not None)]
            heads.append(head)
        return sorted(heads, key=lambda answer: answer.status == 404)[:1]

    async def _bonus(self, address: str, port: int, path: str) -> Answer | None:
        try:
            return await self.fetch(address, port, path)
        except Unusable:
            return None


@dataclass(frozen=True, slots=True)
class PodDoor:
    """GET and POST to one pod; None where the pod gives no usable answer."""

    scraper: Scraper
    address: str
    port: int

    async def get(self, path: str) -> Answer | None:
        try:
            return await self.scraper.fetch(self.address, self.port, path)
        except Unusable:
            return None

    async def post(self, path: str, body: bytes) -> Answer | None:
        try:
            return await self.scraper.post(self.address, self.port, path, body)
        except Unusable:
            return None


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in stream.iter_any():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise Unusable(ScrapeFault.TOO_LARGE, f"more than {MAX_BODY_BYTES // 1_000_000} MB")
        chunks.append(chunk)
    return b"".join(chunks)
