"""trtllm-serve's own /metrics: a JSON list of iterations that each GET takes away from everybody else. Never polled; a file of it
can be inspected. Also the traps of all TensorRT-LLM servers, which both forms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossover.api.fleet import EngineType, PodReading, SchedulerReading, Trap
from crossover.engines.values import document, mapping, number

TRAPS = {
    "GaugesMoveWhenRequestsEnd": "iteration gauges move only when a request ends: they lag during long generations",
    "IdleGaugesStale": "the executor publishes nothing when idle: the running gauge keeps its last value and is read as 0",
    "QueueUnderReports": "the waiting gauge counts the intake queue only: requests may wait although it shows 0",
    "DraftOffBySchedule": "acceptance length 0 means that nothing was drafted (the schedule), not that the draft is bad",
    "TensorParallelDuplicates": "every tensor-parallel rank repeats the batch; the largest is read",
    "AttentionDPRanks": "ranks have batches of their own and the gauges carry no rank: the largest batch is read, the last "
    "rank's queue",
    "ProcessesDisagree": "several processes show different values, one of them may be gone: the largest is read",
    "PipelineMicroBatch": "with pipeline parallelism the scheduled batch is one micro-batch: requests that run are read instead",
    "ConfigInfoDoesNotFollow": "speculative_config_info is set at start and does not follow the schedule",
    "StaticLimitsAreZero": "max_batch_size_static is 0 on the PyTorch backend: the limit is max_num_active_requests",
    "NoBatchGauge": "this version serves no batch: 1.0 and 1.1 have five families of request counters and histograms",
    "PublishMetricsOff": "the Dynamo worker runs without --publish-metrics: only requests in flight are known",
    "TritonLLMAPIHasNoSensor": "Triton's LLM API backend publishes no batch, and its queue time stays near 0 whatever waits",
    "DrainedJSON": "each GET of this JSON takes the records away from everybody else: it is never polled",
    "NoIterations": "an empty list: the server is idle, or enable_iter_perf_stats is off",
    "WaitingIsSeenUpToMax": "Triton counts as waiting only requests that are active: beyond max they are invisible",
}


def trap(code: str) -> Trap:
    return Trap(code, TRAPS[code])


def iterations(body: bytes) -> list[dict[str, Any]] | None:
    """Iteration records; None when the body is something else. [] is an idle server, or statistics off."""
    if not body.lstrip().startswith(b"["):
        return None
    records = document(body)
    good = isinstance(records, list) and all(isinstance(r, dict) and "numActiveRequests" in r for r in records)
    return records if good else None


def from_json(records: Sequence[Mapping[str, Any]], path: str, now_seconds: float) -> PodReading:
    traps = [trap("DrainedJSON")]
    if not records:
        traps.append(trap("NoIterations"))
        reason = "unknown: no iteration was recorded since the last GET"
        scheduler = SchedulerReading("0", unknown={"running_requests": reason, "waiting_requests": reason})
        return PodReading(EngineType.TENSORRT_LLM, None, path, now_seconds, (scheduler,), tuple(traps))
    newest = {str(record.get("attentionDpRank", record.get("rank", 0)) or 0): record for record in records}
    schedulers = tuple(_from_record(rank, record, traps) for rank, record in sorted(newest.items()))
    return PodReading(EngineType.TENSORRT_LLM, None, path, now_seconds, schedulers, tuple(dict.fromkeys(traps)))


def _from_record(rank: str, record: Mapping[str, Any], traps: list[Trap]) -> SchedulerReading:
    cache = mapping(record.get("kvCacheStats"))
    running, waiting = number(record.get("numActiveRequests")), number(record.get("numQueuedRequests"))
    limit = number(record.get("maxNumActiveRequests"))
    unknown = {}
    if record.get("maxBatchSizeStatic", 1) == 0:
        traps.append(trap("StaticLimitsAreZero"))
    if running is None:
        unknown["running_requests"] = "invalid: not a number"
    if waiting is None:
        unknown["waiting_requests"] = "absent: queue fields stand on rank 0 only"
    if waiting == 0 and limit and running is not None and running >= 0.95 * limit:
        traps.append(trap("QueueUnderReports"))
    draft, acceptance = _spec_of_record(record.get("specDecodingStats"), traps)
    if draft is None:
        unknown["draft_tokens"] = unknown["acceptance_length"] = "invalid: not a number"
    most, used, per_block = (number(cache.get(key)) for key in ("maxNumBlocks", "usedNumBlocks", "tokensPerBlock"))
    return SchedulerReading(
        rank,
        running_requests=running,
        waiting_requests=waiting,
        max_running_requests=limit or None,
        kv_usage=used / most if most and used is not None else None,
        kv_capacity_tokens=most * per_block if most and per_block else None,
        draft_tokens=draft,
        acceptance_length=acceptance,
        unknown=unknown,
    )


def _spec_of_record(spec: object, traps: list[Trap]) -> tuple[float | None, float | None]:
    """One iteration: drafts are deltas; acceptance length 0.0 when nothing was drafted."""
    if spec is None:
        return 0.0, 1.0
    told = mapping(spec)
    requests, tokens, acceptance = (
        number(told.get(key)) for key in ("numRequestsWithDraftTokens", "numDraftTokens", "acceptanceLength")
    )
    if requests == 0:
        traps.append(trap("DraftOffBySchedule"))
        return 0.0, 1.0
    if requests is None or tokens is None or acceptance is None:
        return None, None
    return tokens / requests, acceptance
