"""What was decided: one `Decision`, with its numbers and with what lost, and the little that must survive a restart.

`decide.plan(snapshot, intent, memory, profile) -> Decision` is the one producer; the controller, the simulator and
`crossover explain` are its consumers. Nothing here knows Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Lever(StrEnum):
    """How a change of draft length reaches the engine, least disruptive first."""

    NONE = "None"
    ENGINE_SCHEDULE = "EngineSchedule"
    RESTART = "Restart"


class DecisionReason(StrEnum):
    """Why this decision, one word; `report.texts` holds the sentence. Stable: users alert on these."""

    STEADY = "Steady"
    ABOVE_CROSSOVER = "AboveCrossover"
    BELOW_CROSSOVER = "BelowCrossover"
    ENGINE_FOLLOWS_SCHEDULE = "EngineFollowsSchedule"
    SCHEDULE_NEEDED = "ScheduleNeeded"
    DEMAND_ABOVE_CAPACITY = "DemandAboveCapacity"
    DEMAND_BELOW_CAPACITY = "DemandBelowCapacity"
    ABOVE_TARGET = "AboveTarget"
    BELOW_TARGET = "BelowTarget"
    WITHIN_TOLERANCE = "WithinTolerance"
    STABILIZING = "Stabilizing"
    DWELLING = "Dwelling"
    FROZEN_PODS_PENDING = "FrozenPodsPending"
    FROZEN_PODS_TERMINATING = "FrozenPodsTerminating"
    FROZEN_ROLLOUT = "FrozenRollout"
    METRICS_UNKNOWN = "MetricsUnknown"
    LIMITED_BY_MIN = "LimitedByMin"
    LIMITED_BY_MAX = "LimitedByMax"
    LIMITED_BY_POLICY = "LimitedByPolicy"
    NO_LEVER = "NoLever"
    DOES_NOT_PAY_BACK = "DoesNotPayBack"
    ROLLOUT_WOULD_OVERLOAD = "RolloutWouldOverload"
    THRESHOLD_LATCHES = "ThresholdLatches"
    THRESHOLD_CYCLES = "ThresholdCycles"
    REVERTED = "Reverted"
    CALIBRATION_DRIFT = "CalibrationDrift"
    FALLBACK = "Fallback"
    BELOW_MIN = "BelowMin"
    ABOVE_MAX = "AboveMax"
    SCALED_TO_ZERO = "ScaledToZero"
    HELD_BY_POLICY = "HeldByPolicy"
    ADMISSION_BREAKS_TARGET = "AdmissionBreaksTarget"
    TARGET_HAS_ROOM = "TargetHasRoom"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One choice that was weighed and lost."""

    what: str
    """``"draft 3 on 4 replicas"``."""
    lost_because: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know beyond this tick's action: a drifted calibration, a threshold that cycles."""

    reason: DecisionReason
    message: str


@dataclass(frozen=True, slots=True)
class ReplicaDecision:
    """``target`` None = leave the replica count alone (unknown, frozen, someone else's)."""

    current: int | None
    target: int | None
    reason: DecisionReason
    message: str
    limited: DecisionReason | None = None
    """LIMITED_BY_* when a bound or policy kept the recommendation from being reached."""
    recommended: int | None = None
    """Before stabilization, policies and bounds."""


@dataclass(frozen=True, slots=True)
class DraftDecision:
    """Draft length. ``target`` None = leave it alone."""

    current: int | None
    """In force now as far as known, over the fleet's schedulers; None = unknown."""
    target: int | None
    lever: Lever
    reason: DecisionReason
    message: str
    schedule: tuple[tuple[int, int], ...] = ()
    """With lever EngineSchedule: (running requests from, draft tokens) to be written."""


@dataclass(frozen=True, slots=True)
class CapDecision:
    """Live cap on the running batch, in requests per scheduler. Present only where the user allows it."""

    current: int | None
    """Cap decided before; None = none, the engine's own limit."""
    wanted: int | None
    """Cap that every scheduler of the fleet shall have; None = none."""
    reason: DecisionReason
    message: str

    @property
    def is_change(self) -> bool:
        return self.current != self.wanted


@dataclass(frozen=True, slots=True)
class Change:
    """One past change that later decisions must respect (dwell, policies, reversals)."""

    at_seconds: float
    kind: str
    """``"replicas"`` or ``"draft"``."""
    from_value: int | None
    to_value: int | None
    running_requests: float | None = None
    """Draft changes: mean running requests per scheduler when it was decided."""
    demand_tokens_per_second: float | None = None
    """Draft changes: the demand it was decided at, output tokens/s per scheduler."""
    running_requests_after: float | None = None
    """Draft changes: mean running requests per scheduler once the fleet had settled at a like demand."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    at_seconds: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Decision state carried from tick to tick.

    ``changes`` and ``correction*`` are written to status and read back after a restart. The rest is a cache: losing it
    may only delay an action (a fresh stabilization window starts), never cause one.
    """

    changes: tuple[Change, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    above_since_seconds: float | None = None
    """Load has been above `disableAbove` since then, without a break."""
    below_since_seconds: float | None = None
    correction: Mapping[str, float] = field(default_factory=dict)
    """Bounded multipliers on the profile's curves learned from outcomes, by curve name; empty = none."""
    observations: Mapping[str, float] = field(default_factory=dict)
    """Small named values a policy wants back next tick (demand averages, last prediction)."""
    running_cap: int | None = None
    """Live cap on the running batch that the fleet's schedulers shall have; None = none."""
    latched: DecisionReason | None = None
    """THRESHOLD_LATCHES or THRESHOLD_CYCLES once simple mode has recognised it."""


@dataclass(frozen=True, slots=True)
class Decision:
    at_seconds: float
    replicas: ReplicaDecision
    draft: DraftDecision
    numbers: Mapping[str, float | None]
    """Every number the messages speak of, by its name with unit; None = unknown."""
    alternatives: tuple[Alternative, ...] = ()
    memory: Memory = field(default_factory=Memory)
    """What the next call must be given."""
    cap: CapDecision | None = None
    """None = nobody asked for a live cap: none is set, none is looked at."""
    notices: tuple[Notice, ...] = ()
    """True for as long as they are in here; the first one matters most."""

    @property
    def changes_something(self) -> bool:
        moved = self.replicas.target is not None and self.replicas.target != self.replicas.current
        return moved or self.draft.target is not None
