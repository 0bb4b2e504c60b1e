"""An emulated SGLang server: real wire formats, real traps, step times from the model, no GPU.

crossover emulate sglang --address 127.20.0.5 -- python3 -m sglang.launch_server --model-path m --enable-metrics
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from crossover.decide.step_model import PRESETS
from crossover.emulate.core import EngineCore, Request
from crossover.emulate.sglang_args import DraftPolicy, Launch, LaunchError, parse
from crossover.emulate.sglang_wire import RankView, Wire

FAULTS = ("stale-gauges", "html", "hang", "nan", "huge", "http-503", "metrics-off", "close")
COALESCE_SECONDS = 0.02
STREAM_SECONDS = 0.004
HEALTH_SECONDS = 1.0
STARTING, WARMING, READY, DRAINING = "starting", "warming", "ready", "draining"


@dataclass(frozen=True)
class Options:
    """The emulator's own options: the hidden truth and the pace."""

    address: str
    port: int | None = None
    root: Path = Path("/")
    server_version: str = "0.5.23"
    model: str = "8b-h100"
    acceptance: float = 0.67
    acceptance_spread: float = 0.1
    startup_seconds: float = 2.0
    drain_poll_seconds: float = 5.0
    time_scale: float = 1.0
    seed: int = 1
    fault: str | None = None


