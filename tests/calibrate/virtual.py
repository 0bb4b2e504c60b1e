"""A server on virtual time, behind httpx's transport seam: continuous batching by a given truth, counters as an engine has
them, and a loop whose clock jumps to the next timer. Nothing sleeps; minutes of load take a fraction of a second.

Independent of the emulators on purpose: what is found is compared with the truth that is put in here.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx

from crossover.decide.step_model import PRESETS, StepModel
from crossover.decide.variant import Variant

PREFILL_SECONDS_PER_TOKEN = 5e-6
DEAD = object()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when everybody waits."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def time(self):
        return self._now

    def _run_once(self):
        while self._scheduled and self._scheduled[0]._cancelled:
            handle = self._scheduled.pop(0)
            handle._scheduled = False
            self._timer_cancelled_count = max(0, self._timer_cancelled_count - 1)
            heapq.heapify(self._scheduled)
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


def run(coroutine):
    """Run on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


@dataclass
class Truth:
    """What is hidden: step times and acceptance."""

    variant: Variant
    model: StepModel = PRESETS["8b-h100"]
    acceptance: float = 0.67
    verified: int | None = None
    steps: int | None = None
    factor: Callable[[Variant, float], float] = lambda variant, running: 1.0
    noise: float = 0.0

    def step_seconds(self, running: float, kv_tokens: float) -> float:
        draft = self.steps if self.steps is not None and self.variant.draft_tokens else self.variant.draft_tokens
        seconds = self.model.step_seconds(
            running,
            draft,
            kv_tokens,
            off=self.variant.off,
            verified_tokens=self.verified if self.variant.draft_tokens else None,
        )
        return seconds * self.factor(self.variant, running)


@dataclass
class Job:
    given: int
    wanted: int
    foreign: bool = False
    written: int = 0
    verify: int = 0
    events: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def next(self):
        event = await self.events.get()
        if event is DEAD:
            raise httpx.ReadError("connection reset")
        return event


