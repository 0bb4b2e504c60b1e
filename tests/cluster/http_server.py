"""A scripted HTTP server that stands where the API server would: answers are what a test says, requests are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from crossover.cluster.client import Client
from crossover.cluster.login import Login

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Script:
    """Answers in order; the last one is repeated."""

    answers: list[Answer]
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


def status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    """A metav1.Status as the API server sends it."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "apiVersion": "v1", "reason": reason, "message": message, "code": code}
        return web.json_response(
            body, status=code, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )

    return answer


def text(code: int, body: str, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=code, content_type="text/html", headers=headers)

    return answer


def ok(body: object = None) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body if body is not None else {})

    return answer


def stream(*pieces: bytes, then: str = "end") -> Answer:
    """A watch answer in exactly these pieces. ``then``: "end", "hang" (silent, TCP open) or "reset"."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if then == "hang":
            await asyncio.sleep(3600)
        if then == "reset":
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


@dataclass
class Sleeps:
    """Takes the place of `asyncio.sleep`: remembers, does not wait."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@dataclass
class Rig:
    client: Client
    script: Script
    sleeps: Sleeps
    tokens: list[str]
    """The tokens that the login hands out; the first is in use, a renewal moves on."""


@asynccontextmanager
async def serving(*answers: Answer, request_seconds: float = 5.0) -> AsyncIterator[Rig]:
    script, sleeps, tokens = Script(list(answers)), Sleeps(), ["old-token", "new-token"]
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (port,) = [address[1] for address in runner.addresses]

    async def authorization() -> str | None:
        return f"Bearer {tokens[0]}"

    async def renew() -> None:
        if len(tokens) > 1:
            del tokens[0]

    way = Login(f"http://127.0.0.1:{port}", None, None, None, authorization, renew)
    client = Client(way, request_seconds=request_seconds, sleep=sleeps)
    try:
        yield Rig(client, script, sleeps, tokens)
    finally:
        await client.close()
        await runner.cleanup()
