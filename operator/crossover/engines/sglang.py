"""SGLang 0.4.6 to 0.5.23: what it shows. What it accepts is in `sglang_settings`.

`GET /v1/loads` (0.5.8 and later) is fresher than the gauges and works without --enable-metrics, but does not tell the
draft length in force; /metrics does. Both are read where both answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from crossover.engines import sglang_settings as settings
from crossover.engines.contract import Answer, ConfigFile, ContainerEdit, RunningCap, Schedule, WantedSpeculation
from crossover.engines.exposition import Exposition, NotExposition, Sample, scan
from crossover.engines.sglang_server import SGLangRunningCap, capability_of_server

LOADS = "/v1/loads?include=core,spec,queues,disagg"
METRICS = "/metrics"

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
WANTED = frozenset(_PREFIX + name for name in (*_GAUGES, *_TOKENIZER, "realtime_tokens_total"))

SPECULATIVE_DEFAULT_MAX_RUNNING = 48
"""What an unset --max-running-requests becomes with any speculative algorithm."""

TRAPS = {
    "StaleSpeculationGauges": "no request runs: the speculation gauges keep their last value and are ignored",
    "PriorityDuplicates": 'series with a priority repeat the total (priority=""); only the total is read',
    "TensorParallelDuplicates": "every tensor-parallel rank repeats the batch; the largest is read",
    "PipelineRanks": "each pipeline rank reports its own micro-batch: the batch is unknown without /v1/loads",
    "GaugesLagBehindLoads": "/metrics lags behind /v1/loads by up to 40 decode steps; the load is read from /v1/loads",
    "QueueWithoutBatch": "requests wait while none runs: the scheduler looks stuck, not idle",
    "AbsentBeforeFirstReport": "no scheduler gauge yet: the batch is unknown, not zero",
    "DraftOffBySchedule": "the engine's schedule has set draft length 0; acceptance length 1 means off, not a bad draft",
    "LifetimeAcceptance": "the acceptance length of /v1/loads is a mean since the process started",
}


def _trap(code: str) -> Trap:
    return Trap(code, TRAPS[code])


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Gauge values per data-parallel rank, duplicates folded."""

    values: Mapping[str, Mapping[str, float]]
    """rank -> gauge -> value."""
    traps: tuple[Trap, ...]
    pipeline: bool


