"""SGLang's /metrics: one value per data-parallel rank and gauge, duplicates folded, and what is not to be believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crossover.api.fleet import PodReading, SchedulerReading, Trap
from crossover.engines.exposition import Exposition, Sample
from crossover.engines.values import number

_GAUGES = (
    "num_running_reqs",
    "num_queue_reqs",
    "token_usage",
    "num_used_tokens",
    "max_total_num_tokens",
    "gen_throughput",
    "spec_accept_length",
    "spec_num_steps",
    "spec_num_draft_tokens",
)


_PD_QUEUES = (
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_prealloc_queue_reqs",  # its name before 0.5.12
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
)


_TOKENIZER = (
    "generation_tokens_total",
    "request_time_per_output_token_seconds_sum",
    "request_time_per_output_token_seconds_count",
    "time_per_output_token_seconds_sum",
    "time_per_output_token_seconds_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
)


_PREFIX = "sglang:"


WANTED = frozenset(_PREFIX + name for name in (*_GAUGES, *_PD_QUEUES, *_TOKENIZER, "realtime_tokens_total"))


TRAPS = {
    "StaleSpeculationGauges": "no request runs: the speculation gauges keep their last value and are ignored",
    "PriorityDuplicates": 'series with a priority repeat the total (priority=""); only the total is read',
    "TensorParallelDuplicates": "every tensor-parallel rank repeats the batch; the largest is read",
    "PipelineRanks": "each pipeline rank reports its own micro-batch: the batch is unknown without /v1/loads",
    "GaugesLagBehindLoads": "/metrics lags behind /v1/loads by up to 40 decode steps; the load is read from /v1/loads",
    "QueueWithoutBatch": "requests wait while none runs: the scheduler looks stuck, not idle",
    "AbsentBeforeFirstReport": "no scheduler gauge yet: the batch is unknown, not zero",
    "DraftOffBySchedule": "the engine's schedule has set draft length 0; acceptance length 1 means off, not a bad draft",
    "PrefillRole": "a prefill server decodes nothing: its requests are no decode batch, and no draft length concerns them",
    "DisaggregationQueues": "requests also wait for a transfer between prefill and decode; they are counted as waiting",
    "SeveralModels": "several engines write into one metrics folder: their series are mixed, the batch is unknown",
    "NoProgress": "requests run and no token has been decoded since the last reading",
    "StaleGauges": "requests run and no token has been decoded for half a minute: the gauges are stale or the engine hangs",
    "ThroughputAfterIdle": "the first throughput after idle is divided by the idle time too; it is not used",
    "LifetimeAcceptance": "the acceptance length of /v1/loads is a mean since the process started",
}


def trap(code: str) -> Trap:
    return Trap(code, TRAPS[code])


@dataclass(frozen=True, slots=True)
class Ranks:
    """Gauge values per data-parallel rank, duplicates folded."""

    values: Mapping[str, Mapping[str, float]]
    """rank -> gauge -> value."""
    traps: tuple[Trap, ...]
    pipeline: bool
    mixed: bool = False
    """Several models in one exposition."""


def fold(exposition: Exposition) -> Ranks:
    """One value per data-parallel rank and gauge: the priority total, the largest over tensor-parallel ranks."""
    values: dict[str, dict[str, float]] = {}
    traps: list[Trap] = []
    pipeline_ranks, models = set(), set()
    for name in (*_GAUGES, *_PD_QUEUES):
        for sample in exposition.values(_PREFIX + name):
            labels = sample.labels
            models.add(labels.get("model_name"))
            if labels.get("engine_type") == "prefill":
                traps.append(trap("PrefillRole"))
            if labels.get("priority"):
                traps.append(trap("PriorityDuplicates"))
                continue
            if name == "num_running_reqs":
                pipeline_ranks.add(labels.get("pp_rank", "0"))
            row = values.setdefault(labels.get("dp_rank", ""), {})
            if name in row and labels.get("tp_rank", "0") != "0":
                traps.append(trap("TensorParallelDuplicates"))
            value = sample.value if sample.value >= 0 else math.nan
            row[name] = max(row.get(name, value), value)
    for sample in exposition.values(_PREFIX + "realtime_tokens_total"):
        decode = sample.labels.get("mode") == "decode" and not sample.labels.get("priority")
        if decode and number(sample.value) is not None:
            row = values.setdefault(sample.labels.get("dp_rank", ""), {})
            row["decode_tokens_total"] = max(row.get("decode_tokens_total", 0.0), sample.value)
    # A mapping folded to one nameless rank where there is no data parallelism; ranks that only repeat constants go.
    reporting = {rank: row for rank, row in values.items() if "num_running_reqs" in row}
    if len(models) > 1:
        traps.append(trap("SeveralModels"))
    return Ranks(reporting or values, once(traps), len(pipeline_ranks) > 1, len(models) > 1)


def without_batch(scheduler: SchedulerReading, reason: str) -> SchedulerReading:
    return replace(scheduler, running_requests=None, unknown={**scheduler.unknown, "running_requests": reason})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def scheduler_of(rank: str, gauges: Mapping[str, float], metrics_on: bool) -> tuple[SchedulerReading, list[Trap]]:
    """One rank from its gauges."""
    unknown: dict[str, str] = {}
    traps: list[Trap] = []
    name = f"dp{rank or '0'}"
    running = _number(gauges, "num_running_reqs", unknown, "running_requests", metrics_on)
    waiting = _number(gauges, "num_queue_reqs", unknown, "waiting_requests", metrics_on)
    transfers = sum(_finite(gauges.get(queue)) or 0.0 for queue in _PD_QUEUES)
    if waiting is not None and transfers:
        traps.append(trap("DisaggregationQueues"))
        waiting += transfers
    usage = _number(gauges, "token_usage", unknown, "kv_usage", metrics_on)
    draft, acceptance = _speculation(running, gauges, unknown, traps, metrics_on)
    throughput = _number(gauges, "gen_throughput", unknown, "output_tokens_per_second", metrics_on)
    return SchedulerReading(
        name,
        running_requests=running,
        waiting_requests=waiting,
        kv_usage=usage,
        kv_tokens=_finite(gauges.get("num_used_tokens")),
        kv_capacity_tokens=_finite(gauges.get("max_total_num_tokens")),
        draft_tokens=draft,
        acceptance_length=acceptance,
        speculated_share=None if draft is None else float(draft > 0),
        output_tokens_per_second=throughput,
        output_tokens_total=_finite(gauges.get("decode_tokens_total")),
        unknown={**unknown, "max_running_requests": "absent: SGLang has no gauge for it; /v1/loads or /server_info"},
    ), traps


def _number(
    gauges: Mapping[str, float], gauge: str, unknown: dict[str, str], field: str, metrics_on: bool
) -> float | None:
    value = gauges.get(gauge)
    if value is None:
        unknown[field] = "absent: not reported yet" if metrics_on else "absent: /metrics is off"
        return None
    if not math.isfinite(value):
        unknown[field] = "invalid: not a number"
        return None
    return value


def _speculation(
    running: float | None, gauges: Mapping[str, float], unknown: dict[str, str], traps: list[Trap], metrics_on: bool
) -> tuple[float | None, float | None]:
    """(draft length in force, acceptance length). The gauges count verified tokens: K + 1 for chains."""
    tokens, accepted = _finite(gauges.get("spec_num_draft_tokens")), _finite(gauges.get("spec_accept_length"))
    if running == 0:
        if tokens or accepted:
            traps.append(trap("StaleSpeculationGauges"))
        unknown["draft_tokens"] = unknown["acceptance_length"] = "stale: no request runs"
        return None, None
    if tokens is None:
        reason = "absent: this version has no gauge for it" if metrics_on else "absent: /metrics is off"
        unknown["draft_tokens"] = reason
        if not accepted:
            unknown["acceptance_length"] = reason
        return None, accepted or None
    if tokens == 0:
        if not gauges.get("gen_throughput"):
            unknown["draft_tokens"] = unknown["acceptance_length"] = "absent: no decode report yet"
            return None, None
        return 0.0, 1.0
    if tokens == 1:
        traps.append(trap("DraftOffBySchedule"))
        return 0.0, 1.0
    return tokens - 1, accepted or None


STALE_SECONDS = 30.0
"""Up to 0.5.15 the gauges of a server that has become idle stay up for this long."""


def with_progress(now: PodReading, previous: PodReading | None) -> PodReading:
    """Gauges alone do not tell a busy server from one that has just become idle: the decode counter, which moves with
    every step (0.5.8 and later), does."""
    if any(found.code == "PrefillRole" for found in now.traps):
        return now  # it never decodes
    before = {item.name: item for item in previous.schedulers} if previous is not None else {}
    schedulers, traps, still = [], list(now.traps), None
    for item in now.schedulers:
        scheduler = item
        old = before.get(scheduler.name)
        if old is not None and old.running_requests == 0 and scheduler.output_tokens_total is None:
            traps.append(trap("ThroughputAfterIdle"))
            reason = "invalid: divided by the idle time too"
            unknown = {**scheduler.unknown, "output_tokens_per_second": reason}
            scheduler = replace(scheduler, output_tokens_per_second=None, unknown=unknown)
        if previous is not None and old is not None and _stands_still(scheduler, old):
            since = previous.still_since_seconds
            still = previous.observed_at_seconds if since is None else since
            stale = now.observed_at_seconds - still > STALE_SECONDS
            traps.append(trap("StaleGauges" if stale else "NoProgress"))
            if stale:
                scheduler = without_batch(scheduler, "stale: no token has been decoded for half a minute")
        schedulers.append(scheduler)
    return replace(now, schedulers=tuple(schedulers), traps=once(traps), still_since_seconds=still)


def _stands_still(now: SchedulerReading, before: SchedulerReading) -> bool:
    return (
        bool(now.running_requests)
        and now.output_tokens_total is not None
        and (now.output_tokens_total == before.output_tokens_total)
    )


def with_latency(schedulers: Sequence[SchedulerReading], exposition: Exposition | None) -> list[SchedulerReading]:
    """Tokenizer-side series have no rank: they belong to the pod and stand on its first scheduler."""
    if exposition is None or not schedulers:
        return list(schedulers)
    per_token = "request_time_per_output_token_seconds"
    if not exposition.values(f"{_PREFIX}{per_token}_count"):
        per_token = "time_per_output_token_seconds"
    first = replace(
        schedulers[0],
        time_per_output_token_seconds_sum=_pod_total(exposition, f"{per_token}_sum"),
        time_per_output_token_count=_pod_total(exposition, f"{per_token}_count"),
        time_to_first_token_seconds_sum=_pod_total(exposition, "time_to_first_token_seconds_sum"),
        time_to_first_token_count=_pod_total(exposition, "time_to_first_token_seconds_count"),
    )
    if len(schedulers) == 1 and first.output_tokens_total is None:
        first = replace(first, output_tokens_total=_pod_total(exposition, "generation_tokens_total"))
    return [first, *schedulers[1:]]


def _pod_total(exposition: Exposition, name: str) -> float | None:
    """Sum over is_streaming and, where there are only priority series, over priorities."""
    samples = exposition.values(_PREFIX + name)
    totals = [sample for sample in samples if sample.labels.get("priority", "") == ""]
    return _sum(totals or samples)


def _sum(samples: Iterable[Sample]) -> float | None:
    values = [sample.value for sample in samples if number(sample.value) is not None]
    return sum(values) if values else None


def once(traps: Iterable[Trap]) -> tuple[Trap, ...]:
    return tuple(dict.fromkeys(traps))
