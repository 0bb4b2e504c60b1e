"""TensorRT-LLM 1.0 to 1.3 in its servers: trtllm-serve, a Dynamo worker, NIM 1.x, Triton. What it shows.

trtllm-serve answers two ways: `/prometheus/metrics` (with return_perf_metrics), and `/metrics`, a JSON list that each GET
takes away from everybody else. The second is never asked for; a file of it can be inspected. `/metrics` of a Dynamo worker
or of Triton is asked for only after a path that trtllm-serve does not have has answered.
"""

from __future__ import annotations

import json
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
from crossover.engines import tensorrt_llm_settings as settings
from crossover.engines.contract import Answer, ConfigFile, ContainerEdit, RunningCap, Schedule, WantedSpeculation
from crossover.engines.exposition import Exposition, NotExposition, scan

PROMETHEUS = "/prometheus/metrics"

_SERVE = (
    "scheduled_batch_size",
    "num_generation_requests",
    "num_context_requests",
    "num_requests_running",
    "num_requests_waiting",
    "max_num_active_requests",
    "kv_cache_utilization",
    "kv_cache_max_blocks",
    "kv_cache_tokens_per_block",
    "generation_tokens_total",
    "request_success_total",
    "num_requests_completed_total",
    "time_per_output_token_seconds_sum",
    "time_per_output_token_seconds_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_acceptance_length",
    "spec_decode_drafted_tokens_total",
    "spec_decode_accepted_tokens_total",
    "speculative_config_info",
)
_OTHERS = (
    "dynamo_component_inflight_requests",
    "dynamo_component_gpu_cache_usage_percent",
    "num_requests_running",
    "num_requests_waiting",
    "num_request_max",
    "gpu_cache_usage_perc",
    "generation_tokens_total",
    "request_success_total",
    "request_queue_time_seconds_count",
    "time_per_output_token_seconds_sum",
    "time_per_output_token_seconds_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_inflight_batcher_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
    "nv_inference_request_success",
)
_PREFIX = "trtllm_"
WANTED = frozenset([*(_PREFIX + name for name in _SERVE), *_OTHERS])

TRAPS = {
    "GaugesMoveWhenRequestsEnd": "iteration gauges move only when a request ends: they lag during long generations",
    "IdleGaugesStale": "the executor publishes nothing when idle: the running gauge keeps its last value and is read as 0",
    "QueueUnderReports": "the waiting gauge counts the intake queue only: requests may wait although it shows 0",
    "DraftOffBySchedule": "acceptance length 0 means that nothing was drafted (the schedule), not that the draft is bad",
    "TensorParallelDuplicates": "every tensor-parallel rank repeats the batch; the largest is read",
    "ConfigInfoDoesNotFollow": "speculative_config_info is set at start and does not follow the schedule",
    "StaticLimitsAreZero": "max_batch_size_static is 0 on the PyTorch backend: the limit is max_num_active_requests",
    "NoBatchGauge": "this version serves no batch: 1.0 and 1.1 have five families of request counters and histograms",
    "PublishMetricsOff": "the Dynamo worker runs without --publish-metrics: only requests in flight are known",
    "TritonLLMAPIHasNoSensor": "Triton's LLM API backend publishes no batch, and its queue time stays near 0 whatever waits",
    "DrainedJSON": "each GET of this JSON takes the records away from everybody else: it is never polled",
    "NoIterations": "an empty list: the server is idle, or enable_iter_perf_stats is off",
    "WaitingIsSeenUpToMax": "Triton counts as waiting only requests that are active: beyond max they are invisible",
}


def _trap(code: str) -> Trap:
    return Trap(code, TRAPS[code])