class SGLang:
    """The `Engine` contract for SGLang. Stateless."""

    type = EngineType.SGLANG
    default_port = 30000
    info_paths: tuple[str, ...] = ("/server_info", "/get_server_info")
    running_cap: RunningCap | None = SGLangRunningCap()

    def load_paths(self, capability: Capability | None) -> tuple[tuple[str, ...], ...]:
        return ((LOADS, METRICS), (METRICS,))

    def recognises(self, answer: Answer) -> bool:
        if answer.status != 200:
            return False
        if answer.path.startswith("/v1/loads"):
            return _loads(answer) is not None
        if answer.path.startswith(("/server_info", "/get_server_info")):
            info = _json(answer.body)
            return isinstance(info, dict) and "launch_command" in info and "attention_backend" in info
        return b"\nsglang:" in answer.body or answer.body.startswith(b"sglang:")

    def read(self, answers: Sequence[Answer], now_seconds: float, previous: PodReading | None) -> PodReading:
        loads_answer = next((a for a in answers if a.path.startswith("/v1/loads") and a.status == 200), None)
        metrics_answer = next((a for a in answers if a.path.startswith("/metrics") and a.status == 200), None)
        loads = _loads(loads_answer) if loads_answer is not None else None
        version = _version(loads_answer)
        exposition, fault = _scan(metrics_answer)
        if loads is None and exposition is None:
            source = (loads_answer or metrics_answer or Answer(METRICS, 0, b"")).path.partition("?")[0]
            return _faulty(fault or _why_nothing(answers), source, now_seconds, answers)
        ranks = _fold(exposition) if exposition is not None else _Ranks({}, (), False)
        if loads is not None:
            return self._from_loads(loads, ranks, exposition, version, now_seconds)
        assert exposition is not None
        return self._from_metrics(ranks, exposition, version, now_seconds)

    def _from_loads(
        self,
        loads: Sequence[Mapping[str, Any]],
        ranks: _Ranks,
        exposition: Exposition | None,
        version: str | None,
        now_seconds: float,
    ) -> PodReading:
        schedulers, traps = [], list(ranks.traps)
        for load in loads:
            rank = str(load.get("dp_rank", 0))
            gauges = ranks.values.get(rank) or (ranks.values.get("") if len(loads) == 1 else None) or {}
            scheduler, found = _scheduler(rank, gauges, exposition is not None)
            scheduler = _with_load(scheduler, load)
            if not gauges:
                found += _lifetime_acceptance(load)
            gauge = gauges.get("num_running_reqs")
            if gauge is not None and scheduler.running_requests is not None and gauge != scheduler.running_requests:
                traps.append(_trap("GaugesLagBehindLoads"))
            traps += [*found, *_stuck(scheduler)]
            schedulers.append(scheduler)
        schedulers = _with_latency(schedulers, exposition)
        if any(scheduler.running_requests is None for scheduler in schedulers):
            return PodReading(
                self.type, version, "/v1/loads", now_seconds, traps=_once(traps), fault=ScrapeFault.INVALID_VALUES
            )
        return PodReading(self.type, version, "/v1/loads", now_seconds, tuple(schedulers), _once(traps))

    def _from_metrics(
        self, ranks: _Ranks, exposition: Exposition, version: str | None, now_seconds: float
    ) -> PodReading:
        traps = list(ranks.traps)
        if ranks.pipeline:
            traps.append(_trap("PipelineRanks"))
        schedulers = []
        for rank, gauges in sorted(ranks.values.items()):
            if "num_running_reqs" not in gauges and len(ranks.values) > 1:
                continue
            if "num_running_reqs" not in gauges:
                traps.append(_trap("AbsentBeforeFirstReport"))
            scheduler, found = _scheduler(rank, gauges, True)
            if ranks.pipeline:
                reason = "unknown: pipeline ranks report their own micro-batches"
                scheduler = replace(
                    scheduler, running_requests=None, unknown={**scheduler.unknown, "running_requests": reason}
                )
            traps += [*found, *_stuck(scheduler)]
            schedulers.append(scheduler)
        if not schedulers:
            traps.append(_trap("AbsentBeforeFirstReport"))
            reason = "absent: the scheduler has not reported yet"
            schedulers = [SchedulerReading("dp0", unknown={"running_requests": reason, "waiting_requests": reason})]
        elif all(math.isnan(gauges.get("num_running_reqs", 0.0)) for gauges in ranks.values.values()):
            return PodReading(self.type, version, METRICS, now_seconds, fault=ScrapeFault.INVALID_VALUES)
        return PodReading(
            self.type, version, METRICS, now_seconds, tuple(_with_latency(schedulers, exposition)), _once(traps)
        )

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        described = _json(info.body) if info is not None and info.status == 200 else None
        if isinstance(described, dict) and "speculative_algorithm" in described:
            return capability_of_server(described)
        return settings.capability_of_container(container) if container is not None else None

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


# -- reading -----------------------------------------------------------------------------------------------------------


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, UnicodeDecodeError, RecursionError):
        return None


def _loads(answer: Answer) -> list[dict[str, Any]] | None:
    body = _json(answer.body)
    loads = body.get("loads") if isinstance(body, dict) else None
    if not isinstance(loads, list) or not loads or not all(isinstance(load, dict) for load in loads):
        return None
    return loads if all("num_running_reqs" in load for load in loads) else None


def _version(answer: Answer | None) -> str | None:
    body = _json(answer.body) if answer is not None else None
    version = body.get("version") if isinstance(body, dict) else None
    return version[:64] if isinstance(version, str) else None


def _scan(answer: Answer | None) -> tuple[Exposition | None, ScrapeFault | None]:
    """The exposition when it is SGLang's, else what is wrong with it."""
    if answer is None:
        return None, None
    try:
        exposition = scan(answer.body, WANTED)
    except NotExposition:
        return None, ScrapeFault.NOT_METRICS
    if not exposition.samples and exposition.names_seen and b"sglang:" not in answer.body:
        return None, ScrapeFault.WRONG_ENGINE
    return (exposition, None) if exposition.names_seen else (None, ScrapeFault.METRICS_OFF)


def _why_nothing(answers: Sequence[Answer]) -> ScrapeFault:
    statuses = {answer.status for answer in answers}
    if statuses & {401, 403}:
        return ScrapeFault.UNAUTHORIZED
    if statuses == {404}:
        return ScrapeFault.METRICS_OFF
    if 200 in statuses:
        return ScrapeFault.NOT_METRICS
    return ScrapeFault.HTTP_STATUS


