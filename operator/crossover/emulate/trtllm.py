"""An emulated TensorRT-LLM in its servers: trtllm-serve, a Dynamo worker, NIM 1.x, Triton.

crossover emulate trtllm --address 127.20.0.7 -- trtllm-serve /m --host 0.0.0.0 --config /config/llm.yaml

A Dynamo worker has no OpenAI routes of its own (its frontend has); here they are on the worker, in place of the frontend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiohttp import web

from crossover.emulate import openai
from crossover.emulate.options import Options
from crossover.emulate.requests import Limits
from crossover.emulate.server import EmulatedServer, State
from crossover.emulate.triton import Generate
from crossover.emulate.trtllm_args import Form, Launch, parse
from crossover.emulate.trtllm_stats import Collector, RankView
from crossover.emulate.trtllm_wire import Wire

FORCED_ACCEPTANCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
STATE_HEADER = "x-trtllm-server-state"
LOCAL = ("localhost", "127.0.0.1", "::1")
METRICS = ("/metrics", "/metrics/")
"""Of Triton, on the port that has nothing else."""
EMPTY_SECONDS = 2.0
"""How long a GET of the JSON waits when statistics are off."""
DRAIN_LOOK_SECONDS = 0.05
PORTS = {
    Form.SERVE: (8000,),
    Form.DYNAMO: (9090,),
    Form.NIM: (8000,),
    Form.TRITON: (8000, 8002),
    Form.TRITON_LLMAPI: (8000, 8002),
}


class TensorRTLLMServer(EmulatedServer):
    """From 1.3 it listens at once and answers 503 until it is loaded; SIGTERM closes the port and waits for what runs."""

    metric_paths = ("/metrics", "/prometheus/metrics", "/v1/metrics")

    def __init__(self, options: Options, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        environ = environ or {}
        self.launch: Launch = parse(command, environ, options.version, options.root, options.form)
        self.running_gauge = {
            Form.SERVE: "trtllm_scheduled_batch_size",
            Form.DYNAMO: "dynamo_component_inflight_requests",
            Form.NIM: "num_requests_running",
        }.get(self.launch.form, "nv_trt_llm_request_metrics")
        self.listens_while_loading = options.version >= (1, 3) and self.launch.form is Form.SERVE
        args = self.launch.args
        self._model = str(args.served_model_name or args.model or args.model_option or "/models/emulated")
        self._port = int(environ.get("DYN_SYSTEM_PORT", 0)) if self.launch.form is Form.DYNAMO else args.port
        self.collector = Collector(self.launch)
        self.views: list[RankView] = []
        self._add_ranks(environ.get(FORCED_ACCEPTANCE))
        self.faulted()
        self.wire = Wire(
            self.launch,
            self.collector,
            self._model,
            self.cores,
            self.views,
            batch_gauge=lambda: "no-batch-gauge" not in self.faults,
        )

    def _add_ranks(self, forced: str | None) -> None:
        truth, launch = self.options.truth(), self.launch
        if forced:
            truth = replace(truth, forced_acceptance_length=1 + float(forced))
        limits = Limits(
            launch.running_limit,
            self.options.kv_tokens or truth.model.model.kv_capacity_tokens,
            launch.max_tokens,
            mixed=True,
            reserves_output=launch.reserves_output,
        )
        for rank in range(launch.ranks):
            view = RankView(launch, self.collector, rank, self.views)
            self.views.append(view)
            self.add_rank(truth, limits, launch.drafts(), view)
            view.core = self.ranks[-1].core

    def ports(self) -> tuple[int, ...]:
        return (int(self._port),) if self._port else PORTS[self.launch.form]

    def unreachable(self) -> str | None:
        host = self.launch.args.host
        if self.launch.form is not Form.SERVE or host not in LOCAL or self.options.address == "127.0.0.1":
            return None
        return f"listening on {host} of the pod only: without --host 0.0.0.0 nobody outside connects"

    async def drain(self) -> None:
        """The port closes at once; what runs is waited for without bound."""
        await self.stop_listening()
        while not self.idle:
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def faulted(self) -> None:
        for view in self.views:
            view.whole_queue = "whole-queue" in self.faults

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        generate = [web.post("/v1/chat/completions", self._openai), web.post("/v1/completions", self._openai)]
        models = web.get("/v1/models", self._models)
        if self.launch.form is Form.SERVE:
            return [*generate, models, *self._serve_routes()]
        if self.launch.form is Form.DYNAMO:
            live = [web.get("/live", self._health), web.get("/health", self._health)]
            return [*generate, models, *live, web.get("/metrics", self._page)]
        if self.launch.form is Form.NIM:
            live = [web.get(f"/v1/health/{kind}", self._health) for kind in ("live", "ready")]
            return [*generate, models, *live, web.get("/v1/metrics", self._page)]
        live = [web.get(f"/v2/health/{kind}", self._health) for kind in ("live", "ready")]
        native = Generate(self, llm_api=self.launch.form is Form.TRITON_LLMAPI).routes()
        return [*live, *native, *(web.get(path, self._page) for path in METRICS)]

    def _serve_routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/health", self._health),
            web.get("/health_generate", self._health_generate),
            web.get("/version", self._version),
            web.get("/server_info", self._server_info),
            web.get("/metrics", self._json),
            web.get("/metrics/", self._without_slash),
            web.get("/perf_metrics", self._empty),
            web.post("/kv_cache_events", self._empty),
        ]
        if self.launch.flag("return_perf_metrics"):
            routes.append(web.get("/prometheus/metrics", self._page))
        return routes

    async def gate(self, request: web.Request) -> web.StreamResponse | None:
        if self.state in (State.LOADING, State.WARMING):
            return web.Response(status=503, headers={STATE_HEADER: "starting", "Retry-After": "5"})
        return self._on_other_port(request)

    def _on_other_port(self, request: web.Request) -> web.Response | None:
        """Triton serves metrics on a port of its own, and nothing else there; one given port serves all."""
        port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
        if self.launch.form not in (Form.TRITON, Form.TRITON_LLMAPI) or port not in self.ports():
            return None
        is_metrics = port == PORTS[self.launch.form][-1]
        if is_metrics == (request.path in METRICS):
            return None
        return web.Response(status=400 if is_metrics else 404)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200)

    async def _health_generate(self, _: web.Request) -> web.Response:
        """A real request, which takes a slot."""
        await self.finish(self.submit(1, 1, streams=False))
        return web.Response(status=200)

    async def _without_slash(self, _: web.Request) -> web.Response:
        """As FastAPI does with any path that has one too many."""
        return web.Response(status=307, headers={"Location": "/metrics"})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.options.version_text})

    async def _server_info(self, _: web.Request) -> web.Response:
        info = {"disaggregated_params": None}
        if self.options.version < (1, 3):
            return web.json_response(info)
        more = {"kv_cache_hash_algo": None, "tokens_per_block": self.launch.block_tokens}
        return web.json_response({**info, "max_batch_size": self.launch.max_batch, **more})

    async def _models(self, _: web.Request) -> web.Response:
        return openai.models(self._model)

    async def _json(self, _: web.Request) -> web.Response:
        """The iterations since the last GET. Off, it makes everybody wait."""
        if not self.launch.flag("enable_iter_perf_stats"):
            await asyncio.sleep(EMPTY_SECONDS)
            return web.json_response([])
        records = [record for view in self.views for record in view.drain()]
        return web.json_response(sorted(records, key=lambda record: int(record["iter"])))

    async def _empty(self, _: web.Request) -> web.Response:
        return web.json_response([])

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(body=self.wire.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _openai(self, http: web.Request) -> web.StreamResponse:
        return await openai.complete(self, http, openai.prompt_of(http.path, await http.json()))
