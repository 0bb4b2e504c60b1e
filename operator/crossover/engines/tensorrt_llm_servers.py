"""TensorRT-LLM behind other servers: Triton's inflight batcher, NIM 1.x, a Dynamo worker that does not publish, and the five
unprefixed families of trtllm-serve 1.0 and 1.1."""

from __future__ import annotations

from crossover.api.fleet import SchedulerReading, Trap
from crossover.engines.exposition import Exposition
from crossover.engines.tensorrt_llm_iterations import trap
from crossover.engines.values import number


def value(exposition: Exposition, name: str, **labels: str) -> float | None:
    """Largest finite value over processes and tensor-parallel ranks: they repeat the batch."""
    values = [
        sample.value
        for sample in exposition.values(name)
        if number(sample.value) is not None and all(sample.labels.get(key) == value for key, value in labels.items())
    ]
    return max(values) if values else None


def triton(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    """Classic inflight batcher; no acceptance anywhere."""

    def request(kind: str) -> float | None:
        return value(exposition, "nv_trt_llm_request_metrics", request_type=kind)

    def block(kind: str) -> float | None:
        return value(exposition, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)

    scheduled, active = request("scheduled"), request("active")
    running = scheduled if scheduled is not None else active
    waiting = request("waiting")
    if waiting is None and active is not None and scheduled is not None:
        waiting = active - scheduled
    limit, used, most = request("max"), block("used"), block("max")
    if active is not None and limit and active >= limit:
        traps.append(trap("WaitingIsSeenUpToMax"))
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


def nim(exposition: Exposition) -> SchedulerReading:
    reason = "absent: NIM 1.x serves no speculation series"
    return SchedulerReading(
        "0",
        running_requests=value(exposition, "num_requests_running"),
        waiting_requests=value(exposition, "num_requests_waiting"),
        max_running_requests=value(exposition, "num_request_max") or None,
        kv_usage=value(exposition, "gpu_cache_usage_perc"),
        output_tokens_total=value(exposition, "generation_tokens_total"),
        unknown={"draft_tokens": reason, "acceptance_length": reason},
    )


def dynamo_only(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    traps.append(trap("PublishMetricsOff"))
    reason = "absent: start the worker with --publish-metrics"
    return SchedulerReading(
        "0",
        running_requests=value(exposition, "dynamo_component_inflight_requests"),
        kv_usage=value(exposition, "dynamo_component_gpu_cache_usage_percent"),
        unknown={"waiting_requests": reason, "draft_tokens": reason, "acceptance_length": reason},
    )


def unprefixed(exposition: Exposition, traps: list[Trap]) -> SchedulerReading:
    traps.append(trap("NoBatchGauge"))
    reason = "absent: TensorRT-LLM 1.0 and 1.1 serve no batch gauge"
    return SchedulerReading(
        "0",
        time_per_output_token_seconds_sum=value(exposition, "time_per_output_token_seconds_sum"),
        time_per_output_token_count=value(exposition, "time_per_output_token_seconds_count"),
        time_to_first_token_seconds_sum=value(exposition, "time_to_first_token_seconds_sum"),
        time_to_first_token_count=value(exposition, "time_to_first_token_seconds_count"),
        unknown={"running_requests": reason, "waiting_requests": reason, "draft_tokens": reason},
    )
