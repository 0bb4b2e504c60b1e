"""Asking a server about itself: bounded, without redirects, and nothing it says is passed on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from crossover.api.fleet import Capability, EngineType, PodReading, ScrapeFault
from crossover.calibrate.contract import Clock, FailureReason, MeasureFailure, Route, Server
from crossover.engines import ENGINES
from crossover.engines.contract import Answer, Engine

MOST_BYTES = 5_000_000
PROBE_SECONDS = 10.0
Template = tuple[Mapping[str, Any], Mapping[str, str]]
"""A pod's container and the files mounted in it."""


def open_http() -> httpx.AsyncClient:
    """A client for any number of requests in flight. No proxies, no redirects, no cookies kept."""
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=httpx.Timeout(300.0, connect=10.0, pool=None),
        follow_redirects=False,
        trust_env=False,
    )


async def fetch(server: Server, path: str, http: httpx.AsyncClient, port: int | None = None) -> Answer | None:
    """One GET; None when it does not answer, or with too much. ``port``: another one than that of requests."""
    headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    url = httpx.URL(server.base_url).copy_with(port=port) if port is not None else server.base_url
    url = str(url).rstrip("/") + path
    try:
        async with http.stream("GET", url, headers=headers, timeout=PROBE_SECONDS) as answer:
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    return None
            return Answer(path, answer.status_code, body, answer.headers.get("content-type", "")[:128])
    except httpx.HTTPError:
        return None


class Sensor:
    """Reads a server's metrics again and again, each reading knowing the one before."""

    def __init__(self, server: Server, engine: Engine, capability: Capability | None, http: httpx.AsyncClient) -> None:
        self._server, self._engine, self._http = server, engine, http
        self._paths = engine.load_paths(capability)
        self.readings: list[PodReading] = []

    async def read(self, clock: Clock) -> PodReading | None:
        """The newest reading, also kept; None when nothing usable came."""
        before = clock.now()
        answers = await _group(self._server, self._paths, self._http)
        if answers is None:
            return None
        at = (before + clock.now()) / 2
        reading = self._engine.read(answers, at, self.readings[-1] if self.readings else None)
        if reading.fault is not None:
            return None
        self.readings.append(reading)
        return reading


async def _group(server: Server, groups: Sequence[Sequence[str]], http: httpx.AsyncClient) -> list[Answer] | None:
    """The answers of the first group whose first path answers 200, else the first answer at all."""
    heads: list[Answer] = []
    for first, *others in groups:
        head = await fetch(server, first, http, server.metrics_port)
        if head is None:
            continue
        if head.status == 200:
            more = [await fetch(server, path, http, server.metrics_port) for path in others]
            return [head, *(answer for answer in more if answer is not None)]
        heads.append(head)
    return heads[:1] or None


async def identify(server: Server, http: httpx.AsyncClient) -> tuple[Engine, bool]:
    """(its engine, whether it serves metrics). Raises `MeasureFailure`."""
    candidates = [ENGINES[server.engine]] if server.engine is not None else list(ENGINES.values())
    answered, unauthorized = False, False
    for engine in candidates:
        answers = await _group(server, engine.load_paths(None), http)
        answered = answered or answers is not None
        unauthorized = unauthorized or any(answer.status in (401, 403) for answer in answers or ())
        if answers and (server.engine is not None or any(engine.recognises(answer) for answer in answers)):
            reading = engine.read(answers, 0.0, None)
            if server.engine is None or reading.fault is None:
                return engine, reading.fault is None
            if reading.fault is ScrapeFault.WRONG_ENGINE:
                raise MeasureFailure(
                    FailureReason.WRONG_ENGINE, f"this is not {server.engine}: its metrics are another engine's"
                )
    for engine in candidates:
        for path in engine.info_paths:
            answer = await fetch(server, path, http)
            answered = answered or answer is not None
            if answer is not None and answer.status == 200 and engine.recognises(answer):
                return engine, False
    if server.engine is not None and answered and not unauthorized:
        return candidates[0], False
    if unauthorized:
        raise MeasureFailure(
            FailureReason.UNAUTHORIZED,
            "the server wants a token: give it with --token-file, or the Secret reference",
        )
    if not answered:
        raise MeasureFailure(
            FailureReason.UNREACHABLE, "the server does not answer: check host, port and that it is up"
        )
    raise MeasureFailure(
        FailureReason.WRONG_ENGINE,
        "no engine that Crossover knows answers like that; with metrics off, name the engine (--engine)",
    )


async def capability_of(
    server: Server, engine: Engine, http: httpx.AsyncClient, template: Template | None = None
) -> Capability | None:
    """From the server's own description, and what it was started from; None when it has no description."""
    container, files = template if template is not None else (None, None)
    for path in engine.info_paths:
        answer = await fetch(server, path, http)
        if answer is not None and answer.status in (401, 403):
            raise MeasureFailure(
                FailureReason.UNAUTHORIZED,
                f"the server answers HTTP {answer.status}: give the token it expects (--token-file, or the Secret reference)",
            )
        if answer is not None and answer.status == 200:
            return engine.capability(answer, container, files)
    return None


async def route_of(server: Server, engine: Engine, http: httpx.AsyncClient) -> Route:
    """Triton has no other route than its own, and only it has that health path."""
    if server.route is not Route.AUTO or engine.type is not EngineType.TENSORRT_LLM:
        return server.route
    answer = await fetch(server, "/v2/health/ready", http)
    return Route.TRITON if answer is not None and answer.status == 200 else Route.AUTO


async def model_of(server: Server, http: httpx.AsyncClient) -> str:
    """The model name for requests. Raises `MeasureFailure` when the wanted one is not served."""
    if server.route is Route.TRITON:
        return await _triton_model(server, http)
    answer = await fetch(server, "/v1/models", http)
    if answer is not None and answer.status in (401, 403):
        raise MeasureFailure(
            FailureReason.UNAUTHORIZED,
            f"the server answers HTTP {answer.status}: give the token it expects (--token-file, or the Secret reference)",
        )
    listed = _models(answer)
    if server.model is None:
        if answer is None or answer.status >= 500:  # says nothing about names: it may answer the next time
            raise MeasureFailure(FailureReason.UNREACHABLE, "the server does not answer GET /v1/models")
        if not listed:
            raise MeasureFailure(FailureReason.WRONG_MODEL, "the server lists no model: name it (--model)")
        return listed[0]
    if listed and server.model not in listed:
        raise MeasureFailure(
            FailureReason.WRONG_MODEL,
            f"the server does not serve {server.model!r}; it lists {len(listed)} other name(s) under /v1/models",
        )
    return server.model


async def _triton_model(server: Server, http: httpx.AsyncClient) -> str:
    """Triton lists models only on request of a POST, so the name has to be told."""
    if server.model is None:
        raise MeasureFailure(
            FailureReason.WRONG_MODEL,
            "Triton does not list its models: name the one that takes text (--model ensemble, tensorrt_llm_bls or tensorrt_llm)",
        )
    answer = await fetch(server, f"/v2/models/{quote(server.model, safe='')}/ready", http)
    if answer is not None and answer.status in (400, 404):
        raise MeasureFailure(FailureReason.WRONG_MODEL, f"Triton has no model {server.model!r} that is ready (--model)")
    return server.model


def _models(answer: Answer | None) -> list[str]:
    if answer is None or answer.status != 200:
        return []
    try:
        document = json.loads(answer.body)
        return [str(item["id"]) for item in document["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
