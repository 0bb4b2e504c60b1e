"""Status and Events of a Calibration. Every word of its conditions stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crossover.report.conditions import FALSE, MAX_MESSAGE, TRUE, UNKNOWN, timestamp
from crossover.report.events import MAX_NOTE, NORMAL, WARNING, Event


class Why(StrEnum):
    """Reasons of a Calibration's conditions and Events."""

    MEASURING = "Measuring"
    WAITING_FOR_POD = "WaitingForScratchPod"
    UNSCHEDULABLE = "ScratchPodNotScheduled"
    QUOTA = "QuotaExceeded"
    COMPLETE = "Complete"
    GIVEN = "PointsGiven"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    TARGET_NOT_FOUND = "TargetNotFound"
    TARGET_UNREADABLE = "TargetUnreadable"
    UNKNOWN_SERVER = "CapabilityUnknown"
    CLUSTER = "ClusterUnreachable"
    FORBIDDEN = "Forbidden"
    SECRET = "SecretUnreadable"
    TRACE = "TraceUnusable"
    NEVER_READY = "ScratchPodNeverReady"
    CRASHED = "ScratchPodCrashed"
    REJECTED = "ScratchPodRejected"
    UNUSABLE = "PointsUnusable"
    STALE = "EnvironmentChanged"
    SAME = "EnvironmentUnchanged"
    NOT_MEASURED = "NotMeasuredHere"


@dataclass(frozen=True, slots=True)
class Told:
    """Where a calibration stands. ``reason`` may also be a `Refusal.code` or a measurement's `FailureReason`."""

    ready: str
    running: str
    failed: str
    reason: str
    message: str

    @classmethod
    def running_now(cls, reason: str, message: str) -> Told:
        return cls(FALSE, TRUE, FALSE, reason, message)

    @classmethod
    def waiting(cls, reason: str, message: str) -> Told:
        """Not measuring now, but it goes on by itself when the cause is gone."""
        return cls(FALSE, FALSE, UNKNOWN, reason, message)

    @classmethod
    def done(cls, reason: str, message: str) -> Told:
        return cls(TRUE, FALSE, FALSE, reason, message)

    @classmethod
    def failure(cls, reason: str, message: str) -> Told:
        return cls(FALSE, FALSE, TRUE, reason, message)

    @classmethod
    def stopped(cls, reason: str, message: str) -> Told:
        return cls(FALSE, FALSE, FALSE, reason, message)


@dataclass(frozen=True, slots=True)
class Staleness:
    status: str
    reason: str
    message: str


NOT_MEASURED = Staleness(UNKNOWN, Why.NOT_MEASURED, "nothing has been measured here")
MEASURED_BEFORE = Staleness(
    TRUE, Why.STALE, "the target has changed and is measured again; until then the previous result is in use, with care"
)
STILL_TRUE = Staleness(FALSE, Why.SAME, "the target is as it was when this was measured")


def conditions(
    told: Told, staleness: Staleness, previous: Sequence[Mapping[str, Any]], now_seconds: float, generation: int
) -> list[dict[str, Any]]:
    """Ready, Running, Failed, Stale. Transition times move only when the status moves."""
    before = {item.get("type"): item for item in previous}
    verdicts = {
        "Ready": (told.ready, told.reason, told.message),
        "Running": (told.running, told.reason, told.message),
        "Failed": (told.failed, told.reason, told.message),
        "Stale": (staleness.status, staleness.reason, staleness.message),
    }
    found = []
    for kind, (status, reason, message) in verdicts.items():
        old = before.get(kind)
        since = old["lastTransitionTime"] if old and old.get("status") == status else timestamp(now_seconds)
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": str(reason),
                "message": message[:MAX_MESSAGE],
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return found


def events(told: Told, staleness: Staleness, previous: Sequence[Mapping[str, Any]]) -> list[Event]:
    """One when the reason turned; warnings for failures and for what is waited for."""
    before = {item.get("type"): item for item in previous}
    found = []
    if before.get("Ready", {}).get("reason") != told.reason:
        bad = told.failed != FALSE or told.reason in (Why.UNSCHEDULABLE, Why.QUOTA)
        found.append(_event(WARNING if bad else NORMAL, told.reason, told.message))
    if staleness.status == TRUE and before.get("Stale", {}).get("status") != TRUE:
        found.append(_event(WARNING, staleness.reason, staleness.message))
    return found


def _event(kind: str, reason: str, message: str) -> Event:
    return Event(kind, str(reason), str(reason), message[:MAX_NOTE], message[:64])


def worth_writing(previous: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Everything but the wording of a wait counts."""
    return bool(_skeleton(previous) != _skeleton(status))


def _skeleton(status: Mapping[str, Any]) -> Any:
    shown = [
        (item["type"], item["status"], item["reason"], item["message"] if item["type"] == "Stale" else "")
        for item in status.get("conditions") or []
    ]
    return {**status, "conditions": shown}
