"""An emulated vLLM server: OpenAI routes, `/metrics` as its front ends merge it, development routes when asked for.

crossover emulate vllm --address 127.20.0.6 -- vllm serve m --speculative-config '{"method": "eagle3", ...}'
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aiohttp import web

from crossover.emulate import openai
from crossover.emulate.core import EngineCore
from crossover.emulate.options import Options
from crossover.emulate.requests import Limits, Step
from crossover.emulate.server import EmulatedServer, State
from crossover.emulate.vllm_args import Launch, parse
from crossover.emulate.vllm_wire import EngineView, FrontEnd, Wire

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
UNSCALED = ("/health", "/is_scaling_elastic_ep")
SHUTDOWN_TIMEOUT_SINCE = (0, 18)
DRAIN_LOOK_SECONDS = 0.05
PREFILL_TOKENS = 8192


class VLLMServer(EmulatedServer):
    """Port closed until it serves; SIGTERM aborts what runs unless there is a shutdown timeout."""

    loading_share = 1.0
    running_gauge = "vllm:num_requests_running"

    def __init__(self, options: Options, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        environ = environ or {}
        self.launch: Launch = parse(command, environ, options.version, options.root)
        args = self.launch.args
        self._develops = environ.get("VLLM_SERVER_DEV_MODE") == "1"
        self._keys = args.api_key or ([environ["VLLM_API_KEY"]] if environ.get("VLLM_API_KEY") else [])
        self._names: list[str] = args.served_model_name or [args.model_tag or args.model or "/models/emulated"]
        self.front = FrontEnd()
        self.views: list[EngineView] = []
        self._was_reset = False
        for _ in self.launch.ranks:
            self._add_engine()
        self.wire = Wire(self.launch, self.front, self._names[0], self.started_at, self.cores, self.views, environ)

    def _add_engine(self) -> None:
        args, truth = self.launch.args, self.options.truth()
        if self.launch.forced_acceptance_length is not None:
            truth = replace(truth, forced_acceptance_length=self.launch.forced_acceptance_length)
        blocks = args.num_gpu_blocks_override
        capacity = (
            blocks * args.block_size if blocks else self.options.kv_tokens or truth.model.model.kv_capacity_tokens
        )
        limits = Limits(
            self.launch.max_running_requests("a100" not in self.options.model),
            capacity,
            args.max_num_batched_tokens or PREFILL_TOKENS,
            mixed=True,
        )
        view = _Watched(self.launch, self._diverged)
        self.views.append(view)
        self.add_rank(truth, limits, self.launch.drafts(truth), view)

    def _diverged(self) -> None:
        """Ranks in one collective with different draft lengths: none of them ever ends its step."""
        if len({core.draft_in_force for core in self.cores if core.running}) > 1:
            self.pause()

    def ports(self) -> tuple[int, ...]:
        return (int(self.launch.args.port),)

    def after_load(self) -> None:
        for warning in self.launch.warnings:
            print(f"WARNING {warning}", flush=True)
        if self.launch.late_error is not None:
            raise self.launch.late_error

    async def drain(self) -> None:
        """Aborts, or waits for the shutdown timeout; meanwhile the health route stays 200."""
        timeout = self.launch.args.shutdown_timeout if self.options.version >= SHUTDOWN_TIMEOUT_SINCE else 0.0
        ends = time.monotonic() + timeout
        while not self.idle and time.monotonic() < ends:
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        self.abort_all()
        await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def faulted(self) -> None:
        """reset-counters: the logger was rebuilt, once each time the fault is switched on."""
        wanted = "reset-counters" in self.faults
        if wanted and not self._was_reset:
            for core, view in zip(self.cores, self.views, strict=True):
                view.reset(core)
        self._was_reset = wanted

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/health", self._health),
            web.get("/ping", self._health),
            web.get("/load", self._load),
            web.get("/version", self._version),
            web.get("/metrics", self._metrics),
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._openai),
            web.post("/v1/completions", self._openai),
        ]
        if self._develops:
            routes += [
                web.get("/server_info", self._server_info),
                web.post("/sleep", self._sleep),
                web.post("/wake_up", self._wake_up),
                web.get("/is_sleeping", self._is_sleeping),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.get("/is_paused", self._is_paused),
            ]
        return routes

    async def gate(self, request: web.Request) -> web.StreamResponse | None:
        if "scaling" in self.faults and request.path not in UNSCALED:
            return web.json_response({"error": "The model is currently scaling. Please try again later."}, status=503)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._keys and request.path.startswith(GUARDED) and given not in self._keys:
            return web.json_response({"error": "Unauthorized"}, status=401)
        return None

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200)

    async def _load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.options.version_text})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self.wire.metrics(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        )

    async def _models(self, _: web.Request) -> web.Response:
        return openai.models(*self._names)

    async def _openai(self, http: web.Request) -> web.StreamResponse:
        response = await self._answer(http)
        key = (http.path, f"{response.status // 100}xx")
        self.front.answered[key] = self.front.answered.get(key, 0) + 1
        return response

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        prompt = openai.prompt_of(http.path, await http.json())
        if prompt.model and prompt.model not in self._names:
            return openai.error(404, f"The model `{prompt.model}` does not exist.", "NotFoundError")
        if prompt.input_tokens >= self.launch.args.max_model_len:
            return openai.error(400, "The prompt is longer than the maximum model length.", "BadRequestError")
        most = self.launch.args.max_num_queued_reqs
        if most is not None and sum(len(core.waiting) for core in self.cores) >= most:
            self.front.rejected += 1
            return openai.error(503, "Too many queued requests.", "ServiceUnavailableError")
        if self.state == State.DRAINING:
            return openai.aborted(prompt)
        return await openai.complete(self, http, prompt)

    # -- development routes -------------------------------------------------------------------------------------------

    async def _server_info(self, _: web.Request) -> web.Response:
        scheduler = {"max_num_seqs": self.cores[0].limits.max_running_requests}
        config = {"speculative_config": self.launch.config, "scheduler_config": scheduler}
        return web.json_response({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    async def _sleep(self, request: web.Request) -> web.Response:
        if not self.launch.args.enable_sleep_mode:
            return openai.error(400, "Sleep mode is not enabled.", "BadRequestError")
        level = int(request.query.get("level", "1"))
        self.abort_all()
        self.pause()
        self.front.sleeping = "weights_offloaded" if level == 1 else "discard_all"
        return web.json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, _: web.Request) -> web.Response:
        self.front.sleeping = "awake"
        self.resume()
        return web.Response(status=200)

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.front.sleeping != "awake"})

    async def _pause(self, request: web.Request) -> web.Response:
        if request.query.get("mode", "abort") == "abort":
            self.abort_all()
        self.pause()
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.resume()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": any(core.paused for core in self.cores)})


class _Watched(EngineView):
    """A view that also looks at its neighbours where ranks can wait for each other."""

    def __init__(self, launch: Launch, diverged: Callable[[], None]) -> None:
        super().__init__(launch)
        self._diverged = diverged

    def on_step(self, core: EngineCore, step: Step) -> None:
        super().on_step(core, step)
        if self.launch.deadlocks and step.decoding:
            self._diverged()
