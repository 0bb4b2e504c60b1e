"""What TensorRT-LLM's executor records of each iteration, and what its collector makes of it when a request ends."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crossover.emulate.core import EngineCore
from crossover.emulate.drafts import Gated
from crossover.emulate.page import Histogram
from crossover.emulate.requests import Request, Step
from crossover.emulate.trtllm_args import Launch

QUEUE_FIELDS_SINCE = (1, 3)
RECORDS = 1000
GPU_BYTES = 128_849_018_880
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
PREFILL = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560)
PREFILL_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
OLD_HISTOGRAMS = {
    "e2e_request_latency_seconds": REQUEST,
    "time_to_first_token_seconds": FIRST_TOKEN,
    "time_per_output_token_seconds": PER_TOKEN,
    "request_queue_time_seconds": REQUEST,
}
"""1.0 has these and request_success_total, nothing else."""
HISTOGRAMS = {
    **OLD_HISTOGRAMS,
    "request_prefill_time_seconds": PREFILL,
    "request_decode_time_seconds": REQUEST,
    "request_inference_time_seconds": REQUEST,
    "prefill_batch_tokens": PREFILL_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Iteration:
    """One record."""

    number: int
    ended_at_unix: float
    latency_seconds: float
    started: int
    active: int
    queued: int
    completed: int
    context: int
    generation: int
    paused: int
    context_tokens: int
    kv_tokens: int
    used_blocks: int
    draft_tokens: int
    accepted_tokens: int
    drafting: int
    """Requests with draft tokens."""

    @property
    def scheduled(self) -> int:
        return self.context + self.generation

    @property
    def acceptance_length(self) -> float:
        """0 when nothing was drafted."""
        return 1 + self.accepted_tokens / self.drafting if self.drafting else 0.0


@dataclass
class Collector:
    """The process that serves Prometheus: woken when a request ends, and only then."""

    launch: Launch
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """There from the first sample on."""
    shown: Iteration | None = None
    finished: int = 0
    aborted: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    missed_blocks: int = 0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    def observe(self, name: str, value: float) -> None:
        self.histograms.setdefault(name, Histogram(HISTOGRAMS[name])).observe(value)

    def on_end(self, request: Request) -> None:
        first, admitted, ended = request.first_token_at_seconds, request.admitted_at_seconds, request.ended_at_seconds
        assert first is not None
        assert admitted is not None
        assert ended is not None
        self.finished += 1
        self.input_tokens += request.input_tokens
        self.output_tokens += request.emitted_tokens
        self.missed_blocks += math.ceil(request.input_tokens / self.launch.block_tokens)
        self.queue_seconds += admitted - request.arrived_at_seconds
        self.compute_seconds += ended - admitted
        samples = {
            "e2e_request_latency_seconds": ended - request.arrived_at_seconds,
            "time_to_first_token_seconds": first - request.arrived_at_seconds,
            "request_queue_time_seconds": admitted - request.arrived_at_seconds,
            "request_prefill_time_seconds": first - admitted,
            "request_decode_time_seconds": ended - first,
            "request_inference_time_seconds": ended - admitted,
        }
        if request.emitted_tokens > 1:
            samples["time_per_output_token_seconds"] = (ended - first) / (request.emitted_tokens - 1)
        for name, value in samples.items():
            self.observe(name, value)

    def wake(self, newest: Iteration, views: Iterable[RankView]) -> None:
        """All that the iterations since the last time have given; of the gauges the newest, whichever rank it is of."""
        self.shown = newest
        longest = self.launch.max_draft
        self.drafted_by_position = [sum(view.drafted[place] for view in views) for place in range(longest)]
        self.accepted_by_position = [sum(view.accepted_at(place) for view in views) for place in range(longest)]


@dataclass(eq=False)
class RankView:
    """The executor of one rank."""

    launch: Launch
    collector: Collector
    rank: int
    peers: list[RankView]
    whole_queue: bool = False
    """The queue gauge counts all that waits; else only what has come since the last iteration began."""
    frozen: bool = False
    """Fault: the collector sleeps."""
    batch: int = 0
    """scheduled_batch_size: every iteration, 0 when idle."""
    newest: Iteration | None = None
    records: deque[Iteration] = field(init=False)
    drafted: list[int] = field(init=False)
    core: EngineCore | None = None
    _latency: float = 0.0
    _accepted: int = 0
    _began_at: float = 0.0
    _started: int = 0

    def __post_init__(self) -> None:
        most = int(self.launch.document.get("iter_stats_max_iterations") or RECORDS)
        self.records = deque(maxlen=most if most > 0 else None)
        self.drafted = [0] * self.launch.max_draft

    def accepted_at(self, place: int) -> int:
        rows = self.core.counters.accepted_by_position if self.core is not None else []
        return rows[place] if place < len(rows) else 0

    def on_step(self, core: EngineCore, step: Step) -> None:
        self.core = core
        for place in range(step.draft_tokens):
            self.drafted[place] += step.decoding
        iteration = self._iteration(core, step)
        self.batch, self.newest = step.scheduled, iteration
        self.records.append(iteration)
        if step.prefill_tokens:
            self.collector.observe("prefill_batch_tokens", step.prefill_tokens)
        self._latency, self._began_at = step.seconds, step.ended_at_seconds
        if (step.finished or self.launch.publishes) and not self.frozen:
            self.collector.wake(iteration, self.peers)

    def _iteration(self, core: EngineCore, step: Step) -> Iteration:
        waiting = core.waiting
        paused = sum(request.retractions > 0 for request in waiting)
        new = len(waiting) - paused
        queued = new if self.whole_queue else sum(r.arrived_at_seconds > self._began_at for r in waiting)
        counters = core.counters
        accepted, self._accepted = counters.accepted_tokens - self._accepted, counters.accepted_tokens
        active = len(core.running) + paused
        started, self._started = max(0, active + step.finished - self._started), active
        return Iteration(
            number=counters.engine_steps,
            ended_at_unix=time.time(),
            # Two loops, since the overlap scheduler measures from one start to the end after the next.
            latency_seconds=self._latency + step.seconds,
            started=started,
            active=min(active, core.limits.max_running_requests),
            queued=queued,
            completed=step.finished,
            context=step.prefilling,
            generation=step.decoding,
            paused=paused,
            context_tokens=step.prefill_tokens,
            kv_tokens=core.kv_tokens,
            used_blocks=math.ceil(core.kv_tokens / self.launch.block_tokens),
            draft_tokens=step.draft_tokens * step.decoding,
            accepted_tokens=accepted,
            drafting=step.decoding if step.draft_tokens else 0,
        )

    def on_first(self, request: Request) -> None:
        """Told at the end."""

    def on_end(self, request: Request) -> None:
        self.collector.on_end(request)
        if self.core is not None and isinstance(self.core.drafts, Gated):
            self.core.drafts.ended(request)

    def on_idle(self, core: EngineCore) -> None:
        """The executor blocks and records nothing: what is on show stays, the batch gauge apart."""
        self.batch = 0

    def drain(self) -> list[dict[str, Any]]:
        """The records since the last time, which nobody will see again."""
        found = [self._record(item) for item in self.records]
        self.records.clear()
        return found

    def _record(self, item: Iteration) -> dict[str, Any]:
        launch = self.launch
        assert self.core is not None
        blocks = self.core.limits.kv_capacity_tokens // launch.block_tokens
        record: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(item.ended_at_unix).strftime("%m-%d-%Y %H:%M:%S.%f"),
            "iter": item.number,
            "iterLatencyMS": item.latency_seconds * 1000,
            "newActiveRequestsQueueLatencyMS": 0.0,
            "numNewActiveRequests": item.started,
            "numActiveRequests": item.active,
            "numQueuedRequests": item.queued,
            "numCompletedRequests": item.completed,
            "maxNumActiveRequests": self.core.limits.max_running_requests,
            **dict.fromkeys(("maxBatchSizeStatic", "maxBatchSizeTunerRecommended", "maxBatchSizeRuntime"), 0),
            **dict.fromkeys(("maxNumTokensStatic", "maxNumTokensTunerRecommended", "maxNumTokensRuntime"), 0),
            "gpuMemUsage": GPU_BYTES,
            "cpuMemUsage": 0,
            "pinnedMemUsage": 0,
            "kvCacheStats": {
                "maxNumBlocks": blocks,
                "freeNumBlocks": blocks - item.used_blocks,
                "usedNumBlocks": item.used_blocks,
                "tokensPerBlock": launch.block_tokens,
                "allocTotalBlocks": self.collector.missed_blocks,
                "allocNewBlocks": self.collector.missed_blocks,
                "reusedBlocks": 0,
                "missedBlocks": self.collector.missed_blocks,
                "cacheHitRate": 0.0,
            },
            "staticBatchingStats": None,
            "inflightBatchingStats": self._batching(item),
            "specDecodingStats": self._speculation(item),
        }
        if launch.ranks > 1:
            record |= {"rank": self.rank, "attentionDpRank": self.rank}
            if self.rank:
                del record["numQueuedRequests"]
        return record

    def _batching(self, item: Iteration) -> dict[str, Any]:
        stats = {
            "numScheduledRequests": item.scheduled,
            "numContextRequests": item.context,
            "numGenRequests": item.generation,
            "numPausedRequests": item.paused,
            "numCtxTokens": item.context_tokens,
            "microBatchId": 0,
            "avgNumDecodedTokensPerIter": 0.0,
        }
        if self.launch.version < QUEUE_FIELDS_SINCE:
            return stats
        more = ("numQueuedCtxTokens", "numQueuedGenRequests", "numQueuedGenKvTokens", "numPausedKvTokens")
        queued = {"numQueuedContextRequests": item.queued, **dict.fromkeys(more, 0)}
        return {**stats, "numCtxKvTokens": 0, "numGenKvTokens": item.kv_tokens, **queued}

    def _speculation(self, item: Iteration) -> dict[str, Any] | None:
        """None without a configuration."""
        if self.launch.config is None:
            return None
        return {
            "numDraftTokens": item.draft_tokens,
            "numAcceptedTokens": item.accepted_tokens,
            "numRequestsWithDraftTokens": item.drafting,
            "acceptanceLength": item.acceptance_length,
            "iterLatencyMS": 0.0,
            "draftOverhead": 0.0,
        }
