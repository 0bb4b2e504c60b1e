"""Events: a value for each thing worth telling, on change only. The wire format is `cluster.events`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover.api.decision import DecisionReason
from crossover.api.intent import Mode
from crossover.report.facts import Done, TickFacts
from crossover.report.status import last_decision
from crossover.report.texts import ConditionType, Reason

NORMAL, WARNING = "Normal", "Warning"

MAX_NOTE = 1024

TOLD = (
    ConditionType.TARGET_RESOLVED,
    ConditionType.METRICS_AVAILABLE,
    ConditionType.CALIBRATED,
    ConditionType.SPECULATION_MANAGED,
    ConditionType.SCALING_ACTIVE,
    ConditionType.EFFECTIVE,
)
"""Conditions whose transitions are Events. Ready only repeats one of them."""

WARNED = frozenset(
    {DecisionReason.THRESHOLD_LATCHES, DecisionReason.THRESHOLD_CYCLES, DecisionReason.CALIBRATION_DRIFT}
)
"""Reasons of good conditions that a user should look at all the same."""


@dataclass(frozen=True, slots=True)
class Event:
    """One Event. Two with the same ``reason`` and ``dedupe`` are repeats of one thing and are counted, not added."""

    type: str
    reason: str
    action: str
    note: str
    dedupe: str


def of_tick(facts: TickFacts, conditions: Sequence[Mapping[str, Any]]) -> list[Event]:
    """What this tick has to tell: what was done, what was decided in advisory mode, which condition turned."""
    done = [
        _event(NORMAL, _reason_of(item), item.summary, f"{item.summary}: {item.message}", item.summary)
        for item in facts.done
    ]
    return done + _advice(facts) + _turned(facts, conditions)


def _event(kind: str, reason: str, action: str, note: str, dedupe: str) -> Event:
    return Event(kind, str(reason), action[:128], note[:MAX_NOTE], dedupe)


def _reason_of(done: Done) -> str:
    return done.reason or (Reason.SCALED if done.kind == "replicas" else Reason.SPECULATION_CHANGED)


def _advice(facts: TickFacts) -> list[Event]:
    """Advisory mode tells each new decision once instead of acting on it."""
    decision = facts.decision
    if facts.mode is not Mode.ADVISORY or decision is None or not decision.changes_something:
        return []
    shown = last_decision(decision, facts)
    before = facts.previous.get("lastDecision")
    if isinstance(before, Mapping) and before.get("action") == shown["action"]:
        return []
    note = f"would: {shown['action']}: {shown['message']}"
    return [_event(NORMAL, Reason.DECIDED, "Advise", note, shown["action"])]


def _turned(facts: TickFacts, conditions: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Conditions that turned. Becoming good for the first time is no news."""
    before = {item["type"]: item for item in facts.previous.get("conditions") or []}
    events = []
    for condition in conditions:
        name, status = str(condition["type"]), condition["status"]
        if name not in TOLD or status == "Unknown" or condition["reason"] == DecisionReason.SCHEDULE_NEEDED:
            continue
        old = before.get(name)
        if old is not None and (old["status"], old["reason"]) == (status, condition["reason"]):
            continue
        warned = condition["reason"] in WARNED
        if status == "True" and not warned and (old is None or old["status"] == "Unknown"):
            continue
        kind = NORMAL if status == "True" and not warned else WARNING
        events.append(_event(kind, condition["reason"], name, condition["message"], name))
    return events
