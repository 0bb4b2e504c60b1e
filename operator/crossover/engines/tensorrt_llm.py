"""TensorRT-LLM 1.0 to 1.3 in its servers: trtllm-serve, a Dynamo worker, NIM 1.x, Triton. What it shows.

trtllm-serve answers two ways: `/prometheus/metrics` (with return_perf_metrics), and `/metrics`, a JSON list that each GET
takes away from everybody else. The second is never asked for; a file of it can be inspected. `/metrics` of a Dynamo worker
is asked for only after a path that trtllm-serve does not have has answered. Triton's port of metrics answers nothing but
`/metrics` and `/metrics/`, and trtllm-serve redirects the second to the first, which is not followed.
"""

from __future__ import annotations

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
from crossover.engines.contract import (
    Answer,
    ConfigFile,
    ContainerEdit,
    Models,
    RunningCap,
    Schedule,
    WantedSpeculation,
)
from crossover.engines.exposition import Exposition, NotExposition, scan
from crossover.engines.tensorrt_llm_iterations import from_json, iterations, trap
from crossover.engines.tensorrt_llm_servers import dynamo_only, nim, triton, unprefixed, value
from crossover.engines.values import count, document, mapping

PROMETHEUS = "/prometheus/metrics"
TRITON = "/metrics/"
SERVER_INFO = "/server_info"
FORCED_DRAFTS = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
"""Accepted draft tokens, bonus token not counted. Builds that read whole numbers only ignore a fraction, with a warning."""

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
    "e2e_request_latency_seconds_sum",
    "e2e_request_latency_seconds_count",
    "parallel_config_info",
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
    "dynamo_component_requests_total",
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


class TensorRTLLM:
    """The `Engine` contract for TensorRT-LLM. Stateless."""

    type = EngineType.TENSORRT_LLM
    default_port = 8000
    info_paths: tuple[str, ...] = ("/version",)
    running_cap: RunningCap | None = None

    def load_paths(self, capability: Capability | None) -> tuple[tuple[str, ...], ...]:
        return ((PROMETHEUS,), ("/v1/metrics",), ("/live", "/metrics"), (TRITON,))

    def recognises(self, answer: Answer) -> bool:
        if answer.status != 200:
            return False
        body = answer.body
        if answer.path.startswith(SERVER_INFO):
            return _described(body)
        if "metrics" in answer.path and iterations(body) is not None:
            return True
        if b"vllm:" in body or b"sglang:" in body:
            return False
        marks = (
            b"trtllm_",
            b"nv_trt_llm",
            b"num_request_max",
            b"\nrequest_queue_time_seconds_count",
            b'dynamo_component="tensorrt_llm"',
            b"nv_inference_",
        )
        return any(mark in body for mark in marks)

    def read(self, answers: Sequence[Answer], now_seconds: float, previous: PodReading | None) -> PodReading:
        answer = next((a for a in reversed(answers) if a.status == 200 and "metrics" in a.path), None)
        if answer is None:
            return PodReading(None, None, PROMETHEUS, now_seconds, fault=_why(answers), fault_detail=_status(answers))
        records = iterations(answer.body)
        if records is not None:
            return from_json(records, answer.path, now_seconds)
        try:
            exposition = scan(answer.body, WANTED)
        except NotExposition:
            return PodReading(None, None, answer.path, now_seconds, fault=ScrapeFault.NOT_METRICS)
        return _from_exposition(exposition, answer, now_seconds, previous)

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        body = mapping(document(info.body)) if info is not None and info.status == 200 else {}
        told = settings.capability(body.get("version"), container, files or {})
        limit = count(body.get("max_batch_size"))
        if limit is None:
            return told
        return replace(told or Capability(self.type, None, None), max_running_requests=limit)

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
        change = settings.edit(container, files, wanted, capability, removed)
        if wanted.forced_acceptance_length is None:
            return change
        return change.with_env({FORCED_DRAFTS: f"{wanted.forced_acceptance_length - 1:.6g}"})


