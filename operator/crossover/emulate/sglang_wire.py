"""What an SGLang server answers: gauges that lag, loads that do not, and a description that tells too much."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any

from crossover.emulate.core import EngineCore
from crossover.emulate.page import Histogram, Page
from crossover.emulate.requests import Request, Step
from crossover.emulate.sglang_args import Launch

LOADS_INTERVAL_STEPS = 15
OLDEST = (0, 4, 6)
GAUGES: dict[str, tuple[int, ...]] = {
    "num_running_reqs": OLDEST,
    "num_queue_reqs": OLDEST,
    "gen_throughput": OLDEST,
    "cache_hit_rate": OLDEST,
    "token_usage": OLDEST,
    "num_used_tokens": OLDEST,
    "spec_accept_length": OLDEST,
    "num_grammar_queue_reqs": (0, 5, 3),
    "utilization": (0, 5, 3),
    "spec_accept_rate": (0, 5, 6),
    "full_token_usage": (0, 5, 11),
    "decode_sum_seq_lens": (0, 5, 11),
    "kv_used_tokens": (0, 5, 11),
    "kv_available_tokens": (0, 5, 11),
    "kv_evictable_tokens": (0, 5, 11),
    "spec_num_steps": (0, 5, 13),
    "spec_num_draft_tokens": (0, 5, 13),
}
"""Reported by a scheduler, with the version that has them first; absent before the first report."""
CONSTANTS_SINCE = (0, 5, 6)
REALTIME_SINCE = (0, 5, 8)
TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E = (*TTFT, 600, 1200, 1800, 2400)
PER_TOKEN = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
QUEUE = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100),
    *(200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)


@dataclass
class TokenizerStats:
    """What the tokenizer process counts of streaming or of other requests: at the first token and at the end."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    verify_calls: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(TTFT))
    per_token: Histogram = field(default_factory=lambda: Histogram(PER_TOKEN))
    end_to_end: Histogram = field(default_factory=lambda: Histogram(E2E))

    def on_first(self, request: Request) -> None:
        assert request.first_token_at_seconds is not None
        self.first_token.observe(request.first_token_at_seconds - request.arrived_at_seconds)

    def on_end(self, request: Request) -> None:
        assert request.first_token_at_seconds is not None
        assert request.ended_at_seconds is not None
        self.requests += 1
        self.input_tokens += request.input_tokens
        self.output_tokens += request.emitted_tokens
        self.verify_calls += request.verify_steps
        self.end_to_end.observe(request.ended_at_seconds - request.arrived_at_seconds)
        if request.emitted_tokens > 1:
            seconds = request.ended_at_seconds - request.first_token_at_seconds
            self.per_token.observe(seconds / (request.emitted_tokens - 1))


@dataclass
class Tokenizer:
    """The one tokenizer process of a server: its series carry no ranks."""

    by_streaming: dict[bool, TokenizerStats] = field(default_factory=dict)
    inter_token: Histogram = field(default_factory=lambda: Histogram(PER_TOKEN))

    def of(self, request: Request) -> TokenizerStats:
        return self.by_streaming.setdefault(request.on_tokens is not None, TokenizerStats())


