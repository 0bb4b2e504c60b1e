"""What a vLLM server's `/metrics` shows: one label `engine` per scheduler, counters that front-end processes add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from prometheus_client import REGISTRY

from crossover.emulate.core import EngineCore
from crossover.emulate.page import Histogram, Page
from crossover.emulate.requests import Counters, Request, Step
from crossover.emulate.vllm_args import Launch

V = tuple[int, ...]
ALWAYS: V = (0,)
NEVER: V = (999,)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (*(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
PARAMS_N = (1, 2, 5, 10, 20)
HISTOGRAMS: dict[str, tuple[V, V, Sequence[float] | None]] = {
    "request_prompt_tokens": (ALWAYS, NEVER, None),
    "request_generation_tokens": (ALWAYS, NEVER, None),
    "iteration_tokens_total": (ALWAYS, NEVER, ITERATION),
    "request_max_num_generation_tokens": (ALWAYS, NEVER, None),
    "request_params_n": (ALWAYS, NEVER, PARAMS_N),
    "request_params_max_tokens": (ALWAYS, NEVER, None),
    "time_to_first_token_seconds": (ALWAYS, NEVER, FIRST_TOKEN),
    "time_per_output_token_seconds": (ALWAYS, (0, 13), PER_TOKEN),
    "inter_token_latency_seconds": ((0, 10, 2), NEVER, PER_TOKEN),
    "request_time_per_output_token_seconds": ((0, 11, 2), NEVER, PER_TOKEN),
    "e2e_request_latency_seconds": (ALWAYS, NEVER, REQUEST),
    "request_queue_time_seconds": (ALWAYS, NEVER, REQUEST),
    "request_inference_time_seconds": (ALWAYS, NEVER, REQUEST),
    "request_prefill_time_seconds": (ALWAYS, NEVER, REQUEST),
    "request_decode_time_seconds": (ALWAYS, NEVER, REQUEST),
    "request_num_preemptions": ((0, 31), NEVER, PREEMPTIONS),
    "request_prefill_kv_computed_tokens": ((0, 20), NEVER, None),
}
"""Name -> (first version, first version without it, bounds; None = 1-2-5 up to the model's length)."""
FINISHED: dict[V, tuple[str, ...]] = {
    ALWAYS: ("stop", "length", "abort"),
    (0, 20): ("stop", "length", "abort", "error", "repetition"),
}
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHED_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
LONG_CACHE_LABELS: dict[str, str] = {
    "_block_size_resolved": "True",
    **dict.fromkeys(
        (
            *("cache_hit_alignment_tokens", "effective_attention_block_size", "hash_block_size", "kv_cache_layout"),
            *("kv_cache_memory_bytes", "kv_offloading_size", "mamba_block_size", "mamba_page_size_padded"),
            *("num_cpu_blocks", "num_gpu_blocks_override", "prefix_match_unit", "simple_cpu_offload_num_blocks"),
            *("skip_page_size_padded", "sliding_window"),
        ),
        "None",
    ),
    **dict.fromkeys(
        (
            *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
            *("use_kda_recoverssm", "use_replayssm"),
        ),
        "False",
    ),
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "auto",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "swa_bounded_replay": "True",
    "user_specified_block_size": "True",
}


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to ``largest``."""
    found, scale = list[float](), 1
    while scale <= largest:
        found += [float(scale * step) for step in (1, 2, 5) if scale * step <= largest]
        scale *= 10
    return tuple(found)


@dataclass
class EngineView:
    """What the front ends have counted of one scheduler."""

    launch: Launch
    frozen: bool = False
    """Fault: gauges keep what they show."""
    gauges: dict[str, float] = field(
        default_factory=lambda: {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    )
    histograms: dict[str, Histogram] = field(default_factory=dict)
    prompt_tokens: int = 0
    finished: int = 0
    _prompts: int = 0
    """Prompt tokens that this step has finished."""
    _zero: Counters = field(default_factory=Counters)
    """Where the core's counters stood when the logger was rebuilt."""

    def __post_init__(self) -> None:
        lengths = one_two_five(self.launch.args.max_model_len)
        for name, (since, until, bounds) in HISTOGRAMS.items():
            if since <= self.launch.version < until:
                self.histograms[name] = Histogram(bounds if bounds is not None else lengths)

    def reset(self, core: EngineCore) -> None:
        """The logger is rebuilt in a living process: every counter begins at 0."""
        self.prompt_tokens = self.finished = 0
        self._zero = deepcopy(core.counters)
        self.__post_init__()

    def since_reset(self, core: EngineCore, name: str) -> float:
        return float(getattr(core.counters, name) - getattr(self._zero, name))

    def accepted_at(self, core: EngineCore, position: int) -> float:
        def at(counters: Counters) -> int:
            rows = counters.accepted_by_position
            return rows[position] if position < len(rows) else 0

        return float(at(core.counters) - at(self._zero))

    def _observe(self, name: str, value: float, times: int = 1) -> None:
        if name in self.histograms and times:
            self.histograms[name].observe(value, times)

    def on_step(self, core: EngineCore, step: Step) -> None:
        """Gauges after each step, and after nothing else: what is aborted between steps stays on show (issue 22545)."""
        if not self.frozen:
            self.gauges = {
                "num_requests_running": float(len(core.running)),
                "num_requests_waiting": float(len(core.waiting)),
                "kv_cache_usage_perc": core.kv_tokens / core.limits.kv_capacity_tokens,
            }
        if step.emitted_tokens:
            # Each front end adds a sample for the requests that are its own.
            servers = self.launch.api_servers
            self._observe("iteration_tokens_total", (step.emitted_tokens + self._prompts) / servers, servers)
        self._prompts = 0
        for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
            # One sample for each decoding request, not for each token.
            self._observe(name, step.seconds, step.decoding)

    def on_first(self, request: Request) -> None:
        assert request.first_token_at_seconds is not None
        self.prompt_tokens += request.input_tokens
        self._prompts += request.input_tokens
        self._observe("time_to_first_token_seconds", request.first_token_at_seconds - request.arrived_at_seconds)

    def on_end(self, request: Request) -> None:
        """Requests that ran to their end; aborted ones are counted nowhere (issues 31503, 55634)."""
        first, admitted, ended = request.first_token_at_seconds, request.admitted_at_seconds, request.ended_at_seconds
        assert first is not None
        assert admitted is not None
        assert ended is not None
        self.finished += 1
        tokens = request.emitted_tokens
        samples = {
            "request_prompt_tokens": request.input_tokens,
            "request_generation_tokens": tokens,
            "request_max_num_generation_tokens": tokens,
            "request_params_n": 1,
            "request_params_max_tokens": request.output_tokens,
            "e2e_request_latency_seconds": ended - request.arrived_at_seconds,
            "request_queue_time_seconds": admitted - request.arrived_at_seconds,
            "request_prefill_time_seconds": first - admitted,
            "request_decode_time_seconds": ended - first,
            "request_inference_time_seconds": ended - admitted,
            "request_num_preemptions": request.retractions,
            "request_prefill_kv_computed_tokens": request.input_tokens,
        }
        if tokens > 1:
            samples["request_time_per_output_token_seconds"] = (ended - first) / (tokens - 1)
        for name, value in samples.items():
            self._observe(name, value)

    def on_idle(self, core: EngineCore) -> None:
        """Nothing: the next step tells."""


@dataclass
class FrontEnd:
    """What the front ends know beside their schedulers."""

    sleeping: str = "awake"
    rejected: int = 0
    answered: dict[tuple[str, str], int] = field(default_factory=dict)
    """(path, status class) -> answers."""


class Wire:
    """Builds the pages of one server."""

    def __init__(
        self,
        launch: Launch,
        front: FrontEnd,
        model: str,
        started_at: float,
        cores: Sequence[EngineCore],
        views: Sequence[EngineView],
        environ: Mapping[str, str],
    ) -> None:
        self.launch, self.front, self.model, self.started_at = launch, front, model, started_at
        self.cores, self.views = cores, views
        self.rust = environ.get("VLLM_USE_RUST_FRONTEND") == "1"
        self.several = launch.api_servers > 1 or bool(environ.get("PROMETHEUS_MULTIPROC_DIR"))

    def metrics(self) -> bytes:
        """Merged from several processes it has neither creation times nor the process itself."""
        page = Page(None if self.several else self.started_at)
        if not self.several:
            page.include(REGISTRY.collect())
        if not self.launch.args.disable_log_stats:
            self._stats(page)
        for (path, status), count in self.front.answered.items():
            page.counter("http_requests", {"handler": path, "method": "POST", "status": status}, count)
        return page.render()

    def _stats(self, page: Page) -> None:
        version = self.launch.version
        for rank, core, view in zip(self.launch.ranks, self.cores, self.views, strict=True):
            base = {"model_name": self.model, "engine": str(rank)}
            if core.drafts.speculates:
                self._speculation(page, base, core, view)
            self._gauges(page, base, view)
            self._counters(page, base, core, view)
            for name, histogram in view.histograms.items():
                page.histogram("vllm:" + name, base, histogram)
            if not self.rust:
                page.gauge("vllm:cache_config_info", {"engine": str(rank), **self._cache(core)}, 1)
        if version >= (0, 33) and not self.rust:
            for reason in REJECTIONS:
                count = self.front.rejected if reason == REJECTIONS[0] else 0
                page.counter("vllm:admission_rejections", {"model_name": self.model, "reason": reason}, count)

    def _speculation(self, page: Page, base: dict[str, str], core: EngineCore, view: EngineView) -> None:
        """There from the start, and only with a speculative configuration; still at draft length 0."""
        names = {"drafts": "drafts", "draft_tokens": "draft_tokens", "accepted_tokens": "accepted_tokens"}
        for name, source in names.items():
            page.counter("vllm:spec_decode_num_" + name, base, view.since_reset(core, source))
        for position in range(self.launch.max_draft):
            labels = {**base, "position": str(position)}
            page.counter("vllm:spec_decode_num_accepted_tokens_per_pos", labels, view.accepted_at(core, position))

    def _gauges(self, page: Page, base: dict[str, str], view: EngineView) -> None:
        version, gauges = self.launch.version, view.gauges
        page.gauge("vllm:num_requests_running", base, gauges["num_requests_running"])
        page.gauge("vllm:num_requests_waiting", base, gauges["num_requests_waiting"])
        if version >= (0, 20):
            for reason in ("capacity", "deferred"):
                waiting = gauges["num_requests_waiting"] if reason == "capacity" else 0
                page.gauge("vllm:num_requests_waiting_by_reason", {**base, "reason": reason}, waiting)
        if version >= (0, 11, 2) and not self.rust:
            for state in SLEEP_STATES:
                asleep = float(state == self.front.sleeping)
                page.gauge("vllm:engine_sleep_state", {**base, "sleep_state": state}, asleep)
        if version < (0, 11, 2):
            page.gauge("vllm:gpu_cache_usage_perc", base, gauges["kv_cache_usage_perc"])
        if version < (0, 9, 2):
            return
        # Before 0.11.2 every process showed its own.
        pids = range(self.launch.api_servers) if self.several and version < (0, 11, 2) else ()
        for labels in [{**base, "pid": str(100 + pid)} for pid in pids] or [base]:
            page.gauge("vllm:kv_cache_usage_perc", labels, gauges["kv_cache_usage_perc"])

    def _counters(self, page: Page, base: dict[str, str], core: EngineCore, view: EngineView) -> None:
        version = self.launch.version
        caches = [("gpu_prefix_cache", ALWAYS, (0, 11, 2)), ("prefix_cache", (0, 9, 2), NEVER)]
        caches += [("external_prefix_cache", (0, 11, 2), NEVER), ("mm_cache", (0, 11, 2), NEVER)]
        for name, since, until in caches:
            if since <= version < until:
                page.counter(f"vllm:{name}_queries", base, 0)
                page.counter(f"vllm:{name}_hits", base, 0)
        page.counter("vllm:num_preemptions", base, view.since_reset(core, "retractions"))
        page.counter("vllm:prompt_tokens", base, view.prompt_tokens)
        if version >= (0, 20):
            for source in SOURCES:
                tokens = view.prompt_tokens if source == SOURCES[0] else 0
                page.counter("vllm:prompt_tokens_by_source", {**base, "source": source}, tokens)
            page.counter("vllm:prompt_tokens_cached", base, 0)
        if version >= (0, 33):
            for source in CACHED_SOURCES:
                page.counter("vllm:prompt_tokens_cached_by_source", {**base, "source": source}, 0)
        page.counter("vllm:generation_tokens", base, view.since_reset(core, "output_tokens"))
        reasons = next(reasons for since, reasons in sorted(FINISHED.items(), reverse=True) if version >= since)
        for reason in reasons:
            count = view.finished if reason == "length" else 0
            page.counter("vllm:request_success", {**base, "finished_reason": reason}, count)

    def _cache(self, core: EngineCore) -> dict[str, str]:
        args = self.launch.args
        capacity = core.limits.kv_capacity_tokens
        share = args.gpu_memory_utilization or (0.92 if self.launch.version >= (0, 11, 2) else 0.9)
        labels = {
            "block_size": str(args.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": str(share),
            "num_gpu_blocks": str(capacity // args.block_size),
        }
        if self.launch.version < (0, 33):
            return labels
        size = {"kv_cache_size_tokens": str(capacity), "kv_cache_max_concurrency": str(capacity / args.max_model_len)}
        return {**labels, **size, **LONG_CACHE_LABELS}
