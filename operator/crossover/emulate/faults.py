"""Faults of a server's endpoints, as they are met in the wild: each is a name that can be switched on while it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Set as AbstractSet

from aiohttp import web

HUGE_BYTES = 50_000_000
NEVER_SECONDS = 3600.0


async def instead(request: web.Request, faults: AbstractSet[str]) -> web.StreamResponse | None:
    """An answer in place of the real one; None = the real one."""
    if "hang" in faults:
        await asyncio.sleep(NEVER_SECONDS)
    if "html" in faults:
        return web.Response(text="<!doctype html><html><body>proxy error</body></html>", content_type="text/html")
    if "http-503" in faults:
        return web.Response(status=503, text="unavailable")
    if "metrics-off" in faults:
        return web.Response(status=404)
    if "huge" in faults:
        return web.Response(body=b"x" * HUGE_BYTES, content_type="text/plain")
    if "close" in faults and request.transport is not None:
        request.transport.close()
        return web.Response(status=500)
    return None


def refusal(request: web.Request, faults: AbstractSet[str]) -> web.StreamResponse | None:
    """What takes requests turns them away, as a full queue or a proxy before it does; GET answers as ever."""
    if request.method == "POST":
        for name, status in (("refuse-429", 429), ("refuse-503", 503)):
            if name in faults:
                return web.json_response({"error": {"message": "overloaded", "code": status}}, status=status)
    return None


def afterwards(response: web.StreamResponse, faults: AbstractSet[str], running_gauge: str) -> web.StreamResponse:
    """The real answer, spoilt."""
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return response
    if "nan" in faults:
        gauge = re.escape(running_gauge).encode()
        body = re.sub(rb"(?m)^(" + gauge + rb"(\{.*\})?) .*$", rb"\1 NaN", response.body)
        response.body = re.sub(rb'"num_?[rR]unning_?[rR]eqs": ?[0-9.]+', b'"num_running_reqs": NaN', body)
    if "truncated" in faults:
        response.body = response.body[: len(response.body) * 2 // 3]
    return response
