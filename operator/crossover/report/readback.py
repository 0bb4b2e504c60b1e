"""The way back: from a ModelAutoscaler's status to the fleet that it speaks of, as far as it tells.

`report.status` shows sums and means, so the pods that come out are all alike; what it does not keep is said in `missing`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crossover.api.decision import DecisionReason, Lever, Memory
from crossover.api.fleet import (
    Capability,
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    ScheduleDialect,
    SchedulerReading,
    SpeculationSettings,
)
from crossover.api.intent import Intent
from crossover.report.texts import ConditionType, Reason

SCHEDULE = {str(Reason.FOLLOWS_SCHEDULE), str(Reason.SCHEDULE_IGNORED), str(DecisionReason.SCHEDULE_NEEDED)}
RESTART = {
    str(Reason.BY_RESTART),
    str(DecisionReason.THRESHOLD_LATCHES),
    str(DecisionReason.THRESHOLD_CYCLES),
}
AS_CONFIGURED = "as configured"
DIALECTS = {
    EngineType.SGLANG: ScheduleDialect.SGLANG_ADAPTIVE,
    EngineType.VLLM: ScheduleDialect.VLLM_BATCH_SIZE_RANGES,
    EngineType.TENSORRT_LLM: ScheduleDialect.TENSORRT_LLM_LOWER_BOUND,
}


@dataclass(frozen=True, slots=True)
class ReadBack:
    """``snapshot`` None = the status speaks of no fleet."""

    snapshot: FleetSnapshot | None
    lever: Lever
    missing: tuple[str, ...]
    """What was put in the place of what status does not keep, for the reader."""


def condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((item for item in status.get("conditions") or [] if item.get("type") == kind), {})
    return found


def newest_seconds(status: Mapping[str, Any]) -> float | None:
    """The newest time in a status: what it says was true then."""
    times = [(status.get("lastDecision") or {}).get("time")]
    times += [item.get("time") for item in status.get("recentDecisions") or []]
    times += [item.get("lastTransitionTime") for item in status.get("conditions") or []]
    return max((datetime.fromisoformat(text).timestamp() for text in times if text), default=None)


def read_back(status: Mapping[str, Any], intent: Intent, memory: Memory, at_seconds: float, stale: float) -> ReadBack:
    """A snapshot that `decide.plan` can be asked about. ``stale``: spec.metrics.staleAfterSeconds."""
    lever = _lever(status)
    fleet = status.get("fleet") or {}
    pods = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", fleet.get("pods", ""))}
    if not pods:
        return ReadBack(None, lever, ("status.fleet is empty: the operator has not seen this fleet yet",))
    engine = next(
        (kind for kind in EngineType if str(fleet.get("engine", "")).startswith(str(kind))), EngineType.SGLANG
    )
    draft = str(fleet.get("draftTokens", ""))
    in_force = int(draft) if draft.isdigit() else None
    settings = _settings(lever, engine, intent, memory, in_force, status)
    known = max(0, pods.get("ready", 0) - pods.get("unknown", 0))
    readings = _readings(fleet, known, in_force, at_seconds, engine)
    able = _capability(lever, engine, intent, settings)
    counts = {PodPhase.READY: "ready", PodPhase.PENDING: "pending", PodPhase.TERMINATING: "terminating"}
    made = []
    for phase, name in counts.items():
        for number in range(pods.get(name, 0)):
            told = phase is PodPhase.READY and number < known and readings is not None
            made.append(_pod(f"{name}-{number}", phase, at_seconds, readings if told else None, able, fleet, known))
    missing = ["pods are taken to be alike: status keeps their sum and mean"]
    if lever is not Lever.NONE:
        missing.append("what the servers can do is taken from the condition SpeculationManaged")
    if intent.replicas.target_running_requests is None and not fleet.get("outputTokensPerSecond"):
        missing.append("the output rate is unknown, so the demand is")
    desired = status.get("replicas")
    mixed = lever is Lever.RESTART and bool(draft) and in_force is None
    if mixed:
        missing.append("pods differ in draft length: a rollout is taken to be in progress")
    snapshot = FleetSnapshot(
        at_seconds,
        desired,
        tuple(made),
        stale_after_seconds=stale,
        rollout_in_progress=mixed,
        settings=settings,
    )
    return ReadBack(snapshot, lever, tuple(missing))


def _lever(status: Mapping[str, Any]) -> Lever:
    reason = condition(status, ConditionType.SPECULATION_MANAGED).get("reason")
    if reason in SCHEDULE:
        return Lever.ENGINE_SCHEDULE
    return Lever.RESTART if reason in RESTART else Lever.NONE


def _settings(
    lever: Lever,
    engine: EngineType,
    intent: Intent,
    memory: Memory,
    in_force: int | None,
    status: Mapping[str, Any],
) -> SpeculationSettings | None:
    """None where speculation is not managed. A schedule is taken to be the one that is wanted: the caller puts it in."""
    if lever is Lever.NONE or intent.speculation is None:
        return None
    full = intent.speculation.max_draft_tokens or _longest_seen(memory) or in_force or None
    if lever is Lever.ENGINE_SCHEDULE:
        return SpeculationSettings(engine, True, AS_CONFIGURED, draft_tokens=full) if full else None
    last = next((change for change in reversed(memory.changes) if change.kind == "draft"), None)
    off = in_force == 0 or (in_force is None and last is not None and last.to_value == 0)
    return SpeculationSettings(engine, not off, AS_CONFIGURED, draft_tokens=None if off else (in_force or full))


def _longest_seen(memory: Memory) -> int:
    values = [
        value for change in memory.changes if change.kind == "draft" for value in (change.from_value, change.to_value)
    ]
    return max((value for value in values if value is not None), default=0)


def _capability(
    lever: Lever, engine: EngineType, intent: Intent, settings: SpeculationSettings | None
) -> Capability | None:
    if settings is None:
        return None
    dialect = DIALECTS[engine] if lever is Lever.ENGINE_SCHEDULE else None
    return Capability(
        engine, None, AS_CONFIGURED, max_draft_tokens=settings.draft_tokens, schedule_dialect=dialect, zero_is_safe=True
    )


def _readings(
    fleet: Mapping[str, Any], known: int, draft: int | None, at_seconds: float, engine: EngineType
) -> PodReading | None:
    """Of one pod; None where the batch is unknown."""
    if not known or fleet.get("runningRequests") is None:
        return None
    total, mean = float(fleet["runningRequests"]), float(fleet.get("meanRunningRequests", 0.0))
    schedulers = max(1, round(total / mean / known)) if mean > 0 else 1
    waiting = fleet.get("waitingRequests")
    each = SchedulerReading(
        "0",
        running_requests=mean,
        waiting_requests=None if waiting is None else waiting / known / schedulers,
        draft_tokens=None if draft is None else float(draft),
    )
    return PodReading(engine, None, "status", at_seconds, (each,) * schedulers)


def _pod(
    name: str,
    phase: PodPhase,
    at_seconds: float,
    reading: PodReading | None,
    able: Capability | None,
    fleet: Mapping[str, Any],
    known: int,
) -> PodObservation:
    rate, length = fleet.get("outputTokensPerSecond"), fleet.get("acceptanceLength")
    tpot = fleet.get("timePerOutputTokenMilliseconds")
    told = reading is not None
    return PodObservation(
        name,
        name,
        phase,
        None,
        None,
        at_seconds - 3600.0,
        reading=reading,
        reading_age_seconds=0.0 if told else None,
        output_tokens_per_second=rate / known if told and rate is not None else None,
        acceptance_length=float(length) if told and length else None,
        time_per_output_token_seconds=tpot / 1000 if told and tpot else None,
        capability=able,
    )