def _described(body: bytes) -> bool:
    """Its /server_info, which shares the path with SGLang's."""
    return {"max_batch_size", "disaggregated_params"} <= set(mapping(document(body)))


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
        scheduler = triton(exposition, traps)
    elif exposition.values("num_request_max"):
        scheduler = nim(exposition)
    elif exposition.values("dynamo_component_inflight_requests"):
        scheduler = dynamo_only(exposition, traps)
    elif exposition.values("request_queue_time_seconds_count") and b"vllm:" not in answer.body:
        scheduler = unprefixed(exposition, traps)
    elif exposition.values("nv_inference_request_success"):
        traps.append(trap("TritonLLMAPIHasNoSensor"))
    if scheduler is None:
        fault = ScrapeFault.METRICS_OFF if traps or not exposition.names_seen else ScrapeFault.WRONG_ENGINE
        return PodReading(
            EngineType.TENSORRT_LLM if traps else None, None, answer.path, now_seconds, traps=tuple(traps), fault=fault
        )
    reading = PodReading(
        EngineType.TENSORRT_LLM, None, answer.path, now_seconds, (scheduler,), tuple(dict.fromkeys(traps))
    )
    return _with_stillness(reading, previous, exposition)


def _serve(exposition: Exposition, before: SchedulerReading | None, traps: list[Trap]) -> SchedulerReading:
    """trtllm-serve and a publishing Dynamo worker."""

    def gauge(name: str) -> float | None:
        return value(exposition, _PREFIX + name)

    unknown: dict[str, str] = {}
    batch = gauge("scheduled_batch_size")
    if batch is not None and _has_pipeline(exposition):
        traps.append(trap("PipelineMicroBatch"))
        batch = None
    running = _occupancy(batch, gauge, traps)
    traps += _duplicates(exposition)
    if batch is None and running:
        traps.append(trap("GaugesMoveWhenRequestsEnd"))
    if running is None:
        unknown["running_requests"] = "absent: no iteration has been published (enable_iter_perf_stats?)"
    waiting = gauge("num_requests_waiting")
    limit = gauge("max_num_active_requests")
    if waiting == 0 and limit and running is not None and running >= 0.95 * limit:
        traps.append(trap("QueueUnderReports"))
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
        output_tokens_total=gauge("generation_tokens_total"),
        draft_tokens_total=gauge("spec_decode_num_draft_tokens_total"),
        accepted_tokens_total=gauge("spec_decode_num_accepted_tokens_total"),
        drafts_total=value(exposition, _PREFIX + "spec_decode_drafted_tokens_total", **{"token_position": "0"}),
        accepted_tokens_by_position_total=_by_position(exposition),
        time_per_output_token_seconds_sum=gauge("time_per_output_token_seconds_sum"),
        time_per_output_token_count=gauge("time_per_output_token_seconds_count"),
        time_to_first_token_seconds_sum=gauge("time_to_first_token_seconds_sum"),
        time_to_first_token_count=gauge("time_to_first_token_seconds_count"),
        unknown=unknown,
    )
    return _with_speculation(_with_idle(scheduler, exposition, traps), before, exposition, traps)


def _occupancy(batch: float | None, gauge: Any, traps: list[Trap]) -> float | None:
    """scheduled_batch_size is cheap and reset at idle; then requests of the step; then those running."""
    if batch is not None:
        running = gauge("num_requests_running")
        if batch == 0 and running:
            traps.append(trap("IdleGaugesStale"))
        return batch
    generation = gauge("num_generation_requests")
    if generation is not None:
        return float(generation + (gauge("num_context_requests") or 0.0))
    running = gauge("num_requests_running")
    return None if running is None else float(running)


def _has_pipeline(exposition: Exposition) -> bool:
    """Then scheduled_batch_size is one micro-batch of several."""
    sizes = [s.labels.get("pipeline_parallel_size", "1") for s in exposition.values(_PREFIX + "parallel_config_info")]
    return any(size.isdigit() and int(size) > 1 for size in sizes)


def _duplicates(exposition: Exposition) -> list[Trap]:
    """Ranks that repeat one batch, ranks that each have their own, and series of a worker that is gone."""
    found = []
    batches = exposition.values(_PREFIX + "scheduled_batch_size")
    if len(batches) > 1:
        same = len({sample.value for sample in batches}) == 1
        found.append(trap("TensorParallelDuplicates" if same else "AttentionDPRanks"))
    if len({sample.value for sample in exposition.values(_PREFIX + "num_requests_running")}) > 1:
        found.append(trap("ProcessesDisagree"))
    return found