@dataclass
class RankView:
    """What one scheduler has published so far."""

    launch: Launch
    tokenizer: Tokenizer
    gauges: dict[str, float] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=lambda: {"running": 0, "waiting": 0, "used": 0})
    frozen: bool = False
    """Fault: gauges keep what they show."""
    queue_time: Histogram = field(default_factory=lambda: Histogram(QUEUE))
    _steps: int = 0
    _tokens: int = 0
    _drafts: int = 0
    _accepted: int = 0
    _since: float | None = None
    lifetime_steps: int = 0
    lifetime_tokens: int = 0

    def on_first(self, request: Request) -> None:
        self.tokenizer.of(request).on_first(request)
        assert request.admitted_at_seconds is not None
        self.queue_time.observe(request.admitted_at_seconds - request.arrived_at_seconds)

    def on_end(self, request: Request) -> None:
        self.tokenizer.of(request).on_end(request)

    def on_step(self, core: EngineCore, step: Step) -> None:
        decoded = step.emitted_tokens - step.first_tokens
        self.lifetime_steps += step.decoding
        self.lifetime_tokens += decoded
        self._steps += 1
        self._tokens += step.emitted_tokens
        if decoded:
            self.tokenizer.inter_token.observe(step.seconds * step.decoding / decoded, decoded)
        if self._since is None:
            self._since = step.ended_at_seconds
        if step.prefilling:
            # A prefill report stores the batch as it was before the new requests join.
            before = sum(not request.to_prefill for request in core.running) - step.first_tokens
            self._report_load(core, max(0, before))
            self._publish_loads(core)
        if step.decoding and self._steps % LOADS_INTERVAL_STEPS == 0:
            self._publish_loads(core)
        if step.decoding and self._steps % self.launch.args.decode_log_interval == 0:
            self._report_decode(core, step)

    def on_idle(self, core: EngineCore) -> None:
        """Batch, queue and throughput go to 0; the speculation gauges keep their last value."""
        self._report_load(core, 0)
        if not self.frozen:
            self.gauges["gen_throughput"] = 0.0
        self._publish_loads(core)
        self._since = None

    def report_stuck(self, core: EngineCore) -> None:
        """Nothing runs and the queue is deep."""
        self._report_load(core, 0)
        self._publish_loads(core)

    def _publish_loads(self, core: EngineCore) -> None:
        self.loads = {"running": len(core.running), "waiting": len(core.waiting), "used": core.kv_tokens}

    def _report_load(self, core: EngineCore, running: int) -> None:
        if self.frozen:
            return
        capacity = core.limits.kv_capacity_tokens
        usage = core.kv_tokens / capacity
        self.gauges |= {
            "num_running_reqs": running,
            "num_queue_reqs": len(core.waiting),
            "num_grammar_queue_reqs": 0.0,
            "token_usage": round(usage, 2),
            "full_token_usage": usage,
            "num_used_tokens": core.kv_tokens,
            "kv_used_tokens": core.kv_tokens,
            "kv_available_tokens": capacity - core.kv_tokens,
            "kv_evictable_tokens": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
        }
        for name in GAUGES:
            self.gauges.setdefault(name, 0.0)

    def _report_decode(self, core: EngineCore, step: Step) -> None:
        self._report_load(core, step.decoding)
        if self.frozen:
            return
        seconds = step.ended_at_seconds - (self._since if self._since is not None else step.ended_at_seconds)
        self.gauges["decode_sum_seq_lens"] = core.kv_tokens
        if seconds > 0:
            self.gauges["gen_throughput"] = self._tokens / seconds
        if core.drafts.speculates:
            self.gauges |= self._speculation(core, step.draft_tokens)
        self._drafts, self._accepted = core.counters.drafts, core.counters.accepted_tokens
        self._tokens, self._since = 0, step.ended_at_seconds

    def _speculation(self, core: EngineCore, draft: int) -> dict[str, float]:
        """Over the interval since the last decode report; the rate divides by the width in force now."""
        drafts = core.counters.drafts - self._drafts
        accepted = core.counters.accepted_tokens - self._accepted
        verified = core.drafts.verified(draft)
        off = draft == 0 or not drafts
        if self.launch.version >= (0, 5, 11):
            rate = accepted / max(drafts, 1) / max(verified - 1, 1)
        else:
            rate = (accepted / max(drafts, 1) + 1) / verified
        return {
            "spec_accept_length": 1.0 if off else 1 + accepted / drafts,
            "spec_accept_rate": 0.0 if off else rate,
            "spec_num_steps": float(draft if self.launch.algorithm != "NGRAM" else self.launch.steps),
            "spec_num_draft_tokens": float(verified),
        }


