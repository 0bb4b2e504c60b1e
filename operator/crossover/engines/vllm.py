"""vLLM 0.8 to 0.33: what it shows. What it accepts is in `vllm_settings`.

No metric tells the draft length in force or the batch limit: the first comes from counters over two readings, the second
from the pod's arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossover.api.fleet import (
    Capability,
    EngineType,
    PodReading,
    SchedulerReading,
    ScrapeFault,
    SpeculationSettings,
    Trap,
)
from crossover.engines import vllm_settings as settings
from crossover.engines.contract import (
    Answer,
    ConfigFile,
    ContainerEdit,
    Models,
    RunningCap,
    Schedule,
    WantedSpeculation,
)
from crossover.engines.exposition import Exposition, NotExposition, Sample, scan
from crossover.engines.values import document, mapping, number

METRICS = "/metrics"
_PREFIX = "vllm:"
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "generation_tokens_total",
    "iteration_tokens_total_count",
    "inter_token_latency_seconds_count",
    "time_per_output_token_seconds_count",
    "request_time_per_output_token_seconds_sum",
    "request_time_per_output_token_seconds_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
    "spec_decode_num_drafts_total",
    "spec_decode_num_emitted_tokens_total",
    "admission_rejections_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    _PER_POSITION,
    "engine_sleep_state",
    "cache_config_info",
)
WANTED = frozenset(_PREFIX + name for name in _NAMES)

TRAPS = {
    "DataParallelRanks": "several engines in one pod: each is a scheduler of its own, counts are not added up",
    "ProcessDuplicates": "a value stands once for each API-server process; the largest is read",
    "SeveralAPIServers": "the exposition is merged from several processes: each API server counts every engine step, so "
    "the step counter is not read",
    "DraftOffBySchedule": "tokens move while the speculation counters stand still: draft length 0 by the engine's schedule",
    "NoProgress": "requests run and no counter has moved since the last reading",
    "StaleGauges": "requests run and no counter has moved over three readings: the gauges are stale or the engine hangs",
    "LatencyIsPerStep": "before 0.11.2 only inter-token latency is served, one sample a step, not a token: it is no TPOT",
    "Asleep": "the engine sleeps: it serves nothing",
    "V0SpeculationSeries": "the speculation series of the V0 engine do not tell the draft length: it is unknown, not 0",
    "RejectsRequests": "the server has turned requests away: its queue shows less than the demand",
    "DeferredRequests": "some requests wait for a transfer, not for room; they do not count as waiting",
}


def _trap(code: str) -> Trap:
    return Trap(code, TRAPS[code])


class VLLM:
    """The `Engine` contract for vLLM. Stateless."""

    type = EngineType.VLLM
    default_port = 8000
    info_paths: tuple[str, ...] = ("/version",)
    running_cap: RunningCap | None = None

    def load_paths(self, capability: Capability | None) -> tuple[tuple[str, ...], ...]:
        return ((METRICS,),)

    def recognises(self, answer: Answer) -> bool:
        return answer.status == 200 and (b"\nvllm:" in answer.body or answer.body.startswith(b"vllm:"))

    def read(self, answers: Sequence[Answer], now_seconds: float, previous: PodReading | None) -> PodReading:
        answer = next((item for item in answers if item.status == 200), None)
        if answer is None:
            return PodReading(None, None, METRICS, now_seconds, fault=_why(answers), fault_detail=_status(answers))
        try:
            exposition = scan(answer.body, WANTED)
        except NotExposition:
            return PodReading(None, None, METRICS, now_seconds, fault=ScrapeFault.NOT_METRICS)
        if not exposition.samples:
            other = exposition.names_seen and b"vllm:" not in answer.body and _serves_models(answer.body)
            fault = ScrapeFault.WRONG_ENGINE if other else ScrapeFault.METRICS_OFF
            return PodReading(None, None, METRICS, now_seconds, fault=fault)
        return self._reading(exposition, b"_created{" in answer.body, now_seconds, previous)

    def _reading(
        self, exposition: Exposition, one_process: bool, now_seconds: float, previous: PodReading | None
    ) -> PodReading:
        traps: list[Trap] = []
        ranks = _ranks(exposition)
        if len(ranks) > 1:
            traps.append(_trap("DataParallelRanks"))
        before = {item.name: item for item in previous.schedulers} if previous is not None else {}
        stuck_before = previous is not None and any(t.code in ("NoProgress", "StaleGauges") for t in previous.traps)
        schedulers = []
        for rank in ranks:
            scheduler = _scheduler(exposition, rank, one_process, traps)
            scheduler = _with_speculation(scheduler, before.get(scheduler.name), exposition, traps)
            schedulers.append(_with_progress(scheduler, before.get(scheduler.name), stuck_before, traps))
        if any(sample.value > 0 for sample in exposition.values(_PREFIX + "admission_rejections_total")):
            traps.append(_trap("RejectsRequests"))
        if not schedulers:
            return PodReading(self.type, None, METRICS, now_seconds, fault=ScrapeFault.METRICS_OFF)
        if all(math.isnan(s.value) for s in exposition.values(_PREFIX + "num_requests_running")):
            return PodReading(self.type, None, METRICS, now_seconds, fault=ScrapeFault.INVALID_VALUES)
        return PodReading(self.type, None, METRICS, now_seconds, tuple(schedulers), tuple(dict.fromkeys(traps)))

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        body = mapping(document(info.body)) if info is not None and info.status == 200 else {}
        return settings.capability(body.get("version"), container, files)

    def read_settings(self, container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
        return settings.read(container, files)

    def models(self, container: Mapping[str, Any], files: Mapping[str, str]) -> Models:
        return settings.models(container, files)

    def render(self, schedule: Schedule, capability: Capability) -> ConfigFile | str:
        return settings.render(schedule, capability)

    def edit(
        self,
        container: Mapping[str, Any],
        files: Mapping[str, str],
        wanted: WantedSpeculation,
        capability: Capability,
        removed: Mapping[str, Any],
    ) -> ContainerEdit:
        return settings.edit(container, files, wanted, capability, removed)


# -- one engine of a pod -----------------------------------------------------------------------------------------------


def _ranks(exposition: Exposition) -> list[str]:
    """Global data-parallel ranks, as they are labelled; a pod behind an external balancer may begin at 5."""
    labels = {sample.labels.get("engine", "0") for sample in exposition.values(_PREFIX + "num_requests_running")}
    return sorted(labels, key=lambda rank: (len(rank), rank))


def _of(exposition: Exposition, name: str, rank: str) -> list[Sample]:
    return [item for item in exposition.values(_PREFIX + name) if item.labels.get("engine", "0") == rank]


def _value(exposition: Exposition, name: str, rank: str) -> float | None:
    values = [item.value for item in _of(exposition, name, rank) if number(item.value) is not None]
    return max(values) if values else None


def _scheduler(exposition: Exposition, rank: str, one_process: bool, traps: list[Trap]) -> SchedulerReading:
    unknown = {"max_running_requests": "absent: no metric shows it; --max-num-seqs in the pod's arguments does"}
    running = _value(exposition, "num_requests_running", rank)
    if running is None:
        unknown["running_requests"] = "invalid: not a number"
    usage = _value(exposition, "kv_cache_usage_perc", rank)
    if usage is None:
        usage = _value(exposition, "gpu_cache_usage_perc", rank)
    if len(_of(exposition, "kv_cache_usage_perc", rank)) > 1:
        traps.append(_trap("ProcessDuplicates"))
    steps = _value(exposition, "iteration_tokens_total_count", rank)
    if not one_process and steps is not None:
        traps.append(_trap("SeveralAPIServers"))
        steps = None
        unknown["engine_steps_total"] = "unknown: several API servers may count each step"
    request_steps = _value(exposition, "inter_token_latency_seconds_count", rank)
    if request_steps is None:
        request_steps = _value(exposition, "time_per_output_token_seconds_count", rank)
    if request_steps is not None and _value(exposition, "request_time_per_output_token_seconds_count", rank) is None:
        traps.append(_trap("LatencyIsPerStep"))
    if any(
        s.value == 1.0 and s.labels.get("sleep_state") != "awake" for s in _of(exposition, "engine_sleep_state", rank)
    ):
        traps.append(_trap("Asleep"))
    capacity = _cache_tokens(exposition, rank)
    return SchedulerReading(
        f"engine{rank}",
        running_requests=running,
        waiting_requests=_waiting(exposition, rank, traps),
        kv_usage=usage,
        kv_tokens=usage * capacity if usage is not None and capacity is not None else None,
        kv_capacity_tokens=capacity,
        output_tokens_total=_value(exposition, "generation_tokens_total", rank),
        draft_tokens_total=_value(exposition, "spec_decode_num_draft_tokens_total", rank),
        accepted_tokens_total=_value(exposition, "spec_decode_num_accepted_tokens_total", rank),
        drafts_total=_value(exposition, "spec_decode_num_drafts_total", rank),
        request_steps_total=request_steps,
        engine_steps_total=steps,
        accepted_tokens_by_position_total=_by_position(exposition, rank),
        # Per-request histograms; time_per_output_token_seconds of older versions is per step and is not TPOT.
        time_per_output_token_seconds_sum=_value(exposition, "request_time_per_output_token_seconds_sum", rank),
        time_per_output_token_count=_value(exposition, "request_time_per_output_token_seconds_count", rank),
        time_to_first_token_seconds_sum=_value(exposition, "time_to_first_token_seconds_sum", rank),
        time_to_first_token_count=_value(exposition, "time_to_first_token_seconds_count", rank),
        unknown=unknown,
    )


def _waiting(exposition: Exposition, rank: str, traps: list[Trap]) -> float | None:
    """What waits for room. Requests deferred for a KV transfer or a LoRA budget would not be helped by another pod."""
    reasons = {s.labels.get("reason"): s.value for s in _of(exposition, "num_requests_waiting_by_reason", rank)}
    capacity = number(reasons.get("capacity"))
    if capacity is not None:
        if reasons.get("deferred", 0.0) > 0:
            traps.append(_trap("DeferredRequests"))
        return capacity
    return _value(exposition, "num_requests_waiting", rank)


def _by_position(exposition: Exposition, rank: str) -> tuple[float, ...] | None:
    rows = {s.labels.get("position", ""): s.value for s in _of(exposition, _PER_POSITION, rank)}
    numbered = sorted((int(position), value) for position, value in rows.items() if position.isdigit())
    return tuple(value for _, value in numbered) or None


def _cache_tokens(exposition: Exposition, rank: str) -> float | None:
    """KV capacity from the labels of cache_config_info (no model_name there; absent behind the Rust front end)."""
    for sample in _of(exposition, "cache_config_info", rank):
        size = sample.labels.get("kv_cache_size_tokens", "")
        if size.isdigit():
            return float(size)
        blocks, block = sample.labels.get("num_gpu_blocks", ""), sample.labels.get("block_size", "")
        if blocks.isdigit() and block.isdigit():
            return float(blocks) * float(block)
    return None


def _with_speculation(
    now: SchedulerReading, before: SchedulerReading | None, exposition: Exposition, traps: list[Trap]
) -> SchedulerReading:
    """Draft length in force, share and acceptance, from the difference to the last reading.

    d draft_tokens / d drafts = mean K; d drafts / d request steps = share that speculated; 1 + d accepted / d drafts =
    acceptance length. No series at all = started without speculation.
    """
    if now.drafts_total is None and exposition.values(_PREFIX + "spec_decode_num_emitted_tokens_total"):
        traps.append(_trap("V0SpeculationSeries"))
        reason = "unknown: the V0 engine does not count drafts"
        return replace(now, unknown={**now.unknown, "draft_tokens": reason, "acceptance_length": reason})
    if now.drafts_total is None:
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    drafts = _grown(now.drafts_total, before.drafts_total if before else None)
    tokens = _grown(now.draft_tokens_total, before.draft_tokens_total if before else None)
    accepted = _grown(now.accepted_tokens_total, before.accepted_tokens_total if before else None)
    steps = _grown(now.request_steps_total, before.request_steps_total if before else None)
    output = _grown(now.output_tokens_total, before.output_tokens_total if before else None)
    if drafts is None or not output:
        reason = "unknown: needs two readings with decode steps between them"
        return replace(now, unknown={**now.unknown, "draft_tokens": reason, "acceptance_length": reason})
    if drafts == 0:
        traps.append(_trap("DraftOffBySchedule"))
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    return replace(
        now,
        draft_tokens=tokens / drafts if tokens is not None else None,
        acceptance_length=1 + accepted / drafts if accepted is not None else None,
        speculated_share=min(1.0, drafts / steps) if steps else None,
    )


def _grown(now: float | None, before: float | None) -> float | None:
    """Growth of a counter; None when one is missing or it was reset (restart, elastic scale-up)."""
    return None if now is None or before is None or now < before else now - before


def _with_progress(
    now: SchedulerReading, before: SchedulerReading | None, stuck_before: bool, traps: list[Trap]
) -> SchedulerReading:
    """Gauges stay up after mass aborts: running with no movement over three readings is unknown, not load."""
    if before is None or not now.running_requests:
        return now
    moved = [
        _grown(getattr(now, name), getattr(before, name)) != 0.0
        for name in ("output_tokens_total", "request_steps_total", "time_to_first_token_count")
        if getattr(now, name) is not None
    ]
    if not moved or any(moved):
        return now
    if not stuck_before:
        traps.append(_trap("NoProgress"))
        return now
    traps.append(_trap("StaleGauges"))
    return replace(now, running_requests=None, unknown={**now.unknown, "running_requests": "stale: no counter moves"})


def _why(answers: Sequence[Answer]) -> ScrapeFault:
    statuses = {answer.status for answer in answers}
    if statuses & {401, 403}:
        return ScrapeFault.UNAUTHORIZED
    return ScrapeFault.METRICS_OFF if statuses == {404} else ScrapeFault.HTTP_STATUS


def _status(answers: Sequence[Answer]) -> str | None:
    status = next((answer.status for answer in answers if answer.status not in (0, 200, 404)), None)
    return f"HTTP {status}" if status is not None else None


def _serves_models(body: bytes) -> bool:
    """Another engine's prefix, rather than a vLLM whose statistics are off (it still serves process_* and http_*)."""
    return b"sglang:" in body or b"trtllm_" in body or b"nv_trt_llm" in body


ENGINE = VLLM()
