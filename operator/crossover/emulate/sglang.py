"""An emulated SGLang server: real wire formats, real traps, step times from the model, no GPU.

crossover emulate sglang --address 127.20.0.5 -- python3 -m sglang.launch_server --model-path m --enable-metrics
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from crossover.emulate import openai
from crossover.emulate.commands import LaunchError
from crossover.emulate.options import Options
from crossover.emulate.requests import Limits, Request
from crossover.emulate.server import EmulatedServer, State
from crossover.emulate.sglang_args import parse
from crossover.emulate.sglang_wire import RankView, Tokenizer, Wire

HEALTH_SECONDS = 1.0
FORCED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"
SKIPS_AT_ZERO = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"
OPEN_PATHS = ("/health", "/ready", "/metrics")


class SGLangServer(EmulatedServer):
    """Port closed while loading, 503 while warming up; SIGTERM waits until nobody asks for anything any more."""

    metric_paths = ("/metrics", "/v1/loads")
    running_gauge = "sglang:num_running_reqs"

    def __init__(self, options: Options, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        self.launch = parse(command, options.version, options.root)
        self._version = options.version
        self._forced_shutdown = (environ or {}).get("SGL_FORCE_SHUTDOWN") == "1"
        self._tokenizer = Tokenizer()
        self.views: list[RankView] = []
        truth, args = options.truth(), self.launch.args
        environ = environ or {}
        if environ.get(FORCED_ACCEPTANCE):
            truth = replace(truth, forced_acceptance_length=float(environ[FORCED_ACCEPTANCE]))
        if environ.get(SKIPS_AT_ZERO, "").lower() in ("1", "true"):
            truth = replace(truth, zero_is_free=True)
        capacity = args.max_total_tokens or options.kv_tokens or truth.model.model.kv_capacity_tokens
        for _ in range(args.dp_size):
            view = RankView(self.launch, self._tokenizer)
            self.views.append(view)
            self.add_rank(truth, Limits(self.launch.max_running_requests, capacity), self.launch.drafts(), view)
        self.wire = Wire(self.launch, self._tokenizer, self.cores, self.views)

    def ports(self) -> tuple[int, ...]:
        return (int(self.launch.args.port),)

    def after_load(self) -> None:
        for warning in self.launch.warnings:
            print(f"WARNING: {warning}", flush=True)
        if self.launch.algorithm == "NONE":
            raise LaunchError("warm-up failed: speculative algorithm NONE")

    def ready(self) -> None:
        super().ready()
        print("The server is fired up and ready to roll!", flush=True)

    async def drain(self) -> None:
        """New requests are still accepted; no deadline of its own."""
        if self._forced_shutdown:
            self.abort_all()
        while not self.idle:
            await asyncio.sleep(self.options.drain_poll_seconds)

    def faulted(self) -> None:
        """stuck-queue: everything waits, nothing runs."""
        stuck = "stuck-queue" in self.faults
        for core, view in zip(self.cores, self.views, strict=True):
            if stuck:
                core.pause()
                core.retract_all()
                view.report_stuck(core)
        if not stuck and "hang-engine" not in self.faults:
            self.resume()

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        version = self._version
        routes = [
            web.get("/health", self._health),
            web.get("/health_generate", self._health),
            web.get("/get_server_info", self._server_info),
            web.get("/get_model_info", self._model_info),
            web.get("/v1/models", self._models),
            web.post("/set_internal_state", self._set_internal_state),
            web.put("/set_internal_state", self._set_internal_state),
            web.post("/flush_cache", self._flush_cache),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
            web.post("/abort_request", self._abort),
            web.post("/generate", self._generate),
            web.post("/v1/chat/completions", self._openai),
            web.post("/v1/completions", self._openai),
        ]
        if self.launch.args.enable_metrics:
            routes.append(web.get("/metrics", self._metrics))
        if version >= (0, 5, 6):
            routes += [web.get("/server_info", self._server_info), web.get("/model_info", self._model_info)]
        if version >= (0, 5, 8):
            routes.append(web.get("/v1/loads", self._loads))
        if version >= (0, 5, 20):
            routes.append(web.get("/ready", self._ready))
        return routes

    async def gate(self, request: web.Request) -> web.StreamResponse | None:
        key = self.launch.args.api_key
        given = request.headers.get("Authorization")
        if key and not request.path.startswith(OPEN_PATHS) and given != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.Response(status=503) if self.state == State.WARMING else None

    @property
    def _paused(self) -> bool:
        return any(core.paused for core in self.cores)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.state == State.READY and not self._paused else 503)

    async def _health(self, _: web.Request) -> web.Response:
        """A one-token request, polled once a second; 503 at once while exiting; hangs while paused."""
        if self.state != State.READY:
            return web.Response(status=503)
        if self._version >= (0, 5, 3):
            await asyncio.sleep(HEALTH_SECONDS)
            while self._paused:
                await asyncio.sleep(HEALTH_SECONDS)
        return web.Response(status=200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.wire.metrics(), headers={"Content-Type": "text/plain; charset=utf-8"})

    async def _loads(self, _: web.Request) -> web.Response:
        return web.json_response(self.wire.loads())

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.wire.server_info("ready" if self.state == State.READY else "starting"))

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.launch.args.model_path, "is_generation": True})

    async def _models(self, _: web.Request) -> web.Response:
        return openai.models(self.launch.args.served_model_name or self.launch.args.model_path)

    async def _set_internal_state(self, request: web.Request) -> web.Response:
        """One bool per scheduler. Before 0.5.15 the answer is true even when the key was ignored."""
        body = await request.json()
        wanted: dict[str, Any] = body.get("server_args", {})
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in wanted.values()):
            return web.Response(status=400)
        knob = "pp_max_micro_batch_size" if self._version >= (0, 5, 4) else "max_micro_batch_size"
        known = {knob, "speculative_accept_threshold_single", "speculative_accept_threshold_acc"}
        results = []
        for core in self.cores:
            value = wanted.get(knob)
            good = set(wanted) <= known and (value is None or 1 <= value <= core.limits.max_running_requests)
            if good and value is not None:
                core.running_cap = int(value)
            results.append(good or self._version < (0, 5, 15))
        return web.json_response(results)

    async def _flush_cache(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.idle else 400)

    async def _pause(self, request: web.Request) -> web.Response:
        mode = (await request.json()).get("mode", "abort")
        self.pause()
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            for core in self.cores:
                core.retract_all()
        return web.json_response({"status": "ok"})

    async def _continue(self, _: web.Request) -> web.Response:
        self.resume()
        return web.json_response({"status": "ok"})

    async def _abort(self, request: web.Request) -> web.Response:
        if (await request.json()).get("abort_all"):
            self.abort_all()
        return web.Response(status=200)

    # -- generation ---------------------------------------------------------------------------------------------------

    async def _openai(self, http: web.Request) -> web.StreamResponse:
        return await openai.complete(self, http, openai.prompt_of(http.path, await http.json()))

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        """The native route."""
        body = await http.json()
        ids, sampling = body.get("input_ids"), body.get("sampling_params") or {}
        input_tokens = len(ids) if isinstance(ids, list) else max(1, len(str(body.get("text", "")).split()))
        output_tokens = int(sampling.get("max_new_tokens", openai.DEFAULT_OUTPUT_TOKENS))
        streams = bool(body.get("stream"))
        generation = self.submit(input_tokens, output_tokens, streams=streams)
        request = generation.request
        if not streams:
            await self.finish(generation)
            return web.json_response(_answer(request, openai.WORD * request.emitted_tokens, True))
        return await self.stream(
            http, generation, lambda count, last: openai.event(_answer(request, openai.WORD * count, last))
        )


def _answer(request: Request, text: str, last: bool) -> dict[str, Any]:
    kind = "abort" if request.aborted else "length"
    meta = {
        "id": str(request.identity),
        "finish_reason": {"type": kind, "length": request.output_tokens} if last else None,
        "prompt_tokens": request.input_tokens,
        "completion_tokens": request.emitted_tokens,
        "spec_verify_ct": request.verify_steps,
    }
    return {"text": text, "meta_info": meta}