@dataclass
class VirtualServer(httpx.AsyncBaseTransport):
    """One server. `engine`: "vllm" or "sglang"."""

    truth: Truth
    engine: str = "vllm"
    limit: int = 10_000
    metrics: bool = True
    token: str | None = None
    models: tuple[str, ...] = ("m",)
    busy_until: float = 0.0
    dies_at: float | None = None
    foreign: int = 0
    hidden_share: float = 0.0
    lumpy: bool = False
    """Tokens are counted when their request ends."""
    seed: int = 1

    def __post_init__(self):
        self.draw = random.Random(self.seed)
        self.running, self.waiting = [], []
        self.tokens = self.drafts = self.drafted = self.accepted = self.steps = self.request_steps = 0
        self.by_position = [0] * max(1, self.truth.variant.draft_tokens)
        self.wake = asyncio.Event()
        self.task = None
        self.most_running = 0
        self.requests = 0

    # -- the engine ----------------------------------------------------------------------------------------------------

    def submit(self, given, wanted, foreign=False):
        job = Job(given, wanted, foreign)
        self.waiting.append(job)
        self.wake.set()
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.drive())
            for _ in range(self.foreign):
                self.submit(64, self.draw.randrange(50, 150), True)
        return job

    async def drive(self):
        while True:
            if not self.running and not self.waiting:
                self.wake.clear()
                await self.wake.wait()
            prefill = 0
            new = []
            while self.waiting and len(self.running) < self.limit:
                job = self.waiting.pop(0)
                self.running.append(job)
                new.append(job)
                prefill += job.given
            if prefill:
                await asyncio.sleep(prefill * PREFILL_SECONDS_PER_TOKEN)
                for job in new:
                    self.emit(job, 1)
            decoding = [job for job in self.running if job.written < job.wanted]
            if decoding:
                kv = sum(job.given + job.written for job in decoding)
                seconds = self.truth.step_seconds(len(decoding), kv)
                await asyncio.sleep(seconds * (1 + self.truth.noise * self.draw.gauss(0, 1)))
                self.step(decoding)
            ended = [job for job in self.running if job.written >= job.wanted]
            self.running = [job for job in self.running if job.written < job.wanted]
            for job in ended:
                job.events.put_nowait(None)
                if job.foreign:
                    self.submit(64, self.draw.randrange(50, 150), True)
            await asyncio.sleep(0)

    def step(self, decoding):
        draft = self.truth.variant.draft_tokens
        self.steps += 1
        for job in decoding:
            accepted = 0
            while accepted < draft and self.draw.random() < self.truth.acceptance:
                self.by_position[accepted] += 1
                accepted += 1
            self.request_steps += 1
            self.drafts += draft > 0
            self.drafted += draft
            self.accepted += accepted
            job.verify += 1
            self.emit(job, min(accepted + 1, job.wanted - job.written))

    def emit(self, job, count):
        job.written += count
        if not self.lumpy:
            self.tokens += count
        elif job.written >= job.wanted:
            self.tokens += job.written
        self.most_running = max(self.most_running, len(self.running))
        job.events.put_nowait(count)

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        now = asyncio.get_running_loop().time()
        path = request.url.path
        if self.dies_at is not None and now >= self.dies_at:
            if self.task is not None and not self.task.done():
                self.task.cancel()
                for job in [*self.running, *self.waiting]:
                    job.events.put_nowait(DEAD)
            raise httpx.ConnectError("refused", request=request)
        open_path = path in ("/metrics", "/health")
        if self.token and not open_path and request.headers.get("authorization") != f"Bearer {self.token}":
            return httpx.Response(401, text="secret detail of the server")
        if request.method == "GET":
            return self.get(path)
        if now < self.busy_until:
            return httpx.Response(429, text="secret detail of the server")
        return await self.generate(path, json.loads(request.content))

    def get(self, path):
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": name} for name in self.models]})
        if path == "/version" and self.engine == "vllm":
            return httpx.Response(200, json={"version": "0.33.0"})
        if path == "/server_info" and self.engine == "sglang":
            speculates = not self.truth.variant.off
            return httpx.Response(
                200,
                json={
                    "launch_command": "x",
                    "attention_backend": "x",
                    "version": "0.5.23",
                    "speculative_algorithm": "EAGLE" if speculates else None,
                    "speculative_num_draft_tokens": self.truth.variant.draft_tokens + 1 if speculates else None,
                    "max_running_requests": self.limit,
                    "internal_states": [{}],
                },
            )
        if path == "/metrics" and self.metrics and self.engine == "vllm":
            return httpx.Response(200, text=self.vllm())
        if path == "/metrics" and self.metrics:
            return httpx.Response(200, text=self.sglang())
        return httpx.Response(404, text="secret detail of the server")

    def vllm(self):
        label = '{engine="0",model_name="m"}'
        share = 1 - self.hidden_share
        rows = {
            "num_requests_running": len(self.running),
            "num_requests_waiting": len(self.waiting),
            "generation_tokens_total": self.tokens * share,
            "iteration_tokens_total_count": self.steps,
            "iteration_tokens_total_created": 1,
            "inter_token_latency_seconds_count": self.request_steps,
        }
        if not self.truth.variant.off:
            rows |= {
                "spec_decode_num_drafts_total": self.drafts,
                "spec_decode_num_draft_tokens_total": self.drafted,
                "spec_decode_num_accepted_tokens_total": self.accepted,
            }
        lines = [f"vllm:{name}{label} {float(value)}" for name, value in rows.items()]
        if not self.truth.variant.off:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [
                f'{name}{{engine="0",model_name="m",position="{place}"}} {float(value)}'
                for place, value in enumerate(self.by_position)
            ]
        return "\n".join(["# TYPE vllm:x gauge", *lines, ""])

    def sglang(self):
        label = '{model_name="m",tp_rank="0"}'
        rows = {"num_running_reqs": len(self.running), "num_queue_reqs": len(self.waiting), "token_usage": 0.1}
        rows |= {"gen_throughput": 1.0, "spec_num_draft_tokens": 0, "spec_accept_length": 0}
        if not self.truth.variant.off:
            rows["spec_num_draft_tokens"] = self.truth.variant.draft_tokens + 1
            rows["spec_accept_length"] = 1 + self.accepted / self.drafts if self.drafts else 0
        lines = [f"sglang:{name}{label} {float(value)}" for name, value in rows.items()]
        lines.append(f'sglang:realtime_tokens_total{{mode="decode",model_name="m",tp_rank="0"}} {float(self.tokens)}')
        return "\n".join(["# TYPE sglang:x gauge", *lines, ""])

    async def generate(self, path, body):
        if path not in ("/v1/completions", "/v1/chat/completions") and not (
            path == "/generate" and self.engine == "sglang"
        ):
            return httpx.Response(404, text="secret detail of the server")
        native = path == "/generate"
        if not native and body["model"] not in self.models:
            return httpx.Response(404, text="secret detail of the server")
        self.requests += 1
        text = body.get("text") or body.get("prompt") or body["messages"][0]["content"]
        wanted = body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"]
        job = self.submit(len(text.split()), wanted)
        if body["stream"]:
            return httpx.Response(200, stream=Stream(self, job, native))
        try:
            while await job.next() is not None:
                pass
        except asyncio.CancelledError:
            self.abort(job)
            raise
        return httpx.Response(200, content=json.dumps(document(job, native)).encode())

    def abort(self, job):
        self.running = [item for item in self.running if item is not job]
        self.waiting = [item for item in self.waiting if item is not job]

    async def aclose(self):
        if self.task is not None:
            self.task.cancel()


class Stream(httpx.AsyncByteStream):
    def __init__(self, server, job, native):
        self.server, self.job, self.native = server, job, native

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while await self.job.next() is not None:
            if self.native:
                yield f"data: {json.dumps(document(self.job, True))}\n\n".encode()
            else:
                yield b'data: {"choices": [{"text": "x"}]}\n\n'
        yield f"data: {json.dumps(document(self.job, self.native))}\n\ndata: [DONE]\n\n".encode()

    async def aclose(self):
        if self.job.written < self.job.wanted:
            self.server.abort(self.job)


def document(job, native):
    if native:
        return {
            "text": "x",
            "meta_info": {
                "prompt_tokens": job.given,
                "completion_tokens": job.written,
                "spec_verify_ct": job.verify,
            },
        }
    return {"choices": [], "usage": {"prompt_tokens": job.given, "completion_tokens": job.written}}


class LoopClock:
    """The virtual loop's clock."""

    def now(self):
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)
