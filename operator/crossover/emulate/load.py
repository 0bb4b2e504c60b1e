"""Load on a changing set of servers: closed loop at an exact concurrency, least outstanding requests first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass
class Tally:
    """What the clients saw."""

    done: int = 0
    tokens: int = 0
    failed: int = 0
    refused: int = 0
    """Connections refused before anything was sent: tried again elsewhere, nobody lost anything."""
    latency_seconds: float = 0.0


class ClosedLoop:
    """As many requests in flight as asked for, each replaced when it ends.

    ``endpoints``: called before each request, the base URLs that take new requests now. ``output_tokens``: mean length;
    lengths are drawn between half and one and a half of it. ``path``: SGLang's own route, or an OpenAI route.
    """

    def __init__(
        self,
        endpoints: Callable[[], Sequence[str]],
        *,
        output_tokens: int = 400,
        input_tokens: int = 200,
        seed: int = 1,
        path: str = "/generate",
    ) -> None:
        self._endpoints, self._path = endpoints, path
        self._output_tokens, self._input_tokens = output_tokens, input_tokens
        self._random = random.Random(seed)
        self._outstanding: dict[str, int] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._wanted = 0
        self.tally = Tally()

    @property
    def in_flight(self) -> int:
        return sum(self._outstanding.values())

    def set_concurrency(self, wanted: int) -> None:
        """More at once, fewer as requests end."""
        self._wanted = wanted
        while len(self._workers) < wanted:
            task = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def __aenter__(self) -> ClosedLoop:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=600, connect=5),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wanted = 0
        for task in list(self._workers):
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._session.close()

    async def _work(self) -> None:
        while len(self._workers) <= self._wanted:
            base = self._pick()
            if base is None:
                await asyncio.sleep(0.1)
                continue
            self._outstanding[base] = self._outstanding.get(base, 0) + 1
            try:
                await self._one(base)
            finally:
                self._outstanding[base] -= 1

    def _pick(self) -> str | None:
        bases = self._endpoints()
        if not bases:
            return None
        return min(bases, key=lambda base: (self._outstanding.get(base, 0), self._random.random()))

    async def _one(self, base: str) -> None:
        length = max(1, int(self._output_tokens * self._random.uniform(0.5, 1.5)))
        body = self._body(length)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with self._session.post(base + self._path, json=body) as answer:
                document = await answer.json()
                if answer.status != 200:
                    self.tally.failed += 1
                    return
        except aiohttp.ClientConnectorError:
            self.tally.refused += 1
            await asyncio.sleep(0.1)
            return
        except (aiohttp.ClientError, TimeoutError, ValueError):
            self.tally.failed += 1
            return
        self.tally.done += 1
        counted = document["meta_info"] if "meta_info" in document else document["usage"]
        self.tally.tokens += int(counted["completion_tokens"])
        self.tally.latency_seconds += loop.time() - began

    def _body(self, output_tokens: int) -> dict[str, Any]:
        if self._path == "/generate":
            sampling = {"max_new_tokens": output_tokens, "ignore_eos": True}
            return {"input_ids": [1] * self._input_tokens, "sampling_params": sampling}
        prompt = "x " * self._input_tokens
        content: dict[str, Any] = {"prompt": prompt}
        if self._path.endswith("chat/completions"):
            content = {"messages": [{"role": "user", "content": prompt}]}
        return {**content, "max_tokens": output_tokens, "ignore_eos": True}
