"""SGLang 0.4.6 to 0.5.23: what it shows. What it accepts is in `sglang_settings`.

`GET /v1/loads` (0.5.8 and later) is fresher than the gauges and works without --enable-metrics, but does not tell the
draft length in force; /metrics does. Both are read where both answer.
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
from crossover.engines import sglang_settings as settings
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
from crossover.engines.sglang_metrics import (
    WANTED,
    Ranks,
    fold,
    once,
    scheduler_of,
    trap,
    with_latency,
    with_progress,
    without_batch,
)
from crossover.engines.sglang_server import SGLangRunningCap, capability_of_server
from crossover.engines.values import document, number

LOADS = "/v1/loads?include=core,spec,queues,disagg"
METRICS = "/metrics"
FORCED_LENGTH = "SGLANG_SIMULATE_ACC_LEN"
"""Bonus token included. Builds before the prefix ignore it."""
FORCED_HOW = {"SGLANG_SIMULATE_ACC_METHOD": "match-expected", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}
"""The mean is kept exactly, and detokenizing costs what it does in production (the other mode repeats one token)."""


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
            info = document(answer.body)
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
        ranks = fold(exposition) if exposition is not None else Ranks({}, (), False)
        if loads is not None:
            return self._from_loads(loads, ranks, exposition, version, now_seconds)
        assert exposition is not None
        return with_progress(self._from_metrics(ranks, exposition, version, now_seconds), previous)

    def _from_loads(
        self,
        loads: Sequence[Mapping[str, Any]],
        ranks: Ranks,
        exposition: Exposition | None,
        version: str | None,
        now_seconds: float,
    ) -> PodReading:
        schedulers, traps = [], list(ranks.traps)
        for load in loads:
            rank = str(load.get("dp_rank", 0))
            gauges = ranks.values.get(rank) or (ranks.values.get("") if len(loads) == 1 else None) or {}
            scheduler, found = scheduler_of(rank, gauges, exposition is not None)
            scheduler = _with_load(scheduler, load)
            if not gauges:
                found += _lifetime_acceptance(load)
            gauge = gauges.get("num_running_reqs")
            if gauge is not None and scheduler.running_requests is not None and gauge != scheduler.running_requests:
                traps.append(trap("GaugesLagBehindLoads"))
            traps += [*found, *_stuck(scheduler), *_role_of_load(load)]
            schedulers.append(scheduler)
        schedulers = with_latency(schedulers, exposition)
        if any(scheduler.running_requests is None for scheduler in schedulers):
            return PodReading(
                self.type, version, "/v1/loads", now_seconds, traps=once(traps), fault=ScrapeFault.INVALID_VALUES
            )
        return PodReading(self.type, version, "/v1/loads", now_seconds, tuple(schedulers), once(traps))

    def _from_metrics(
        self, ranks: Ranks, exposition: Exposition, version: str | None, now_seconds: float
    ) -> PodReading:
        traps = list(ranks.traps)
        if ranks.pipeline:
            traps.append(trap("PipelineRanks"))
        schedulers = []
        for rank, gauges in sorted(ranks.values.items()):
            if "num_running_reqs" not in gauges and len(ranks.values) > 1:
                continue
            scheduler, found = scheduler_of(rank, gauges, True)
            if "num_running_reqs" not in gauges:
                traps.append(trap("AbsentBeforeFirstReport"))
            if ranks.pipeline:
                scheduler = without_batch(scheduler, "unknown: pipeline ranks report their own micro-batches")
            if ranks.mixed:
                scheduler = without_batch(scheduler, "unknown: the series of several engines are mixed")
            traps += [*found, *_stuck(scheduler)]
            schedulers.append(scheduler)
        if not schedulers:
            traps.append(trap("AbsentBeforeFirstReport"))
            reason = "absent: the scheduler has not reported yet"
            schedulers = [SchedulerReading("dp0", unknown={"running_requests": reason, "waiting_requests": reason})]
        elif all(math.isnan(gauges.get("num_running_reqs", 0.0)) for gauges in ranks.values.values()):
            return PodReading(self.type, version, METRICS, now_seconds, fault=ScrapeFault.INVALID_VALUES)
        return PodReading(
            self.type, version, METRICS, now_seconds, tuple(with_latency(schedulers, exposition)), once(traps)
        )

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        described = document(info.body) if info is not None and info.status == 200 else None
        if isinstance(described, dict) and "speculative_algorithm" in described:
            return capability_of_server(described)
        return settings.capability_of_container(container, files or {}) if container is not None else None

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
        return change.with_env({FORCED_LENGTH: f"{wanted.forced_acceptance_length:.6g}", **FORCED_HOW})


# -- reading -----------------------------------------------------------------------------------------------------------


def _loads(answer: Answer) -> list[dict[str, Any]] | None:
    body = document(answer.body)
    loads = body.get("loads") if isinstance(body, dict) else None
    if not isinstance(loads, list) or not loads or not all(isinstance(load, dict) for load in loads):
        return None
    return loads if all("num_running_reqs" in load for load in loads) else None


def _version(answer: Answer | None) -> str | None:
    body = document(answer.body) if answer is not None else None
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
        value = number(load.get(key))
        if value is not None:
            values[field] = value
            unknown.pop(field, None)
        elif field in ("running_requests", "waiting_requests"):
            values[field] = None
            unknown[field] = "invalid: not a number"
    if values.get("running_requests") == 0 and scheduler.draft_tokens is not None:
        values |= {"draft_tokens": None, "acceptance_length": None, "speculated_share": None}
        unknown["draft_tokens"] = unknown["acceptance_length"] = "stale: no request runs"
    return replace(scheduler, unknown=unknown, **values)  # type: ignore[arg-type]


def _role_of_load(load: Mapping[str, Any]) -> list[Trap]:
    """num_waiting_reqs of /v1/loads already holds the queues of disaggregation."""
    role = load.get("disaggregation")
    return [trap("PrefillRole")] if isinstance(role, dict) and role.get("mode") == "prefill" else []


def _lifetime_acceptance(load: Mapping[str, Any]) -> list[Trap]:
    return [trap("LifetimeAcceptance")] if isinstance(load.get("speculative"), dict) else []


def _stuck(scheduler: SchedulerReading) -> list[Trap]:
    deep = scheduler.running_requests == 0 and (scheduler.waiting_requests or 0) > 0
    return [trap("QueueWithoutBatch")] if deep else []


ENGINE = SGLang()
