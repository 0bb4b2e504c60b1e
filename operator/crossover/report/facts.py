"""What one tick found out and did, as plain data: the only input of conditions, status, Events and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.api.decision import Decision, DecisionReason, Notice
from crossover.api.fleet import EngineType, FleetSnapshot
from crossover.api.intent import Intent, Mode
from crossover.report.texts import ConditionType


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a part from working. The first problem of a condition is the one shown."""

    condition: ConditionType
    reason: str
    message: str
    transient: bool = False
    """True = the condition is Unknown rather than False (nothing is wrong with what the user wrote)."""


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was changed in this tick."""

    kind: str
    """``"replicas"`` or ``"speculation"``."""
    summary: str
    """``"replicas 3 -> 5"``."""
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TickFacts:
    """One fleet, one tick. ``None`` = did not get that far."""

    at_seconds: float
    generation: int
    mode: Mode
    intent: Intent | None = None
    target: str = ""
    """``"Deployment llama-70b"``."""
    selector: str = ""
    port: int | None = None
    engine: EngineType | None = None
    engine_version: str | None = None
    snapshot: FleetSnapshot | None = None
    decision: Decision | None = None
    problems: tuple[Problem, ...] = ()
    done: tuple[Done, ...] = ()
    rollout: str | None = None
    """State of an in-flight speculation rollout, one line; None = none."""
    schedule_written: bool = False
    """The template asks for our schedule; whether the pods follow it is in their capability."""
    calibrated: bool = False
    """A calibration's profile took the place of the thresholds and of the replica target."""
    calibration: str = ""
    """Its name."""
    previous: Mapping[str, Any] = field(default_factory=dict)
    """The status read at the beginning of the tick."""

    def problem(self, condition: ConditionType) -> Problem | None:
        return next((problem for problem in self.problems if problem.condition is condition), None)

    def notice(self, *reasons: DecisionReason) -> Notice | None:
        """The first notice of this tick's decision that has one of these reasons."""
        notices = self.decision.notices if self.decision is not None else ()
        return next((notice for notice in notices if notice.reason in reasons), None)