def _faulty(fault: ScrapeFault, source: str, now_seconds: float, answers: Sequence[Answer]) -> PodReading:
    status = next((answer.status for answer in answers if answer.status not in (0, 200)), None)
    detail = f"HTTP {status}" if fault is ScrapeFault.HTTP_STATUS and status else None
    return PodReading(None, None, source, now_seconds, fault=fault, fault_detail=detail)


def _fold(exposition: Exposition) -> _Ranks:
    """One value per data-parallel rank and gauge: the priority total, the largest over tensor-parallel ranks."""
    values: dict[str, dict[str, float]] = {}
    traps: list[Trap] = []
    pipeline_ranks = set()
    for name in _GAUGES:
        for sample in exposition.values(_PREFIX + name):
            labels = sample.labels
            if labels.get("priority"):
                traps.append(_trap("PriorityDuplicates"))
                continue
            if name == "num_running_reqs":
                pipeline_ranks.add(labels.get("pp_rank", "0"))
            row = values.setdefault(labels.get("dp_rank", ""), {})
            if name in row and labels.get("tp_rank", "0") != "0":
                traps.append(_trap("TensorParallelDuplicates"))
            row[name] = max(row.get(name, sample.value), sample.value)
    for sample in exposition.values(_PREFIX + "realtime_tokens_total"):
        if sample.labels.get("mode") == "decode" and not sample.labels.get("priority"):
            row = values.setdefault(sample.labels.get("dp_rank", ""), {})
            row["decode_tokens_total"] = max(row.get("decode_tokens_total", 0.0), sample.value)
    # A mapping folded to one nameless rank where there is no data parallelism; ranks that only repeat constants go.
    reporting = {rank: row for rank, row in values.items() if "num_running_reqs" in row}
    return _Ranks(reporting or values, _once(traps), len(pipeline_ranks) > 1)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _scheduler(rank: str, gauges: Mapping[str, float], metrics_on: bool) -> tuple[SchedulerReading, list[Trap]]:
    """One rank from its gauges."""
    unknown: dict[str, str] = {}
    traps: list[Trap] = []
    name = f"dp{rank or '0'}"
    running = _number(gauges, "num_running_reqs", unknown, "running_requests", metrics_on)
    waiting = _number(gauges, "num_queue_reqs", unknown, "waiting_requests", metrics_on)
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
            traps.append(_trap("StaleSpeculationGauges"))
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
        traps.append(_trap("DraftOffBySchedule"))
        return 0.0, 1.0
    return tokens - 1, accepted or None


def _with_load(scheduler: SchedulerReading, load: Mapping[str, Any]) -> SchedulerReading:
    """The load from /v1/loads wins over the gauges: it is fresher."""
    unknown = dict(scheduler.unknown)
    fields = {
        "running_requests": "num_running_reqs",
        "waiting_requests": "num_waiting_reqs",
        "max_running_requests": "max_running_requests",
        "kv_usage": "token_usage",
        "kv_tokens": "num_used_tokens",
        "kv_capacity_tokens": "max_total_num_tokens",
    }
    values: dict[str, float | None] = {}
    for field, key in fields.items():
        value = load.get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        if good:
            values[field] = float(value)  # type: ignore[arg-type]
            unknown.pop(field, None)
        elif field in ("running_requests", "waiting_requests"):
            values[field] = None
            unknown[field] = "invalid: not a number"
    if values.get("running_requests") == 0 and scheduler.draft_tokens is not None:
        values |= {"draft_tokens": None, "acceptance_length": None, "speculated_share": None}
        unknown["draft_tokens"] = unknown["acceptance_length"] = "stale: no request runs"
    return replace(scheduler, unknown=unknown, **values)  # type: ignore[arg-type]


def _lifetime_acceptance(load: Mapping[str, Any]) -> list[Trap]:
    return [_trap("LifetimeAcceptance")] if isinstance(load.get("speculative"), dict) else []


def _stuck(scheduler: SchedulerReading) -> list[Trap]:
    deep = scheduler.running_requests == 0 and (scheduler.waiting_requests or 0) > 0
    return [_trap("QueueWithoutBatch")] if deep else []


def _with_latency(schedulers: Sequence[SchedulerReading], exposition: Exposition | None) -> list[SchedulerReading]:
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
    values = [sample.value for sample in samples if math.isfinite(sample.value)]
    return sum(values) if values else None


def _once(traps: Iterable[Trap]) -> tuple[Trap, ...]:
    return tuple(dict.fromkeys(traps))


ENGINE = SGLang()