def _with_idle(now: SchedulerReading, exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    """Dynamo counts requests in flight itself: none there, and the gauge of the engine is a leftover."""
    in_flight = value(exposition, "dynamo_component_inflight_requests")
    if in_flight != 0 or not now.running_requests:
        return now
    traps.append(trap("IdleGaugesStale"))
    return replace(now, running_requests=0.0)


IDLE_SECONDS = 60.0
LIFETIMES = 3.0
"""Gauges and counters move only when a request ends, so nothing moves during one long answer either. Only after this many
mean request lifetimes, and a minute at least, is silence the end of traffic."""


def _with_stillness(now: PodReading, previous: PodReading | None, exposition: Exposition) -> PodReading:
    """Without scheduled_batch_size, which is reset at idle, silence has to tell that the running gauge is a leftover."""
    if exposition.values(_PREFIX + "scheduled_batch_size") and not _has_pipeline(exposition):
        return now
    if previous is None or len(now.schedulers) != 1 or len(previous.schedulers) != 1:
        return now
    new, old = now.schedulers[0], previous.schedulers[0]
    if (
        not new.running_requests
        or new.output_tokens_total is None
        or new.output_tokens_total != old.output_tokens_total
    ):
        return now
    since = previous.still_since_seconds
    since = previous.observed_at_seconds if since is None else since
    now = replace(now, still_since_seconds=since)
    if now.observed_at_seconds - since < max(IDLE_SECONDS, LIFETIMES * _lifetime_seconds(exposition)):
        return now
    return replace(
        now,
        schedulers=(replace(new, running_requests=0.0),),
        traps=tuple(dict.fromkeys([*now.traps, trap("IdleGaugesStale")])),
    )


def _lifetime_seconds(exposition: Exposition) -> float:
    """Mean over all requests so far; 0 where it is not told."""
    total = value(exposition, f"{_PREFIX}e2e_request_latency_seconds_sum")
    count = value(exposition, f"{_PREFIX}e2e_request_latency_seconds_count")
    return total / count if total is not None and count else 0.0


def _with_speculation(
    now: SchedulerReading, before: SchedulerReading | None, exposition: Exposition, traps: list[Trap]
) -> SchedulerReading:
    """From counters over two readings where they tell by position: K = tokens drafted / requests drafted for, acceptance
    length = 1 + accepted / requests drafted for. The acceptance gauge is one iteration's, so K from it is rough."""
    info = exposition.values(_PREFIX + "speculative_config_info")
    acceptance = value(exposition, _PREFIX + "spec_decode_acceptance_length")
    if not info and now.draft_tokens_total is None and acceptance is None:
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    if info:
        traps.append(trap("ConfigInfoDoesNotFollow"))
    if now.running_requests == 0:
        reason = "stale: no request runs"
        return replace(now, unknown={**now.unknown, "draft_tokens": reason, "acceptance_length": reason})
    drafted, accepted = _grown(now, before, "draft_tokens_total"), _grown(now, before, "accepted_tokens_total")
    drafts = _grown(now, before, "drafts_total")
    if drafts and drafted and accepted is not None:
        return replace(now, draft_tokens=drafted / drafts, acceptance_length=1 + accepted / drafts)
    if acceptance == 0.0 and not drafted and value(exposition, _PREFIX + "num_generation_requests") != 0.0:
        traps.append(trap("DraftOffBySchedule"))
        return replace(now, draft_tokens=0.0, acceptance_length=1.0, speculated_share=0.0)
    if drafted and accepted and acceptance is not None and acceptance > 1:
        return replace(now, draft_tokens=drafted * (acceptance - 1) / accepted, acceptance_length=acceptance)
    reason = "unknown: needs two readings with drafts between them"
    unknown = {**now.unknown, "draft_tokens": reason}
    if not acceptance:
        unknown["acceptance_length"] = (
            "absent: not reported yet" if acceptance is None else "unknown: nothing was drafted"
        )
    return replace(now, acceptance_length=acceptance or None, unknown=unknown)


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


def _why(answers: Sequence[Answer]) -> ScrapeFault:
    statuses = {answer.status for answer in answers}
    if statuses & {401, 403}:
        return ScrapeFault.UNAUTHORIZED
    return ScrapeFault.METRICS_OFF if statuses <= {404} else ScrapeFault.HTTP_STATUS


def _status(answers: Sequence[Answer]) -> str | None:
    status = next((answer.status for answer in answers if answer.status not in (0, 200, 404)), None)
    return f"HTTP {status}" if status is not None else None


ENGINE = TensorRTLLM()
