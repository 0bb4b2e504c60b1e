"""ModelAutoscaler: one per model deployment."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from crossover.api import intent
from crossover.api.fleet import EngineType
from crossover.api.resources.base import Resource, Rule
from crossover.api.resources.behavior import HorizontalPodAutoscalerBehavior
from crossover.api.resources.status import ModelAutoscalerStatus

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Replicas = Annotated[int, Field(ge=1, le=10000)]
Requests = Annotated[int, Field(ge=1, le=100000)]


def check(model: Resource, holds: bool, rule: Rule) -> None:
    """The Python side of a CEL rule."""
    if not holds:
        raise ValueError(rule.message)


class ScaleTargetRef(Resource):
    """What is scaled and, when speculation is managed, whose pod template is edited. Same namespace always."""

    api_version: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        "apps/v1", description="Group and version."
    )
    kind: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        "Deployment", description="Anything with a scale subresource."
    )
    name: Name = Field(description="Name of the object.")


class ServerSpec(Resource):
    """Which server runs in the pods and where it answers."""

    type: EngineType | None = Field(
        None, description="SGLang, VLLM or TensorRTLLM; left out, it is detected and shown."
    )
    container: Label | None = Field(None, description="Container of the server; left out, the first one.")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="Port of the server; left out, the engine's default or the container's only port."
    )


class EngineSpec(ServerSpec):
    """Which server runs in the pods, where it answers, and what may be changed in it while it runs."""

    live_cap: intent.LiveCapPolicy = Field(
        intent.LiveCapPolicy.OFF,
        description="Auto lets a running SGLang server admit fewer requests at once while the fleet misses "
        "objectives.timePerOutputTokenMilliseconds; the others wait. No restart, taken back by itself.",
    )


class ObjectivesSpec(Resource):
    """What users of the fleet were promised."""

    time_per_output_token_milliseconds: Annotated[int, Field(ge=1, le=60000)] | None = Field(
        None, description="Mean time per output token, without the first. engine.liveCap holds a fleet to it."
    )


class MetricsSpec(Resource):
    """How often pods are read and how old a reading may be."""

    interval_seconds: Annotated[int, Field(ge=1, le=300)] = Field(
        5, description="Seconds between two looks at the fleet."
    )
    stale_after_seconds: Annotated[int, Field(ge=2, le=3600)] = Field(
        30, description="A reading older than this counts as unknown, never as zero."
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.staleAfterSeconds > self.intervalSeconds",
            "staleAfterSeconds must be greater than intervalSeconds",
            ".staleAfterSeconds",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> MetricsSpec:
        check(self, self.stale_after_seconds > self.interval_seconds, self.cel_rules[0])
        return self


class FallbackSpec(Resource):
    """Replicas to have when no pod can be read for long. Only ever raises."""

    replicas: Replicas = Field(description="Replica count to raise to.")
    after_seconds: Annotated[int, Field(ge=10, le=86400)] = Field(300, description="How long nothing could be read.")


class ReplicasSpec(Resource):
    """Bounds and target of the replica count."""

    min: Replicas = Field(1, description="Never fewer.")
    max: Replicas = Field(description="Never more.")
    target_running_requests: Requests | None = Field(
        None,
        description="Requests (running + waiting) per replica to aim at; left out, replicas are left alone.",
    )
    utilization_percent: Annotated[int, Field(ge=10, le=100)] = Field(
        85, description="Share of a replica's calibrated capacity to plan for; used with a calibration."
    )
    behavior: HorizontalPodAutoscalerBehavior | None = Field(None, description="As in autoscaling/v2.")
    fallback: FallbackSpec | None = Field(None, description="What to do when no pod can be read.")
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.min <= self.max", "min must not be greater than max", ".min"),
        Rule(
            "!has(self.fallback) || (self.fallback.replicas >= self.min && self.fallback.replicas <= self.max)",
            "fallback.replicas must lie between min and max",
            ".fallback",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> ReplicasSpec:
        check(self, self.min <= self.max, self.cel_rules[0])
        inside = self.fallback is None or self.min <= self.fallback.replicas <= self.max
        check(self, inside, self.cel_rules[1])
        return self


class ThresholdSpec(Resource):
    """Simple mode: where speculation stops paying, as typed by hand. A calibration would measure it."""

    disable_above_running_requests: Requests = Field(
        description="Mean decode batch per scheduler above which it is off."
    )
    enable_below_running_requests: Requests | None = Field(
        None, description="Mean decode batch below which it is on again; left out, two thirds of disableAbove."
    )
    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        60, description="The load must stay beyond the threshold this long before a restart is spent on it."
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.enableBelowRunningRequests) || self.enableBelowRunningRequests <= self.disableAboveRunningRequests",
            "enableBelowRunningRequests must not be greater than disableAboveRunningRequests: "
            "the two are the wrong way round",
            ".enableBelowRunningRequests",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> ThresholdSpec:
        below = self.enable_below_running_requests
        check(self, below is None or below <= self.disable_above_running_requests, self.cel_rules[0])
        return self


DEFAULT_THRESHOLD = ThresholdSpec(disable_above_running_requests=1)
"""For its defaults only."""


class RestartSpec(Resource):
    """How a restart with other arguments is rolled out. Used only where the engine follows no schedule."""

    min_dwell_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        900, description="Shortest time between two changes of draft length by restart."
    )
    max_surge: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Extra pods during a rollout; pods are never taken away before their successor is ready."
    )
    drain_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        120,
        description="Time a pod has to finish its requests; becomes its termination grace period where that is shorter.",
    )


class CalibrationRef(Resource):
    """A Calibration in the same namespace."""

    name: Name = Field(description="Name of the Calibration.")


class SpeculationSpec(Resource):
    """How speculative decoding is managed. Left out, it is not touched."""

    policy: intent.SpeculationPolicy = Field(
        intent.SpeculationPolicy.AUTO, description="Auto decides; Hold never changes anything."
    )
    threshold: ThresholdSpec | None = Field(None, description="Simple mode: where speculation stops paying.")
    calibration_ref: CalibrationRef | None = Field(
        None, description="Calibrated mode: where the crossover was measured. Instead of a threshold."
    )
    max_draft_tokens: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Draft length below the threshold; left out, what the pod template asks for."
    )
    lever: intent.LeverChoice = Field(
        intent.LeverChoice.AUTO,
        description="Auto takes the engine's own schedule where the engine can follow one, else a restart.",
    )
    restart: RestartSpec = Field(default_factory=RestartSpec, description="Rollouts.")
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.threshold) != has(self.calibrationRef)",
            "give either threshold or calibrationRef",
            ".threshold",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> SpeculationSpec:
        check(self, (self.threshold is None) != (self.calibration_ref is None), self.cel_rules[0])
        return self


class ModelAutoscalerSpec(Resource):
    """What is wanted of one fleet."""

    scale_target_ref: ScaleTargetRef = Field(description="The fleet. Cannot be changed: delete and create instead.")
    mode: intent.Mode = Field(
        intent.Mode.ACTIVE,
        description="Active acts; Advisory decides and explains, and touches nothing; Paused does nothing.",
    )
    engine: EngineSpec = Field(default_factory=EngineSpec, description="The server in the pods.")
    metrics: MetricsSpec = Field(default_factory=MetricsSpec, description="Reading the pods.")
    objectives: ObjectivesSpec = Field(default_factory=ObjectivesSpec, description="What users were promised.")
    replicas: ReplicasSpec = Field(description="Bounds and target of the replica count.")
    speculation: SpeculationSpec | None = Field(None, description="Left out, speculation is not touched.")
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.scaleTargetRef == oldSelf.scaleTargetRef",
            "scaleTargetRef cannot be changed: delete this ModelAutoscaler and create another",
            ".scaleTargetRef",
        ),
        Rule(
            "!has(self.engine) || !has(self.engine.liveCap) || self.engine.liveCap == 'Off' || "
            "(has(self.objectives) && has(self.objectives.timePerOutputTokenMilliseconds))",
            "engine.liveCap Auto needs objectives.timePerOutputTokenMilliseconds",
            ".engine.liveCap",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> ModelAutoscalerSpec:
        target = self.objectives.time_per_output_token_milliseconds
        check(self, self.engine.live_cap is intent.LiveCapPolicy.OFF or target is not None, self.cel_rules[1])
        return self

    def to_intent(self) -> intent.Intent:
        """As plain data with defaults resolved: what `decide` reads."""
        target = self.objectives.time_per_output_token_milliseconds
        return intent.Intent(
            _replica_intent(self.replicas),
            _speculation_intent(self.speculation),
            intent.Objectives(time_per_output_token_seconds=None if target is None else target / 1000),
            self.engine.live_cap,
        )


def _replica_intent(spec: ReplicasSpec) -> intent.ReplicaIntent:
    behavior = spec.behavior or HorizontalPodAutoscalerBehavior()
    up, down = intent.DEFAULT_SCALE_UP, intent.DEFAULT_SCALE_DOWN
    fallback = spec.fallback
    return intent.ReplicaIntent(
        min=spec.min,
        max=spec.max,
        target_running_requests=spec.target_running_requests,
        utilization=spec.utilization_percent / 100,
        scale_up=behavior.scale_up.resolved(up) if behavior.scale_up else up,
        scale_down=behavior.scale_down.resolved(down) if behavior.scale_down else down,
        fallback=intent.Fallback(fallback.replicas, fallback.after_seconds) if fallback else None,
    )


def _speculation_intent(spec: SpeculationSpec | None) -> intent.SpeculationIntent | None:
    if spec is None:
        return None
    threshold, restart = spec.threshold, spec.restart
    return intent.SpeculationIntent(
        policy=spec.policy,
        disable_above_running_requests=threshold.disable_above_running_requests if threshold else None,
        enable_below_running_requests=threshold.enable_below_running_requests if threshold else None,
        max_draft_tokens=spec.max_draft_tokens,
        lever=spec.lever,
        stabilization_window_seconds=(threshold or DEFAULT_THRESHOLD).stabilization_window_seconds,
        min_dwell_seconds=restart.min_dwell_seconds,
        drain_seconds=restart.drain_seconds,
        max_surge=restart.max_surge,
    )


class ModelAutoscaler(Resource):
    """Decides draft length and replicas of one model deployment together, and explains it in its status."""

    api_version: Literal["crossover.dev/v1alpha1"] = "crossover.dev/v1alpha1"
    kind: Literal["ModelAutoscaler"] = "ModelAutoscaler"
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: ModelAutoscalerSpec = Field(description="What is wanted.")
    status: ModelAutoscalerStatus | None = Field(None, description="What is seen, decided and done.")

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])
