"""/healthz, /readyz and /metrics of the operator itself, on one port.

Liveness is the ticker's own progress, not "the process answers": kopf's liveness stays 200 while nothing works.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Check = Callable[[], str | None]
"""None = good; else one sentence about what is wrong."""


async def serve(
    address: str, port: int, registry: CollectorRegistry, alive: Check, ready: Check
) -> tuple[web.AppRunner, int]:
    """Start the server; returns the runner (``await runner.cleanup()`` stops it) and the port it listens on."""

    def probe(check: Check) -> Callable[[web.Request], object]:
        async def handler(_: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text="ok\n" if wrong is None else f"{wrong}\n", status=200 if wrong is None else 503)

        return handler

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", probe(alive))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, address, port)
    await site.start()
    return runner, runner.addresses[0][1]
