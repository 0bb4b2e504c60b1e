"""What the emulated servers have in common: a life from loading to drained, a clock for the schedulers, faults that can be
switched while it runs, and the truth for witnesses.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from aiohttp import web

from crossover.emulate import faults, witness
from crossover.emulate.core import EngineCore, TooLongError
from crossover.emulate.drafts import Drafts
from crossover.emulate.options import Options, faults_of
from crossover.emulate.requests import Limits, Request, Step
from crossover.emulate.truth import Truth

COALESCE_SECONDS = 0.02
"""Steps run in batches of this length: nobody sees tokens one by one."""
STREAM_SECONDS = 0.004
END = -1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class State(StrEnum):
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"


class View(Protocol):
    """What a server publishes of one scheduler."""

    frozen: bool
    """Fault: gauges keep what they show."""

    def on_step(self, core: EngineCore, step: Step) -> None: ...

    def on_first(self, request: Request) -> None: ...

    def on_end(self, request: Request) -> None: ...

    def on_idle(self, core: EngineCore) -> None: ...


@dataclass
class Rank:
    """One scheduler, what is published of it, and when its batch passed a key that somebody watches."""

    view: View
    watch: tuple[int, ...]
    core: EngineCore = field(init=False)
    crossings: deque[tuple[float, int, bool, int]] = field(default_factory=lambda: deque(maxlen=200))
    """(core clock, key, now above, batch)."""
    was_idle: bool = True
    _above: dict[int, bool] = field(default_factory=dict)

    def on_step(self, core: EngineCore, step: Step) -> None:
        for key in self.watch:
            above = len(core.running) >= key
            if above != self._above.get(key, False):
                self._above[key] = above
                self.crossings.append((core.clock_seconds, key, above, len(core.running)))
        self.view.on_step(core, step)


@dataclass
class Generation:
    """One client's request. ``tokens`` gets counts when it streams, and `END`."""

    request: Request
    core: EngineCore
    tokens: asyncio.Queue[int]


