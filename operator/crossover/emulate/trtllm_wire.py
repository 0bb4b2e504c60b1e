"""The pages of TensorRT-LLM's servers: trtllm-serve by version, a Dynamo worker, NIM 1.x, Triton."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from crossover.emulate.core import EngineCore
from crossover.emulate.page import Page
from crossover.emulate.trtllm_args import Form, Launch
from crossover.emulate.trtllm_stats import GPU_BYTES, OLD_HISTOGRAMS, Collector, Iteration, RankView

PREFIX_SINCE = (1, 2)
ITERATIONS_SINCE = (1, 3)
WORKER_ID = "7587888a1c0f5b21"
Rows = Mapping[tuple[tuple[str, str], ...], float]


class Wire:
    """Builds the page that a form serves."""

    def __init__(
        self,
        launch: Launch,
        collector: Collector,
        model: str,
        cores: Sequence[EngineCore],
        views: Sequence[RankView],
        *,
        batch_gauge: Callable[[], bool],
    ) -> None:
        self.launch, self.collector, self.model = launch, collector, model
        self.cores, self.views, self._batch_gauge = cores, views, batch_gauge

    def page(self) -> bytes:
        forms = {Form.SERVE: self._serve, Form.DYNAMO: self._dynamo, Form.NIM: self._nim}
        make = forms.get(self.launch.form)
        if make is None:
            return self._triton()
        page = Page()
        make(page)
        return page.render()

    @property
    def _capacity(self) -> int:
        return self.cores[0].limits.kv_capacity_tokens

    @property
    def _blocks(self) -> int:
        return self._capacity // self.launch.block_tokens

    @property
    def _limit(self) -> int:
        return self.cores[0].limits.max_running_requests

    # -- trtllm-serve -------------------------------------------------------------------------------------------------

    def _serve(self, page: Page) -> None:
        version = self.launch.version
        if version < PREFIX_SINCE:
            self._requests(page, "", {"model_name": "undefined", "engine_type": "undefined"}, OLD_HISTOGRAMS)
            return
        base = {"model_name": self.model, "engine_type": "pytorch"}
        if version < ITERATIONS_SINCE:
            self._requests(page, "trtllm_", base, OLD_HISTOGRAMS)
            if self.collector.shown is not None and self.launch.flag("enable_iter_perf_stats"):
                self._cache(page, {**base, "pid": "1"}, self.collector.shown, brief=True)
            return
        self._information(page, {**base, "pid": "1"})
        page.counter("trtllm_prompt_cached_tokens", base, 0)
        self._requests(page, "trtllm_", base, self.collector.histograms)
        self._counted(page, base)
        if self._batch_gauge():
            self._batch(page, base)
        if self.collector.shown is not None and self.launch.flag("enable_iter_perf_stats"):
            self._gauges(page, {**base, "pid": "1"}, self.collector.shown)

    def _requests(self, page: Page, prefix: str, labels: dict[str, str], names: Mapping[str, object]) -> None:
        """Nothing is there before its first sample."""
        collector = self.collector
        for name in names:
            if name in collector.histograms:
                page.histogram(prefix + name, labels, collector.histograms[name])
        if collector.finished:
            page.counter(prefix + "request_success", {**labels, "finished_reason": "length"}, collector.finished)

    def _counted(self, page: Page, base: dict[str, str]) -> None:
        collector = self.collector
        if not collector.finished:
            return
        rows = {
            "prompt_tokens": collector.input_tokens,
            "generation_tokens": collector.output_tokens,
            "num_requests_completed": collector.finished,
        }
        for name, value in rows.items():
            page.counter("trtllm_" + name, base, value)
        if not self.launch.flag("enable_iter_perf_stats"):
            return
        page.counter("trtllm_kv_cache_missed_blocks", base, collector.missed_blocks)
        if any(collector.drafted_by_position):
            self._drafted(page, base)
            for name, places in (
                ("drafted", collector.drafted_by_position),
                ("accepted", collector.accepted_by_position),
            ):
                for place, value in enumerate(places):
                    labels = {**base, "token_position": str(place)}
                    page.counter(f"trtllm_spec_decode_{name}_tokens", labels, value)

    def _drafted(self, page: Page, labels: dict[str, str]) -> None:
        collector = self.collector
        page.counter("trtllm_spec_decode_num_draft_tokens", labels, sum(collector.drafted_by_position))
        page.counter("trtllm_spec_decode_num_accepted_tokens", labels, sum(collector.accepted_by_position))

    def _batch(self, page: Page, base: dict[str, str]) -> None:
        """Every rank of the group shows the batch; under attention data parallelism its own."""
        for rank in range(self.launch.tensor_parallel):
            view = self.views[rank if len(self.views) > 1 else 0]
            labels = {**base, "rank": str(rank), "pid": str(118 + rank)}
            page.gauge("trtllm_scheduled_batch_size", labels, view.batch)

    def _information(self, page: Page, base: dict[str, str]) -> None:
        """Set at start; they do not follow the schedule."""
        document, ranks = self.launch.document, self.launch.tensor_parallel
        rows: dict[str, dict[str, str]] = {
            "model_config_info": {
                "model": self.model,
                "served_model_name": self.model,
                "dtype": "auto",
                "quantization": "none",
                "max_model_len": str(document.get("max_seq_len") or 32768),
                "gpu_type": "emulated",
            },
            "parallel_config_info": {
                "tensor_parallel_size": str(ranks),
                "pipeline_parallel_size": "1",
                "gpu_count": str(ranks),
            },
            "kv_cache_config_info": {
                "page_size": str(self.launch.block_tokens),
                "enable_block_reuse": "True",
                "cache_dtype": "auto",
            },
        }
        config = self.launch.config
        if config is not None:
            rows["speculative_config_info"] = {
                "spec_enabled": "True",
                "spec_method": str(config["decoding_type"]),
                "spec_num_tokens": str(self.launch.max_draft),
                "spec_draft_model": str(config.get("speculative_model") or ""),
            }
        for name, labels in rows.items():
            page.gauge("trtllm_" + name, {**base, **labels}, 1)

    def _cache(self, page: Page, labels: dict[str, str], shown: Iteration, *, brief: bool = False) -> None:
        page.gauge("trtllm_kv_cache_hit_rate", labels, 0.0)
        page.gauge("trtllm_kv_cache_utilization", labels, shown.used_blocks / self._blocks)
        if brief:
            return
        page.gauge("trtllm_kv_cache_max_blocks", labels, self._blocks)
        page.gauge("trtllm_kv_cache_free_blocks", labels, self._blocks - shown.used_blocks)
        page.gauge("trtllm_kv_cache_used_blocks", labels, shown.used_blocks)
        page.gauge("trtllm_kv_cache_tokens_per_block", labels, self.launch.block_tokens)

    def _gauges(self, page: Page, labels: dict[str, str], shown: Iteration) -> None:
        """The iteration that was the newest when a request last ended."""
        self._cache(page, labels, shown)
        rows = {
            **self._step(shown),
            "gpu_memory_usage_bytes": GPU_BYTES,
            "cpu_memory_usage_bytes": 0,
            "pinned_memory_usage_bytes": 0,
            "max_batch_size_static": 0,
            "max_batch_size_runtime": 0,
            "max_num_tokens_runtime": 0,
            "num_paused_requests": shown.paused,
            "total_context_tokens": shown.context_tokens,
            "avg_decoded_tokens_per_iter": 0,
            "prefill_batch_occupancy": shown.context / self._limit,
        }
        if self.launch.config is not None:
            rows |= {"spec_decode_acceptance_length": shown.acceptance_length, "spec_decode_draft_overhead": 0}
        for name, value in rows.items():
            page.gauge("trtllm_" + name, labels, value)

    def _step(self, shown: Iteration) -> dict[str, float]:
        return {
            "num_requests_running": shown.active,
            "num_requests_waiting": shown.queued,
            "max_num_active_requests": self._limit,
            "num_scheduled_requests": shown.scheduled,
            "num_generation_requests": shown.generation,
            "num_context_requests": shown.context,
            "iteration_latency_seconds": shown.latency_seconds,
        }

    # -- a Dynamo worker ----------------------------------------------------------------------------------------------

    def _dynamo(self, page: Page) -> None:
        place = {
            "dynamo_namespace": "default",
            "dynamo_component": "tensorrt_llm",
            "dynamo_endpoint": "generate",
            "model": self.model,
        }
        in_flight = sum(len(core.running) + len(core.waiting) for core in self.cores)
        page.gauge("dynamo_component_inflight_requests", place, in_flight)
        page.counter("dynamo_component_requests", place, sum(core.counters.finished for core in self.cores))
        for rank, core in enumerate(self.cores):
            labels = {"dynamo_component": "tensorrt_llm", "model": self.model, "dp_rank": str(rank)}
            page.gauge("dynamo_component_total_blocks", labels, self._blocks)
            page.gauge("dynamo_component_gpu_cache_usage_percent", labels, core.kv_tokens / self._capacity)
        shown = self.collector.shown
        if not self.launch.publishes:
            return
        base = {**place, "engine_type": "trtllm", "model_name": self.model, "worker_id": WORKER_ID}
        aborted = sum(core.counters.aborted for core in self.cores)
        page.counter("trtllm_num_aborted_requests", {**base, "disaggregation_mode": "agg"}, aborted)
        if shown is None:
            return
        rows = {**self._step(shown), "kv_cache_utilization": shown.used_blocks / self._blocks}
        if self.launch.config is not None:
            rows["spec_decode_acceptance_length"] = shown.acceptance_length
        for name, value in rows.items():
            page.gauge("trtllm_" + name, base, value)
        if any(self.collector.drafted_by_position):
            self._drafted(page, base)

    # -- NIM 1.x ------------------------------------------------------------------------------------------------------

    def _nim(self, page: Page) -> None:
        core, labels = self.cores[0], {"model_name": self.model}
        page.gauge("num_requests_running", labels, len(core.running))
        page.gauge("num_requests_waiting", labels, len(core.waiting))
        page.gauge("num_request_max", labels, self._limit)
        page.gauge("gpu_cache_usage_perc", labels, core.kv_tokens / self._capacity)
        page.counter("prompt_tokens", labels, core.counters.input_tokens)
        page.counter("generation_tokens", labels, core.counters.output_tokens)

    # -- Triton -------------------------------------------------------------------------------------------------------

    def _triton(self) -> bytes:
        """Its own writer: counters have no suffix, integers no point. The LLM API backend has the base families only."""
        collector = self.collector
        families: list[tuple[str, str, Rows]] = [
            ("nv_inference_request_success", "counter", {(): collector.finished}),
            # Requests are handed on at once, so nothing queues here whatever the engine's queue.
            ("nv_inference_queue_duration_us", "counter", {(): 4 * collector.finished}),
            ("nv_inference_compute_infer_duration_us", "counter", {(): int(collector.compute_seconds * 1e6)}),
            ("nv_inference_exec_count", "counter", {(): collector.finished}),
            ("nv_inference_pending_request_count", "gauge", {(): 0}),
        ]
        if self.launch.form is Form.TRITON:
            families += self._classic()
        lines: list[str] = []
        for name, kind, rows in families:
            lines += [f"# HELP {name} {name}", f"# TYPE {name} {kind}"]
            for labels, value in rows.items():
                every = sorted([*labels, ("model", "tensorrt_llm"), ("version", "1")])
                text = ",".join(f'{key}="{item}"' for key, item in every)
                lines.append(f"{name}{{{text}}} {value:g}" if value != int(value) else f"{name}{{{text}}} {int(value)}")
        return ("\n".join(lines) + "\n").encode()

    def _classic(self) -> list[tuple[str, str, Rows]]:
        core, newest = self.cores[0], self.views[0].newest
        active = min(self._limit, len(core.running) + len(core.waiting))
        used = newest.used_blocks if newest is not None and core.running else 0
        idle = not core.running

        def rows(label: str, values: Mapping[str, float]) -> Rows:
            return {((label, kind),): value for kind, value in values.items()}

        return [
            (
                "nv_trt_llm_request_metrics",
                "gauge",
                rows(
                    "request_type",
                    {
                        "waiting": active - len(core.running),
                        "context": 0 if idle or newest is None else newest.context,
                        "scheduled": len(core.running),
                        "max": self._limit,
                        "active": active,
                    },
                ),
            ),
            (
                "nv_trt_llm_runtime_memory_metrics",
                "gauge",
                rows("memory_type", {"pinned": 0, "gpu": GPU_BYTES, "cpu": 0}),
            ),
            (
                "nv_trt_llm_kv_cache_block_metrics",
                "gauge",
                rows(
                    "kv_cache_block_type",
                    {
                        "fraction": round(used / self._blocks, 6),
                        "tokens_per": self.launch.block_tokens,
                        "used": used,
                        "free": self._blocks - used,
                        "max": self._blocks,
                    },
                ),
            ),
            (
                "nv_trt_llm_inflight_batcher_metrics",
                "gauge",
                rows(
                    "inflight_batcher_specific_metric",
                    {
                        "micro_batch_id": 0,
                        "generation_requests": 0 if idle or newest is None else newest.generation,
                        "total_context_tokens": 0 if idle or newest is None else newest.context_tokens,
                        "paused_requests": 0,
                    },
                ),
            ),
            (
                "nv_trt_llm_general_metrics",
                "gauge",
                rows(
                    "general_type",
                    {"iteration_counter": core.counters.engine_steps, "timestamp": int(time.time())},
                ),
            ),
            (
                "nv_trt_llm_disaggregated_serving_metrics",
                "counter",
                rows("disaggregated_serving_type", {"kv_cache_transfer_ms": 0, "request_count": 0}),
            ),
        ]