class Wire:
    """Builds the answers of one server from its ranks."""

    def __init__(
        self, launch: Launch, tokenizer: Tokenizer, cores: Sequence[EngineCore], views: Sequence[RankView]
    ) -> None:
        self.launch, self.tokenizer, self.cores, self.views = launch, tokenizer, cores, views

    @property
    def version(self) -> str:
        return ".".join(str(part) for part in self.launch.version)

    @property
    def _model(self) -> str:
        args = self.launch.args
        return str(args.served_model_name or args.model_path)

    @property
    def _engine_type(self) -> str:
        """The role in disaggregated serving; always unified before 0.5.8."""
        mode = str(self.launch.args.disaggregation_mode)
        return mode if mode != "null" and self.launch.version >= (0, 5, 8) else "unified"

    def _labels(self, rank: int, tp: int = 0, priority: str | None = "", pp: int = 0) -> dict[str, str]:
        version, args = self.launch.version, self.launch.args
        labels = {"engine_type": self._engine_type, "model_name": self._model, **args.extra_metric_labels}
        if version >= (0, 5, 3):
            labels |= {"tp_rank": str(tp), "pp_rank": str(pp)}
        if version >= (0, 5, 8):
            labels["moe_ep_rank"] = "0"
        if args.dp_size > 1:
            labels["dp_rank"] = str(rank)
        if args.enable_priority_scheduling and version >= (0, 5, 10) and priority is not None:
            labels["priority"] = priority
        return labels

    def metrics(self) -> bytes:
        """The exposition, merged from several processes."""
        page, version = Page(), self.launch.version
        for name, since in GAUGES.items():
            if version >= since:
                self._gauge(page, name)
        for rank, core in enumerate(self.cores):
            if version >= CONSTANTS_SINCE:
                page.gauge("sglang:max_total_num_tokens", self._labels(rank), core.limits.kv_capacity_tokens)
            if version >= REALTIME_SINCE:
                self._realtime(page, rank, core)
        if version >= REALTIME_SINCE:
            for rank, view in enumerate(self.views):
                page.histogram("sglang:queue_time_seconds", self._labels(rank), view.queue_time)
        self._tokenizer(page)
        return page.render()

    def _gauge(self, page: Page, name: str) -> None:
        args = self.launch.args
        tp_ranks = args.tp_size if args.enable_metrics_for_all_schedulers else 1
        for rank, view in enumerate(self.views):
            if name not in view.gauges:
                continue
            value = float(view.gauges[name])
            for tp, pp in product(range(tp_ranks), range(args.pp_size)):
                # Each stage of a pipeline reports its own micro-batch.
                part = (value + pp) // args.pp_size if name == "num_running_reqs" else value
                page.gauge("sglang:" + name, self._labels(rank, tp, pp=pp), part)
            if args.enable_priority_scheduling and name in ("num_running_reqs", "num_queue_reqs"):
                half = float(int(value / 2))
                page.gauge("sglang:" + name, self._labels(rank, 0, "0"), half)
                page.gauge("sglang:" + name, self._labels(rank, 0, "1"), value - half)

    def _realtime(self, page: Page, rank: int, core: EngineCore) -> None:
        """By the scheduler at every step."""
        counters = core.counters
        rows = {
            "decode": counters.output_tokens - counters.first_tokens,
            "prefill_compute": counters.input_tokens,
            "prefill_cache": 0,
        }
        for mode, value in rows.items():
            page.counter("sglang:realtime_tokens", {"mode": mode, **self._labels(rank)}, value)

    def _tokenizer(self, page: Page) -> None:
        """At the end of requests."""
        base = {"engine_type": self._engine_type, "model_name": self._model, **self.launch.args.extra_metric_labels}
        version = self.launch.version
        for streaming, stats in self.tokenizer.by_streaming.items():
            labels = {"is_streaming": str(streaming).lower(), **base}
            page.histogram("sglang:time_to_first_token_seconds", labels, stats.first_token)
            page.histogram("sglang:e2e_request_latency_seconds", labels, stats.end_to_end)
            if version >= REALTIME_SINCE:
                page.histogram("sglang:request_time_per_output_token_seconds", labels, stats.per_token)
            page.counter("sglang:prompt_tokens", labels, stats.input_tokens)
            page.counter("sglang:generation_tokens", labels, stats.output_tokens)
            page.counter("sglang:num_requests", labels, stats.requests)
        if self.tokenizer.by_streaming:
            page.histogram("sglang:inter_token_latency_seconds", base, self.tokenizer.inter_token)
        if version >= (0, 5, 13) and self.launch.algorithm:
            calls = sum(stats.verify_calls for stats in self.tokenizer.by_streaming.values())
            page.counter("sglang:spec_verify_calls", base, calls)

    def loads(self) -> dict[str, Any]:
        """/v1/loads: one object per data-parallel rank; throughput needs --enable-metrics."""
        metrics_on = self.launch.args.enable_metrics
        loads = []
        for rank, (core, view) in enumerate(zip(self.cores, self.views, strict=True)):
            accept = view.lifetime_tokens / view.lifetime_steps if view.lifetime_steps else 0.0
            capacity, most = core.limits.kv_capacity_tokens, core.limits.max_running_requests
            loads.append(
                {
                    "timestamp": time.time(),
                    "dp_rank": rank,
                    "num_running_reqs": view.loads["running"],
                    "num_waiting_reqs": view.loads["waiting"],
                    "num_used_tokens": view.loads["used"],
                    "num_total_tokens": view.loads["used"],
                    "max_total_num_tokens": capacity,
                    "max_running_requests": most,
                    "token_usage": round(view.loads["used"] / capacity, 4),
                    "gen_throughput": view.gauges.get("gen_throughput", 0.0) if metrics_on else 0.0,
                    "utilization": 0.0,
                    "speculative": {"accept_length": accept, "accept_rate": 0.0} if core.drafts.speculates else None,
                    "disaggregation": {"mode": self.launch.args.disaggregation_mode},
                    "queues": {"waiting": view.loads["waiting"], "grammar": 0, "paused": 0, "retracted": 0},
                }
            )
        return {"timestamp": datetime.now(UTC).isoformat(), "version": self.version, "loads": loads}

    def server_info(self, status: str) -> dict[str, Any]:
        """Start-up arguments, with keys in clear text as the real one has them, and the live state of each rank."""
        args, launch = self.launch.args, self.launch
        top: dict[str, Any] = {
            "model_path": args.model_path,
            "served_model_name": self._model,
            "tp_size": args.tp_size,
            "dp_size": args.dp_size,
            "enable_dp_attention": args.enable_dp_attention,
            "api_key": args.api_key,
            "admin_api_key": args.admin_api_key,
            "max_running_requests": launch.max_running_requests,
            "decode_log_interval": args.decode_log_interval,
            "enable_metrics": args.enable_metrics,
            "attention_backend": "emulated",
            "speculative_algorithm": launch.algorithm,
            "speculative_draft_model_path": args.speculative_draft_model_path,
            "speculative_num_steps": launch.steps if launch.algorithm else None,
            "speculative_eagle_topk": launch.topk if launch.algorithm else None,
            "speculative_num_draft_tokens": launch.draft_tokens if launch.algorithm else None,
            "speculative_adaptive": args.speculative_adaptive,
            "speculative_adaptive_config": args.speculative_adaptive_config,
            "launch_command": " ".join(launch.command),
            "status": status,
            "version": self.version,
        }
        states = [self._state(core) for core in self.cores]
        if launch.version < (0, 5, 3):
            return {**top, **states[0]}
        return {**top, "internal_states": states}

    def _state(self, core: EngineCore) -> dict[str, Any]:
        launch, most = self.launch, core.limits.max_running_requests
        draft = core.draft_in_force if core.draft_in_force is not None else max(launch.draft_tokens - 1, 0)
        return {
            "effective_max_running_requests_per_dp": most,
            "decode_cuda_graph_bs": launch.graph_sizes,
            "disaggregation_mode": launch.args.disaggregation_mode,
            "speculative_algorithm": launch.algorithm,
            "speculative_num_steps": draft if launch.algorithm else None,
            "speculative_num_draft_tokens": core.drafts.verified(draft) if launch.algorithm else None,
            "speculative_adaptive": launch.adaptive,
            ("pp_max_micro_batch_size" if launch.version >= (0, 5, 4) else "max_micro_batch_size"): core.running_cap
            or most,
            "max_running_requests": most,
            "api_key": launch.args.api_key,
        }
