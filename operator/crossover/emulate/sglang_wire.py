"""What an SGLang server answers: gauges that lag, loads that do not, and a description that tells too much."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from crossover.emulate.core import EngineCore, Step
from crossover.emulate.sglang_args import Launch

LOADS_INTERVAL_STEPS = 15
GAUGES = (
    "num_running_reqs",
    "num_queue_reqs",
    "gen_throughput",
    "token_usage",
    "full_token_usage",
    "num_used_tokens",
    "decode_sum_seq_lens",
    "utilization",
    "spec_accept_length",
    "spec_accept_rate",
)
SPEC_TIER_GAUGES = ("spec_num_steps", "spec_num_draft_tokens")


@dataclass
class RankView:
    """What one scheduler has published so far. Attach `on_step` to its core."""

    launch: Launch
    gauges: dict[str, float] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=lambda: {"running": 0, "waiting": 0, "used": 0})
    frozen: bool = False
    """Fault: gauges keep what they show."""
    _steps: int = 0
    _tokens: int = 0
    _drafts: int = 0
    _accepted: int = 0
    _since: float | None = None
    lifetime_steps: int = 0
    lifetime_tokens: int = 0

    def on_step(self, core: EngineCore, step: Step) -> None:
        self.lifetime_steps += step.running
        self.lifetime_tokens += step.emitted
        self._steps += 1
        self._tokens += step.emitted
        if self._since is None:
            self._since = step.ended_at_seconds
        if step.prefill:
            # A prefill report stores the batch as it was before the new requests join.
            self._report_load(core, step.running)
            self._publish_loads(core)
        if step.running and self._steps % LOADS_INTERVAL_STEPS == 0:
            self._publish_loads(core)
        if step.running and self._steps % self.launch.args.decode_log_interval == 0:
            self._report_decode(core, step)
        if core.idle:
            self.on_idle(core)

    def on_idle(self, core: EngineCore) -> None:
        """Batch, queue and throughput go to 0; the speculation gauges keep their last value."""
        self._report_load(core, 0)
        if not self.frozen:
            self.gauges["gen_throughput"] = 0.0
        self._publish_loads(core)
        self._since = None

    def _publish_loads(self, core: EngineCore) -> None:
        self.loads = {"running": len(core.running), "waiting": len(core.waiting), "used": core.kv_tokens}

    def _report_load(self, core: EngineCore, running: int) -> None:
        if self.frozen:
            return
        usage = core.kv_tokens / core.kv_capacity_tokens
        self.gauges |= {
            "num_running_reqs": running,
            "num_queue_reqs": len(core.waiting),
            "token_usage": round(usage, 2),
            "full_token_usage": usage,
            "num_used_tokens": core.kv_tokens,
            "utilization": 0.0,
        }
        self.gauges.setdefault("gen_throughput", 0.0)
        for name in ("spec_accept_length", "spec_accept_rate", *SPEC_TIER_GAUGES):
            self.gauges.setdefault(name, 0.0)

    def _report_decode(self, core: EngineCore, step: Step) -> None:
        self._report_load(core, step.running)
        if self.frozen:
            return
        seconds = step.ended_at_seconds - (self._since if self._since is not None else step.ended_at_seconds)
        self.gauges["decode_sum_seq_lens"] = core.kv_tokens
        if seconds > 0:
            self.gauges["gen_throughput"] = self._tokens / seconds
        if core.speculates:
            drafts = core.counters.drafts - self._drafts
            accepted = core.counters.accepted_tokens - self._accepted
            off = step.draft_tokens == 0
            width = max(step.draft_tokens, 1)
            self.gauges |= {
                "spec_accept_length": 1.0 if off or not drafts else 1 + accepted / drafts,
                "spec_accept_rate": 0.0 if off or not drafts else accepted / drafts / width,
                "spec_num_steps": float(step.draft_tokens if self.launch.algorithm != "NGRAM" else self.launch.steps),
                "spec_num_draft_tokens": float(step.draft_tokens + 1),
            }
        self._drafts, self._accepted = core.counters.drafts, core.counters.accepted_tokens
        self._tokens, self._since = 0, step.ended_at_seconds


class Wire:
    """Builds the answers of one server from its ranks."""

    def __init__(self, launch: Launch, cores: list[EngineCore], views: list[RankView]) -> None:
        self.launch, self.cores, self.views = launch, cores, views
        self.started = time.time()

    @property
    def version(self) -> str:
        return ".".join(str(part) for part in self.launch.version)

    @property
    def _model(self) -> str:
        args = self.launch.args
        return str(args.served_model_name or args.model_path)

    def _labels(self, rank: int, tp: int, priority: str | None) -> str:
        version, args = self.launch.version, self.launch.args
        labels = {"engine_type": "unified", "model_name": self._model}
        if version >= (0, 5, 3):
            labels |= {"tp_rank": str(tp), "pp_rank": "0"}
        if version >= (0, 5, 8):
            labels["moe_ep_rank"] = "0"
        if args.dp_size > 1:
            labels["dp_rank"] = str(rank)
        if priority is not None:
            labels["priority"] = priority
        return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"

    def metrics(self) -> str:
        """The exposition. Scheduler gauges are absent before the first report."""
        lines: list[str] = []
        names = [*GAUGES, *(SPEC_TIER_GAUGES if self.launch.version >= (0, 5, 13) else ())]
        for name in names:
            rows = self._gauge_rows(name)
            if rows:
                lines += [f"# HELP sglang:{name} ", f"# TYPE sglang:{name} gauge", *rows]
        if self.launch.version >= (0, 5, 6):
            lines += ["# HELP sglang:max_total_num_tokens ", "# TYPE sglang:max_total_num_tokens gauge"]
            lines += [
                f"sglang:max_total_num_tokens{self._labels(rank, 0, self._total_priority)} {float(core.kv_capacity_tokens)}"
                for rank, core in enumerate(self.cores)
            ]
        lines += self._counters()
        return "\n".join([*lines, ""])

    @property
    def _total_priority(self) -> str | None:
        return "" if self.launch.args.enable_priority_scheduling else None

    def _gauge_rows(self, name: str) -> list[str]:
        rows = []
        args = self.launch.args
        tp_ranks = args.tp_size if args.enable_metrics_for_all_schedulers else 1
        for rank, view in enumerate(self.views):
            if name not in view.gauges:
                continue
            value = float(view.gauges[name])
            rows += [f"sglang:{name}{self._labels(rank, tp, self._total_priority)} {value}" for tp in range(tp_ranks)]
            if args.enable_priority_scheduling and name in ("num_running_reqs", "num_queue_reqs"):
                half = float(int(value / 2))
                rows.append(f"sglang:{name}{self._labels(rank, 0, '0')} {half}")
                rows.append(f"sglang:{name}{self._labels(rank, 0, '1')} {value - half}")
        return rows

    def _counters(self) -> list[str]:
        """Tokenizer side at request end, without ranks; decode tokens by the scheduler at every step."""
        lines = []
        if self.launch.version >= (0, 5, 8):
            lines += ["# HELP sglang:realtime_tokens_total ", "# TYPE sglang:realtime_tokens_total counter"]
            for rank, core in enumerate(self.cores):
                base = self._labels(rank, 0, self._total_priority)[1:-1]
                rows = {"decode": core.counters.output_tokens, "prefill_compute": core.counters.input_tokens}
                lines += [
                    f'sglang:realtime_tokens_total{{mode="{mode}",{base}}} {float(n)}' for mode, n in rows.items()
                ]
        tail = f'{{engine_type="unified",is_streaming="false",model_name="{self._model}"}}'
        total = [core.counters for core in self.cores]
        rows_total = {
            "generation_tokens_total": sum(item.output_tokens for item in total),
            "num_requests_total": sum(item.finished for item in total),
        }
        for name, value in rows_total.items():
            lines += [f"# HELP sglang:{name} ", f"# TYPE sglang:{name} counter", f"sglang:{name}{tail} {float(value)}"]
        histograms = {
            "time_to_first_token_seconds": (
                sum(item.ttft_seconds for item in total),
                sum(item.ttft_count for item in total),
            ),
            "request_time_per_output_token_seconds": (
                sum(item.tpot_seconds for item in total),
                sum(item.tpot_count for item in total),
            ),
        }
        for name, (seconds, count) in histograms.items():
            lines += [f"# HELP sglang:{name} ", f"# TYPE sglang:{name} histogram"]
            lines += [f"sglang:{name}_sum{tail} {float(seconds)}"]
            lines += [f'sglang:{name}_bucket{{le="+Inf",{tail[1:-1]}}} {float(count)}']
            lines += [f"sglang:{name}_count{tail} {float(count)}"]
        return lines

    def loads(self) -> dict[str, Any]:
        """/v1/loads: one object per data-parallel rank; throughput needs --enable-metrics."""
        metrics_on = self.launch.args.enable_metrics
        loads = []
        for rank, (core, view) in enumerate(zip(self.cores, self.views, strict=True)):
            accept = view.lifetime_tokens / view.lifetime_steps if view.lifetime_steps else 0.0
            loads.append(
                {
                    "timestamp": time.time(),
                    "dp_rank": rank,
                    "num_running_reqs": view.loads["running"],
                    "num_waiting_reqs": view.loads["waiting"],
                    "num_used_tokens": view.loads["used"],
                    "num_total_tokens": view.loads["used"],
                    "max_total_num_tokens": core.kv_capacity_tokens,
                    "max_running_requests": core.max_running_requests,
                    "token_usage": round(view.loads["used"] / core.kv_capacity_tokens, 4),
                    "gen_throughput": view.gauges.get("gen_throughput", 0.0) if metrics_on else 0.0,
                    "utilization": 0.0,
                    "speculative": {"accept_length": accept, "accept_rate": 0.0} if core.speculates else None,
                    "disaggregation": {"mode": "null"},
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
        states = []
        for core in self.cores:
            draft = core.draft_in_force if core.draft_in_force is not None else max(launch.draft_tokens - 1, 0)
            state: dict[str, Any] = {
                "effective_max_running_requests_per_dp": core.max_running_requests,
                "decode_cuda_graph_bs": launch.graph_sizes,
                "disaggregation_mode": "null",
                "speculative_algorithm": launch.algorithm,
                "speculative_num_steps": draft if launch.algorithm else None,
                "speculative_num_draft_tokens": draft + 1 if launch.algorithm else None,
                "speculative_adaptive": launch.adaptive,
                "pp_max_micro_batch_size": core.running_cap or core.max_running_requests,
                "max_running_requests": core.max_running_requests,
                "api_key": args.api_key,
            }
            states.append(state)
        if launch.version < (0, 5, 3):
            return {**top, **states[0]}
        return {**top, "internal_states": states}
