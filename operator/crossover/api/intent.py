"""What the user wants of one fleet, as plain data: the part of a ModelAutoscaler's spec that `decide` reads.

`api.resources` holds the pydantic models of the custom resources and builds this from them; tests and the simulator
build it directly. Field names and defaults follow autoscaling/v2 where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class Mode(StrEnum):
    ACTIVE = "Active"
    ADVISORY = "Advisory"
    PAUSED = "Paused"


class SpeculationPolicy(StrEnum):
    AUTO = "Auto"
    HOLD = "Hold"


class LeverChoice(StrEnum):
    AUTO = "Auto"
    ENGINE_SCHEDULE = "EngineSchedule"
    RESTART = "Restart"


class LiveCapPolicy(StrEnum):
    OFF = "Off"
    AUTO = "Auto"


class PolicyType(StrEnum):
    PODS = "Pods"
    PERCENT = "Percent"


class SelectPolicy(StrEnum):
    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    type: PolicyType
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """autoscaling/v2 HPAScalingRules, defaults resolved."""

    stabilization_window_seconds: int
    select_policy: SelectPolicy
    policies: tuple[ScalingPolicy, ...]
    tolerance: float = 0.1
    """Share, 0.1 = 10 %, as in HPAConfigurableTolerance."""


DEFAULT_SCALE_UP = ScalingRules(
    0, SelectPolicy.MAX, (ScalingPolicy(PolicyType.PERCENT, 100, 15), ScalingPolicy(PolicyType.PODS, 4, 15))
)
DEFAULT_SCALE_DOWN = ScalingRules(300, SelectPolicy.MAX, (ScalingPolicy(PolicyType.PERCENT, 100, 15),))


@dataclass(frozen=True, slots=True)
class Fallback:
    replicas: int
    after_seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaIntent:
    min: int = 1
    max: int = 1
    target_running_requests: int | None = None
    """Simple mode: running requests per replica."""
    utilization: float = 0.85
    """Share of a replica's capacity to plan for (calibrated mode)."""
    scale_up: ScalingRules = DEFAULT_SCALE_UP
    scale_down: ScalingRules = DEFAULT_SCALE_DOWN
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True)
class SpeculationIntent:
    policy: SpeculationPolicy = SpeculationPolicy.AUTO
    disable_above_running_requests: int | None = None
    enable_below_running_requests: int | None = None
    max_draft_tokens: int | None = None
    lever: LeverChoice = LeverChoice.AUTO
    stabilization_window_seconds: float = 60.0
    """Load must stay beyond a threshold this long before a restart is spent on it."""
    min_dwell_seconds: float = 900.0
    """Shortest time between two changes of draft length by restart."""
    drain_seconds: float = 120.0
    max_surge: int = 1


@dataclass(frozen=True, slots=True)
class Objectives:
    time_per_output_token_seconds: float | None = None
    time_to_first_token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    replicas: ReplicaIntent = field(default_factory=ReplicaIntent)
    speculation: SpeculationIntent | None = None
    """None = speculation is not managed: replicas only."""
    objectives: Objectives = field(default_factory=Objectives)
    live_cap: LiveCapPolicy = LiveCapPolicy.OFF
    """Whether the running batch may be capped while pods live, where the engine has such a knob."""


def careful(intent: Intent) -> Intent:
    """What is still safe with a calibration of another machine: hold the draft length, add replicas, take none away."""
    down = replace(intent.replicas.scale_down, select_policy=SelectPolicy.DISABLED)
    speculation = intent.speculation and replace(intent.speculation, policy=SpeculationPolicy.HOLD)
    return replace(intent, replicas=replace(intent.replicas, scale_down=down), speculation=speculation)
