"""trtllm-serve's own /metrics: a JSON list of iterations that each GET takes away from everybody else. Never polled; a file of it
can be inspected. Also the traps of all TensorRT-LLM servers, which both forms share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crossover.api.fleet import EngineType, PodReading, SchedulerReading, Trap

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
    try:
        records = json.loads(body)
    except ValueError:
        return None
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
    cache = record.get("kvCacheStats") or {}
    spec = record.get("specDecodingStats")
    running = float(record["numActiveRequests"])
    limit = record.get("maxNumActiveRequests")
    if not record.get("maxBatchSizeStatic", 1):
        traps.append(trap("StaticLimitsAreZero"))
    draft, acceptance = _spec_of_record(spec, traps)
    most, used = cache.get("maxNumBlocks"), cache.get("usedNumBlocks")
    waiting = record.get("numQueuedRequests")
    if waiting == 0 and limit and running >= 0.95 * limit:
        traps.append(trap("QueueUnderReports"))
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
        traps.append(trap("DraftOffBySchedule"))
        return 0.0, 1.0
    return spec["numDraftTokens"] / requests, float(spec["acceptanceLength"])