class EmulatedServer(ABC):
    """One server process. `run` serves until SIGTERM has been dealt with; `serving` is for tests."""

    listens_while_loading = False
    loading_share = 0.8
    """Of the start-up time; the rest is warm-up."""
    metric_paths: tuple[str, ...] = ("/metrics",)
    """Where injected faults strike."""
    running_gauge: str

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state = State.LOADING
        self.faults: set[str] = set(options.fault)
        self.ranks: list[Rank] = []
        self.started_at = time.time()
        self._wake = asyncio.Event()
        self._streams = 0
        self._stop = asyncio.Event()
        self._sites: list[web.TCPSite] = []

    # -- what an engine fills in --------------------------------------------------------------------------------------

    @abstractmethod
    def routes(self) -> list[web.RouteDef]: ...

    @abstractmethod
    def ports(self) -> tuple[int, ...]:
        """The ports of the command line; all of them serve the same routes."""

    def unreachable(self) -> str | None:
        """Why nobody outside of its pod can connect; None = everybody can."""
        return None

    @abstractmethod
    async def drain(self) -> None:
        """What SIGTERM does, until the process may end."""

    async def gate(self, request: web.Request) -> web.StreamResponse | None:
        """Authorisation and life state; None = go on."""
        return None

    def after_load(self) -> None:  # noqa: B027 - most have none
        """Checks that the engine makes only now. Raises `LaunchError`."""

    def faulted(self) -> None:  # noqa: B027 - most faults are common
        """The set of faults has changed."""

    # -- schedulers ---------------------------------------------------------------------------------------------------

    def add_rank(self, truth: Truth, limits: Limits, drafts: Drafts, view: View) -> None:
        rank = Rank(view, self.options.watch)
        rank.core = EngineCore(
            truth,
            limits,
            drafts,
            time_scale=self.options.time_scale,
            seed=self.options.seed * 1000 + len(self.ranks),
            on_step=rank.on_step,
            on_first=view.on_first,
            on_end=view.on_end,
        )
        self.ranks.append(rank)

    @property
    def cores(self) -> list[EngineCore]:
        return [rank.core for rank in self.ranks]

    @property
    def idle(self) -> bool:
        return all(core.idle for core in self.cores)

    async def _drive(self) -> None:
        """Advance all cores in real time; many steps at once unless somebody streams."""
        while True:
            now = time.monotonic()
            for core in self.cores:
                core.advance(now)
            self._tell_idle()
            nexts = [core.next_step_at for core in self.cores if core.next_step_at is not None]
            self._wake.clear()
            if nexts:
                pause = STREAM_SECONDS if self._streams else COALESCE_SECONDS
                await asyncio.sleep(max(pause, min(nexts) - now))
            else:
                await self._wake.wait()

    def _tell_idle(self) -> None:
        for rank in self.ranks:
            if rank.core.idle and not rank.was_idle:
                rank.view.on_idle(rank.core)
            rank.was_idle = rank.core.idle

    # -- generation ---------------------------------------------------------------------------------------------------

    def submit(self, input_tokens: int, output_tokens: int, *, streams: bool) -> Generation:
        """A request on the rank with the fewest. Raises `TooLongError`."""
        core = min(self.cores, key=lambda item: len(item.running) + len(item.waiting))
        queue: asyncio.Queue[int] = asyncio.Queue()
        request = core.submit(
            time.monotonic(),
            input_tokens,
            output_tokens,
            on_tokens=(lambda _, count: queue.put_nowait(count)) if streams else None,
            on_end=lambda _: queue.put_nowait(END),
        )
        self._wake.set()
        return Generation(request, core, queue)

    async def finish(self, generation: Generation) -> Request:
        """Wait for the end; a client that goes away aborts its request."""
        try:
            while await generation.tokens.get() != END:
                pass
        except asyncio.CancelledError:
            self.abort(generation)
            raise
        return generation.request

    async def stream(
        self,
        http: web.Request,
        generation: Generation,
        event: Callable[[int, bool], bytes | None],
        *,
        done: bytes = b"data: [DONE]\n\n",
    ) -> web.StreamResponse:
        """Server-sent events: ``event(tokens, last)`` for every step that gave tokens, and once at the end."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self._streams += 1
        try:
            await response.prepare(http)
            while (count := await generation.tokens.get()) != END:
                await response.write(event(count, False) or b"")
            await response.write(event(0, True) or b"")
            await response.write(done)
        except (asyncio.CancelledError, ConnectionError):
            self.abort(generation)
            raise
        finally:
            self._streams -= 1
        return response

    def abort(self, generation: Generation) -> None:
        generation.core.abort(generation.request, time.monotonic())
        self._wake.set()

    def abort_all(self) -> int:
        count = sum(core.abort_all(time.monotonic()) for core in self.cores)
        self._wake.set()
        return count

    def pause(self) -> None:
        for core in self.cores:
            core.pause()

    def resume(self) -> None:
        for core in self.cores:
            core.resume(time.monotonic())
        self._wake.set()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Loading, warm-up, serving, SIGTERM."""
        loop = asyncio.get_running_loop()
        if "ignore-sigterm" in self.faults:
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loading = self.options.startup_seconds * self.loading_share
        async with self._runner() as runner:
            if self.listens_while_loading:
                await self._listen(runner)
            await asyncio.sleep(loading)
            self.after_load()
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
            self.state = State.WARMING
            if not self.listens_while_loading:
                await self._listen(runner)
            await asyncio.sleep(self.options.startup_seconds - loading)
            self.ready()
            await self._stop.wait()
            self.state = State.DRAINING
            print("SIGTERM received", flush=True)
            await self.drain()

    def _terminate(self) -> None:
        if "ignore-sigterm" not in self.faults:
            self._stop.set()

    def ready(self) -> None:
        self.state = State.READY
        print(f"{self.options.engine} {self.options.version_text} is ready", flush=True)

    async def stop_listening(self) -> None:
        """New connections are refused; those that are open go on."""
        for site in self._sites:
            await site.stop()
        self._sites = []

    @contextlib.asynccontextmanager
    async def serving(self, *, ready: bool = True) -> AsyncIterator[str]:
        """Serve in this process without a start-up, on a free port unless one is given; yields the base URL."""
        async with self._runner() as runner:
            self.after_load()
            self.state = State.READY if ready else State.WARMING
            port = await self._listen(runner, self.options.port or 0)
            yield f"http://{self.options.address}:{port}"

    @contextlib.asynccontextmanager
    async def _runner(self) -> AsyncIterator[web.AppRunner]:
        runner = web.AppRunner(
            self.application(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True, handle_signals=False
        )
        await runner.setup()
        driver = asyncio.create_task(self._drive())
        try:
            yield runner
        finally:
            driver.cancel()
            await runner.cleanup()
            await asyncio.gather(driver, return_exceptions=True)

    async def _listen(self, runner: web.AppRunner, *ports: int) -> int:
        why = self.unreachable()
        if why is not None and not ports:
            print(why, flush=True)
            return 0
        own = (self.options.port,) if self.options.port else self.ports()
        self._sites = [web.TCPSite(runner, self.options.address, port) for port in ports or own]
        for site in self._sites:
            await site.start()
        return int(runner.addresses[0][1])

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._middleware], client_max_size=64 * 2**20)
        app.router.add_routes(self.routes())
        app.router.add_post("/emulator/faults", self._set_faults)
        app.router.add_get("/emulator/truth", self._truth)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/emulator/"):
            return await handler(request)
        refused = await self.gate(request) or faults.refusal(request, self.faults)
        if refused is not None:
            return refused
        strike = self.faults if request.path in self.metric_paths else frozenset()
        early = await faults.instead(request, strike)
        if early is not None:
            return early
        try:
            response = await handler(request)
        except TooLongError as error:
            body = {"message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": body}, status=400)
        return faults.afterwards(response, strike, self.running_gauge) if strike else response

    async def _set_faults(self, request: web.Request) -> web.Response:
        """{"fault": NAME or null} or {"faults": [NAME, ...]}."""
        body = await request.json()
        wanted = body["faults"] if "faults" in body else [body["fault"]] if body.get("fault") else []
        known = faults_of(self.options.engine)
        if any(name not in known for name in wanted):
            return web.json_response({"error": f"faults are {', '.join(known)}"}, status=400)
        self.set_faults(*wanted)
        return web.json_response({"faults": sorted(self.faults)})

    def set_faults(self, *names: str) -> None:
        before, self.faults = self.faults, set(names)
        for rank in self.ranks:
            rank.view.frozen = "stale-gauges" in self.faults
        if "hang-engine" in self.faults:
            self.pause()
        elif "hang-engine" in before:
            self.resume()
        self.faulted()

    async def _truth(self, _: web.Request) -> web.Response:
        return web.json_response(witness.account(self))