class TensorRTLLM:
    """The `Engine` contract for TensorRT-LLM. Stateless."""

    type = EngineType.TENSORRT_LLM
    default_port = 8000
    info_paths: tuple[str, ...] = ("/version",)
    running_cap: RunningCap | None = None

    def load_paths(self, capability: Capability | None) -> tuple[tuple[str, ...], ...]:
        return ((PROMETHEUS,), ("/v1/metrics",), ("/live", "/metrics"), ("/v2/health/live", "/metrics"))

    def recognises(self, answer: Answer) -> bool:
        if answer.status != 200:
            return False
        body = answer.body
        if _iterations(body) is not None and body.strip() != b"[]":
            return True
        if b"vllm:" in body or b"sglang:" in body:
            return False
        marks = (b"trtllm_", b"nv_trt_llm", b"num_request_max", b'dynamo_component="tensorrt_llm"', b"nv_inference_")
        return any(mark in body for mark in marks)

    def read(self, answers: Sequence[Answer], now_seconds: float, previous: PodReading | None) -> PodReading:
        answer = next((a for a in reversed(answers) if a.status == 200 and "metrics" in a.path), None)
        if answer is None:
            return PodReading(None, None, PROMETHEUS, now_seconds, fault=_why(answers), fault_detail=_status(answers))
        records = _iterations(answer.body)
        if records is not None:
            return _from_json(records, answer.path, now_seconds)
        try:
            exposition = scan(answer.body, WANTED)
        except NotExposition:
            return PodReading(None, None, answer.path, now_seconds, fault=ScrapeFault.NOT_METRICS)
        return _from_exposition(exposition, answer, now_seconds, previous)

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        version = None
        if info is not None and info.status == 200:
            try:
                body = json.loads(info.body)
            except ValueError:
                body = None
            version = body.get("version") if isinstance(body, dict) else None
        return settings.capability(version, container, files or {})

    def read_settings(self, container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
        return settings.read(container, files)

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


# -- Prometheus forms --------------------------------------------------------------------------------------------------


def _from_exposition(
    exposition: Exposition, answer: Answer, now_seconds: float, previous: PodReading | None
) -> PodReading:
    """Which server it is, by what it serves."""
    traps: list[Trap] = []
    before = previous.schedulers[0] if previous is not None and previous.schedulers else None
    scheduler: SchedulerReading | None = None
    if any(name.startswith(_PREFIX) for name in exposition.samples):
        scheduler = _serve(exposition, before, traps)
    elif exposition.values("nv_trt_llm_request_metrics"):
        scheduler = _triton(exposition, traps)
    elif exposition.values("num_request_max"):
        scheduler = _nim(exposition)
    elif exposition.values("dynamo_component_inflight_requests"):
        scheduler = _dynamo_only(exposition, traps)
    elif exposition.values("request_queue_time_seconds_count") and b"vllm:" not in answer.body:
        scheduler = _unprefixed(exposition, traps)
    elif exposition.values("nv_inference_request_success"):
        traps.append(_trap("TritonLLMAPIHasNoSensor"))
    if scheduler is None:
        fault = ScrapeFault.METRICS_OFF if traps or not exposition.names_seen else ScrapeFault.WRONG_ENGINE
        return PodReading(
            EngineType.TENSORRT_LLM if traps else None, None, answer.path, now_seconds, traps=tuple(traps), fault=fault
        )
    return PodReading(
        EngineType.TENSORRT_LLM, None, answer.path, now_seconds, (scheduler,), tuple(dict.fromkeys(traps))
    )


def _value(exposition: Exposition, name: str, **labels: str) -> float | None:
    """Largest finite value over processes and tensor-parallel ranks: they repeat the batch."""
    values = [
        sample.value
        for sample in exposition.values(name)
        if math.isfinite(sample.value) and all(sample.labels.get(key) == value for key, value in labels.items())
    ]
    return max(values) if values else None


def _serve(exposition: Exposition, before: SchedulerReading | None, traps: list[Trap]) -> SchedulerReading:
    """trtllm-serve and a publishing Dynamo worker."""

    def gauge(name: str) -> float | None:
        return _value(exposition, _PREFIX + name)

    unknown: dict[str, str] = {}
    batch = gauge("scheduled_batch_size")
    running = _occupancy(batch, gauge, traps)
    if len(exposition.values(_PREFIX + "scheduled_batch_size")) > 1:
        traps.append(_trap("TensorParallelDuplicates"))
    output, ended = gauge("generation_tokens_total"), gauge("request_success_total")
    if batch is None and running:
        traps.append(_trap("GaugesMoveWhenRequestsEnd"))
    if running is None:
        unknown["running_requests"] = "absent: no iteration has been published (enable_iter_perf_stats?)"
    waiting = gauge("num_requests_waiting")
    limit = gauge("max_num_active_requests")
    if waiting == 0 and limit and running is not None and running >= 0.95 * limit:
        traps.append(_trap("QueueUnderReports"))
    blocks, per_block = gauge("kv_cache_max_blocks"), gauge("kv_cache_tokens_per_block")
    usage = gauge("kv_cache_utilization")
    capacity = blocks * per_block if blocks and per_block else None
    scheduler = SchedulerReading(
        "0",
        running_requests=running,
        waiting_requests=waiting,
        max_running_requests=limit or None,
        kv_usage=usage,
        kv_capacity_tokens=capacity,
        kv_tokens=usage * capacity if usage is not None and capacity is not None else None,
        output_tokens_total=output,
        draft_tokens_total=gauge("spec_decode_num_draft_tokens_total"),
        accepted_tokens_total=gauge("spec_decode_num_accepted_tokens_total"),
        accepted_tokens_by_position_total=_by_position(exposition),
        time_per_output_token_seconds_sum=gauge("time_per_output_token_seconds_sum"),
        time_per_output_token_count=gauge("time_per_output_token_seconds_count"),
        time_to_first_token_seconds_sum=gauge("time_to_first_token_seconds_sum"),
        time_to_first_token_count=gauge("time_to_first_token_seconds_count"),
        unknown=unknown,
    )
    return _with_speculation(_with_idle(scheduler, batch, before, ended, traps), before, exposition, traps)


def _occupancy(batch: float | None, gauge: Any, traps: list[Trap]) -> float | None:
    """scheduled_batch_size is cheap and reset at idle; then requests of the step; then those running."""
    if batch is not None:
        running = gauge("num_requests_running")
        if batch == 0 and running:
            traps.append(_trap("IdleGaugesStale"))
        return batch
    generation = gauge("num_generation_requests")
    if generation is not None:
        return float(generation + (gauge("num_context_requests") or 0.0))
    running = gauge("num_requests_running")
    return None if running is None else float(running)


def _with_idle(
    now: SchedulerReading,
    batch: float | None,
    before: SchedulerReading | None,
    ended: float | None,
    traps: list[Trap],
) -> SchedulerReading:
    """Without scheduled_batch_size, a gauge with no counter moving over a window of readings is the idle leftover."""
    if batch is not None or before is None or not now.running_requests:
        return now
    same = now.output_tokens_total is not None and now.output_tokens_total == before.output_tokens_total
    if not same or now.running_requests != before.running_requests:
        return now
    traps.append(_trap("IdleGaugesStale"))
    return replace(now, running_requests=0.0)


def _with_speculation(
    now: SchedulerReading, before: SchedulerReading | None, exposition: Exposition, traps: list[Trap]
) -> SchedulerReading:
    """K = tokens drafted / requests drafted for; requests = accepted / (acceptance length - 1) over one window."""
    info = exposition.values(_PREFIX + "speculative_config_info")
    acceptance = _value(exposition, _PREFIX + "spec_decode_acceptance_length")
    if not info and now.draft_tokens_total is None and acceptance is None:
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    if info:
        traps.append(_trap("ConfigInfoDoesNotFollow"))
    if now.running_requests == 0:
        reason = "stale: no request runs"
        return replace(now, unknown={**now.unknown, "draft_tokens": reason, "acceptance_length": reason})
    if acceptance == 0.0:
        traps.append(_trap("DraftOffBySchedule"))
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    drafted, accepted = _grown(now, before, "draft_tokens_total"), _grown(now, before, "accepted_tokens_total")
    if drafted and accepted and acceptance is not None and acceptance > 1:
        return replace(now, draft_tokens=drafted * (acceptance - 1) / accepted, acceptance_length=acceptance)
    reason = "unknown: needs two readings with drafts between them"
    unknown = {**now.unknown, "draft_tokens": reason}
    if acceptance is None:
        unknown["acceptance_length"] = "absent: not reported yet"
    return replace(now, acceptance_length=acceptance, unknown=unknown)


def _grown(now: SchedulerReading, before: SchedulerReading | None, name: str) -> float | None:
    new, old = getattr(now, name), getattr(before, name) if before is not None else None
    return None if new is None or old is None or new < old else float(new - old)


def _by_position(exposition: Exposition) -> tuple[float, ...] | None:
    rows = {
        int(sample.labels["token_position"]): sample.value
        for sample in exposition.values(_PREFIX + "spec_decode_accepted_tokens_total")
        if sample.labels.get("token_position", "").isdigit()
    }
    return tuple(rows[position] for position in sorted(rows)) or None


def _triton(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    """Classic inflight batcher; no acceptance anywhere."""

    def request(kind: str) -> float | None:
        return _value(exposition, "nv_trt_llm_request_metrics", request_type=kind)

    def block(kind: str) -> float | None:
        return _value(exposition, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)

    scheduled, active = request("scheduled"), request("active")
    running = scheduled if scheduled is not None else active
    waiting = request("waiting")
    if waiting is None and active is not None and scheduled is not None:
        waiting = active - scheduled
    limit, used, most = request("max"), block("used"), block("max")
    if active is not None and limit and active >= limit:
        traps.append(_trap("WaitingIsSeenUpToMax"))
    usage = used / most if used is not None and most else block("fraction")
    per_block = block("tokens_per")
    reason = "absent: Triton serves no acceptance"
    return SchedulerReading(
        "0",
        running_requests=running,
        waiting_requests=waiting,
        max_running_requests=limit or None,
        kv_usage=usage,
        kv_capacity_tokens=most * per_block if most and per_block else None,
        unknown={"draft_tokens": reason, "acceptance_length": reason},
    )


def _nim(exposition: Exposition) -> SchedulerReading:
    reason = "absent: NIM 1.x serves no speculation series"
    return SchedulerReading(
        "0",
        running_requests=_value(exposition, "num_requests_running"),
        waiting_requests=_value(exposition, "num_requests_waiting"),
        max_running_requests=_value(exposition, "num_request_max") or None,
        kv_usage=_value(exposition, "gpu_cache_usage_perc"),
        output_tokens_total=_value(exposition, "generation_tokens_total"),
        unknown={"draft_tokens": reason, "acceptance_length": reason},
    )


def _dynamo_only(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    traps.append(_trap("PublishMetricsOff"))
    reason = "absent: start the worker with --publish-metrics"
    return SchedulerReading(
        "0",
        running_requests=_value(exposition, "dynamo_component_inflight_requests"),
        kv_usage=_value(exposition, "dynamo_component_gpu_cache_usage_percent"),
        unknown={"waiting_requests": reason, "draft_tokens": reason, "acceptance_length": reason},
    )


def _unprefixed(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    traps.append(_trap("NoBatchGauge"))
    reason = "absent: TensorRT-LLM 1.0 and 1.1 serve no batch gauge"
    return SchedulerReading(
        "0",
        time_per_output_token_seconds_sum=_value(exposition, "time_per_output_token_seconds_sum"),
        time_per_output_token_count=_value(exposition, "time_per_output_token_seconds_count"),
        time_to_first_token_seconds_sum=_value(exposition, "time_to_first_token_seconds_sum"),
        time_to_first_token_count=_value(exposition, "time_to_first_token_seconds_count"),
        unknown={"running_requests": reason, "waiting_requests": reason, "draft_tokens": reason},
    )


# -- the drained JSON --------------------------------------------------------------------------------------------------


def _iterations(body: bytes) -> list[dict[str, Any]] | None:
    """Iteration records; None when the body is something else. [] is an idle server, or statistics off."""
    if not body.lstrip().startswith(b"["):
        return None
    try:
        records = json.loads(body)
    except ValueError:
        return None
    good = isinstance(records, list) and all(isinstance(r, dict) and "numActiveRequests" in r for r in records)
    return records if good else None


def _from_json(records: Sequence[Mapping[str, Any]], path: str, now_seconds: float) -> PodReading:
    traps = [_trap("DrainedJSON")]
    if not records:
        traps.append(_trap("NoIterations"))
        reason = "unknown: no iteration was recorded since the last GET"
        scheduler = SchedulerReading("0", unknown={"running_requests": reason, "waiting_requests": reason})
        return PodReading(EngineType.TENSORRT_LLM, None, path, now_seconds, (scheduler,), tuple(traps))
    newest = {str(record.get("attentionDpRank", record.get("rank", 0)) or 0): record for record in records}
    schedulers = tuple(_from_record(rank, record, traps) for rank, record in sorted(newest.items()))
    return PodReading(EngineType.TENSORRT_LLM, None, path, now_seconds, schedulers, tuple(dict.fromkeys(traps)))


def _from_record(rank: str, record: Mapping[str, Any], traps: list[Trap]) -> SchedulerReading:
    cache = record.get("kvCacheStats") or {}
    spec = record.get("specDecodingStats")
    running = float(record["numActiveRequests"])
    limit = record.get("maxNumActiveRequests")
    if not record.get("maxBatchSizeStatic", 1):
        traps.append(_trap("StaticLimitsAreZero"))
    draft, acceptance = _spec_of_record(spec, traps)
    most, used = cache.get("maxNumBlocks"), cache.get("usedNumBlocks")
    waiting = record.get("numQueuedRequests")
    if waiting == 0 and limit and running >= 0.95 * limit:
        traps.append(_trap("QueueUnderReports"))
    return SchedulerReading(
        rank,
        running_requests=running,
        waiting_requests=float(waiting) if waiting is not None else None,
        max_running_requests=float(limit) if limit else None,
        kv_usage=used / most if most and used is not None else None,
        kv_capacity_tokens=float(most * cache.get("tokensPerBlock", 0)) if most else None,
        draft_tokens=draft,
        acceptance_length=acceptance,
        unknown={} if waiting is not None else {"waiting_requests": "absent: queue fields stand on rank 0 only"},
    )


def _spec_of_record(spec: Mapping[str, Any] | None, traps: list[Trap]) -> tuple[float | None, float | None]:
    """One iteration: drafts are deltas; acceptance length 0.0 when nothing was drafted."""
    if spec is None:
        return 0.0, 1.0
    requests = spec.get("numRequestsWithDraftTokens")
    if not requests:
        traps.append(_trap("DraftOffBySchedule"))
        return 0.0, 1.0
    return spec["numDraftTokens"] / requests, float(spec["acceptanceLength"])


def _why(answers: Sequence[Answer]) -> ScrapeFault:
    statuses = {answer.status for answer in answers}
    if statuses & {401, 403}:
        return ScrapeFault.UNAUTHORIZED
    return ScrapeFault.METRICS_OFF if statuses <= {404} else ScrapeFault.HTTP_STATUS


def _status(answers: Sequence[Answer]) -> str | None:
    status = next((answer.status for answer in answers if answer.status not in (0, 200, 404)), None)
    return f"HTTP {status}" if status is not None else None


ENGINE = TensorRTLLM()