class SGLangServer:
    """One server process. `run` serves until SIGTERM has been drained."""

    def __init__(self, options: Options, command: Sequence[str]) -> None:
        version = tuple(int(part) for part in options.server_version.split("."))
        self.options = options
        self.launch: Launch = parse(command, version, options.root)
        self.state = STARTING
        self.fault = options.fault
        self.policies: list[DraftPolicy] = []
        self.views: list[RankView] = []
        self.cores: list[EngineCore] = []
        for rank in range(self.launch.args.dp_size):
            self._add_rank(rank)
        self.wire = Wire(self.launch, self.cores, self.views)
        self._wake = asyncio.Event()
        self._streams = 0
        self._next_rank = 0

    def _add_rank(self, rank: int) -> None:
        options, launch = self.options, self.launch
        model = PRESETS[options.model]
        policy, view = DraftPolicy(launch), RankView(launch)
        self.policies.append(policy)
        self.views.append(view)
        self.cores.append(
            EngineCore(
                model,
                max_running_requests=launch.max_running_requests,
                kv_capacity_tokens=launch.args.max_total_tokens or model.model.kv_capacity_tokens,
                draft_length=policy,
                speculates=launch.algorithm is not None,
                drafts_free=launch.algorithm == "NGRAM",
                acceptance=options.acceptance,
                acceptance_spread=options.acceptance_spread,
                time_scale=options.time_scale,
                seed=options.seed * 1000 + rank,
                on_step=view.on_step,
            )
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Port closed while loading, 503 while warming up, then serving, then draining."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        load_seconds = self.options.startup_seconds * 0.8
        await asyncio.sleep(load_seconds)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        self._fail_as_the_engine_would()
        driver = asyncio.create_task(self._drive())
        self.state = WARMING
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        port = self.options.port or self.launch.args.port
        await web.TCPSite(runner, self.options.address, port).start()
        await asyncio.sleep(self.options.startup_seconds - load_seconds)
        self.state = READY
        print("The server is fired up and ready to roll!", flush=True)
        await stop.wait()
        self.state = DRAINING
        print("SIGTERM: draining", flush=True)
        while not all(core.idle for core in self.cores):
            await asyncio.sleep(self.options.drain_poll_seconds)
        driver.cancel()
        await runner.cleanup()

    def _fail_as_the_engine_would(self) -> None:
        for warning in self.launch.warnings:
            print(f"WARNING: {warning}", flush=True)
        if self.launch.algorithm == "NONE":
            raise LaunchError("warm-up failed: speculative algorithm NONE")

    async def _drive(self) -> None:
        """Advance all cores in real time; many steps at once unless somebody streams."""
        while True:
            now = time.monotonic()
            for core in self.cores:
                core.advance(now)
            nexts = [core.next_step_at for core in self.cores if core.next_step_at is not None]
            pause = STREAM_SECONDS if self._streams else COALESCE_SECONDS
            self._wake.clear()
            if nexts:
                await asyncio.sleep(max(pause, min(nexts) - now))
            else:
                for core, view in zip(self.cores, self.views, strict=True):
                    if view.loads["running"] or view.loads["waiting"]:
                        view.on_idle(core)
                await self._wake.wait()

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._gate])
        version = self.launch.version
        app.router.add_get("/health", self._health)
        app.router.add_get("/health_generate", self._health)
        app.router.add_get("/get_server_info", self._server_info)
        app.router.add_get("/get_model_info", self._model_info)
        app.router.add_get("/v1/models", self._models)
        if self.launch.args.enable_metrics:
            app.router.add_get("/metrics", self._metrics)
        if version >= (0, 5, 6):
            app.router.add_get("/server_info", self._server_info)
            app.router.add_get("/model_info", self._model_info)
        if version >= (0, 5, 8):
            app.router.add_get("/v1/loads", self._loads)
        if version >= (0, 5, 20):
            app.router.add_get("/ready", self._ready)
        app.router.add_post("/set_internal_state", self._set_internal_state)
        app.router.add_put("/set_internal_state", self._set_internal_state)
        app.router.add_post("/flush_cache", self._flush_cache)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/completions", self._openai)
        app.router.add_post("/emulator/faults", self._set_fault)
        app.router.add_get("/emulator/truth", self._truth)
        return app

    @web.middleware
    async def _gate(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        """Authorisation, warm-up and injected faults."""
        path = request.path
        open_path = path.startswith(("/health", "/ready", "/metrics", "/emulator"))
        key = self.launch.args.api_key
        if key and not open_path and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.state == WARMING and not path.startswith("/emulator"):
            return web.Response(status=503)
        if self.fault and path in ("/metrics", "/v1/loads"):
            faulty = await self._faulty(request)
            if faulty is not None:
                return faulty
        response: web.StreamResponse = await handler(request)
        return response

    async def _faulty(self, request: web.Request) -> web.StreamResponse | None:
        if self.fault == "hang":
            await asyncio.sleep(3600)
        if self.fault == "html":
            return web.Response(text="<!doctype html><html><body>proxy error</body></html>", content_type="text/html")
        if self.fault == "http-503":
            return web.Response(status=503, text="unavailable")
        if self.fault == "metrics-off":
            return web.Response(status=404)
        if self.fault == "nan" and request.path == "/metrics":
            return web.Response(text=_with_nan(self.wire.metrics()), content_type="text/plain")
        if self.fault == "nan":
            text = json.dumps(self.wire.loads()).replace('"num_running_reqs": ', '"num_running_reqs": NaN, "was": ')
            return web.Response(text=text, content_type="application/json")
        if self.fault == "huge":
            return web.Response(text="x" * 50_000_000, content_type="text/plain")
        if self.fault == "close" and request.transport is not None:
            request.transport.close()
        return None

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.state == READY else 503)

    async def _health(self, _: web.Request) -> web.Response:
        """A one-token request, polled once a second; 503 at once while exiting."""
        if self.state != READY:
            return web.Response(status=503)
        if self.launch.version >= (0, 5, 3):
            await asyncio.sleep(HEALTH_SECONDS)
        return web.Response(status=200)

    async def _metrics(self, _: web.Request) -> web.Response:
        for view in self.views:
            view.frozen = self.fault == "stale-gauges"
        return web.Response(text=self.wire.metrics(), content_type="text/plain", charset="utf-8")

    async def _loads(self, _: web.Request) -> web.Response:
        return web.json_response(self.wire.loads())

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.wire.server_info("ready" if self.state == READY else "starting"))

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.launch.args.model_path, "is_generation": True})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.launch.args.model_path, "object": "model"}]})

    async def _set_internal_state(self, request: web.Request) -> web.Response:
        """One bool per scheduler. Before 0.5.15 the answer is true even when the key was ignored."""
        body = await request.json()
        wanted: dict[str, Any] = body.get("server_args", {})
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in wanted.values()):
            return web.Response(status=400)
        knob = "pp_max_micro_batch_size" if self.launch.version >= (0, 5, 4) else "max_micro_batch_size"
        known = {knob, "speculative_accept_threshold_single", "speculative_accept_threshold_acc"}
        results = []
        for core in self.cores:
            value = wanted.get(knob)
            good = set(wanted) <= known and (value is None or 1 <= value <= core.max_running_requests)
            if good and value is not None:
                core.running_cap = int(value)
            results.append(good or self.launch.version < (0, 5, 15))
        return web.json_response(results)

    async def _flush_cache(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if all(core.idle for core in self.cores) else 400)

    # -- generation ---------------------------------------------------------------------------------------------------

    def _submit(self, input_tokens: int, output_tokens: int, streaming: bool) -> tuple[Request, asyncio.Queue[int]]:
        """A request on the next rank; the queue gets token counts when streaming, and -1 at the end."""
        queue: asyncio.Queue[int] = asyncio.Queue()
        core = self.cores[self._next_rank % len(self.cores)]
        self._next_rank += 1
        request = core.submit(
            time.monotonic(),
            input_tokens,
            output_tokens,
            on_tokens=(lambda count, _: queue.put_nowait(count)) if streaming else None,
            on_end=lambda _: queue.put_nowait(-1),
        )
        self._wake.set()
        return request, queue

    async def _finished(self, request: Request, queue: asyncio.Queue[int]) -> None:
        try:
            while await queue.get() != -1:
                pass
        except asyncio.CancelledError:
            self.cores[0].abort(request, time.monotonic())
            raise

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        ids, text = body.get("input_ids"), body.get("text", "")
        input_tokens = len(ids) if isinstance(ids, list) else max(1, len(str(text).split()))
        sampling = body.get("sampling_params", {})
        output_tokens = int(sampling.get("max_new_tokens", 128))
        if body.get("stream"):
            return await self._stream(http, input_tokens, output_tokens, _sglang_chunk)
        request, queue = self._submit(input_tokens, output_tokens, False)
        await self._finished(request, queue)
        return web.json_response(_sglang_chunk(request, " x" * request.emitted_tokens, True))

    async def _openai(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        messages = body.get("messages") or [{"content": body.get("prompt", "")}]
        input_tokens = max(1, sum(len(str(message.get("content", "")).split()) for message in messages))
        output_tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 128)
        chat = http.path.endswith("chat/completions")
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return await self._stream(http, input_tokens, output_tokens, _openai_chunk(chat, usage))
        request, queue = self._submit(input_tokens, output_tokens, False)
        await self._finished(request, queue)
        return web.json_response(_openai_answer(chat, request))

    async def _stream(
        self, http: web.Request, input_tokens: int, output_tokens: int, chunk: Callable[[Request, str, bool], Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        self._streams += 1
        request, queue = self._submit(input_tokens, output_tokens, True)
        try:
            while (count := await queue.get()) != -1:
                await response.write(_event(chunk(request, " x" * count, False)))
            await response.write(_event(chunk(request, "", True)))
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.cores[0].abort(request, time.monotonic())
            raise
        finally:
            self._streams -= 1
        return response

    # -- the emulator's own -------------------------------------------------------------------------------------------

    async def _set_fault(self, request: web.Request) -> web.Response:
        body = await request.json()
        fault = body.get("fault")
        if fault is not None and fault not in FAULTS:
            return web.json_response({"error": f"fault is one of {', '.join(FAULTS)}"}, status=400)
        self.fault = fault
        return web.json_response({"fault": fault})

    async def _truth(self, _: web.Request) -> web.Response:
        """What is really going on, for witnesses: never read by Crossover."""
        now, wall = time.monotonic(), time.time()
        ranks = []
        for core, policy in zip(self.cores, self.policies, strict=True):
            ranks.append(
                {
                    "running": len(core.running),
                    "waiting": len(core.waiting),
                    "draft_tokens": core.draft_in_force if core.speculates else 0,
                    "output_tokens_total": core.counters.output_tokens,
                    "moves": [[wall - (now - at), length] for at, length in policy.moves[-50:]],
                }
            )
        return web.json_response({"speculates": self.launch.algorithm is not None, "state": self.state, "ranks": ranks})


def _with_nan(text: str) -> str:
    lines = []
    for line in text.split("\n"):
        name, space, _ = line.rpartition(" ")
        lines.append(f"{name} NaN" if space and line.startswith("sglang:num_running_reqs") else line)
    return "\n".join(lines)


def _event(document: Any) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _sglang_chunk(request: Request, text: str, last: bool) -> dict[str, Any]:
    meta = {
        "id": str(request.identity),
        "finish_reason": {"type": "length", "length": request.output_tokens} if last else None,
        "prompt_tokens": request.input_tokens,
        "completion_tokens": request.emitted_tokens,
        "spec_verify_ct": request.verify_steps,
    }
    return {"text": text, "meta_info": meta}


def _usage(request: Request) -> dict[str, int]:
    return {
        "prompt_tokens": request.input_tokens,
        "completion_tokens": request.emitted_tokens,
        "total_tokens": request.input_tokens + request.emitted_tokens,
    }


def _openai_chunk(chat: bool, usage: bool) -> Callable[[Request, str, bool], dict[str, Any]]:
    def chunk(request: Request, text: str, last: bool) -> dict[str, Any]:
        content: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        document: dict[str, Any] = {
            "id": str(request.identity),
            "object": "chat.completion.chunk" if chat else "text_completion",
            "choices": [{"index": 0, **content, "finish_reason": "length" if last else None}],
        }
        if last and usage:
            document["usage"] = _usage(request)
        return document

    return chunk


def _openai_answer(chat: bool, request: Request) -> dict[str, Any]:
    text = " x" * request.emitted_tokens
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": str(request.identity),
        "object": "chat.completion" if chat else "text_completion",
        "choices": [{"index": 0, **content, "finish_reason": "length"}],
        "usage": _usage(request),
    }


def serve(options: Options, command: Sequence[str]) -> int:
    """Run one server in this process; its exit status."""

    async def run() -> None:
        await SGLangServer(options, command).run()

    try:
        asyncio.run(run())
    except LaunchError as error:
        print(f"Traceback (most recent call last):\n{error}", file=sys.stderr, flush=True)
        return 1
    return 0
