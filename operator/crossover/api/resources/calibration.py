"""Calibration: one per model, hardware and engine build. Measured on scratch pods, or points given by hand."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from crossover.api.points import CalibrationPoint
from crossover.api.resources.autoscaler import Name, ScaleTargetRef, ServerSpec, check
from crossover.api.resources.base import Resource, Rule
from crossover.api.resources.status import Conditions, Line, Message, Short, Time

Running = Annotated[int, Field(ge=1, le=100000)]
Draft = Annotated[int, Field(ge=0, le=64)]
Number = Annotated[float, Field(ge=0, le=1e9)]
KeyName = Annotated[str, Field(min_length=1, max_length=253)]


class KeyRef(Resource):
    """A key of an object in the same namespace."""

    name: Name = Field(description="Name of the object.")
    key: KeyName = Field(description="Its key.")


class PercentileSpec(Resource):
    """A length that this share of requests does not exceed."""

    percentile: Annotated[float, Field(ge=0, le=100)] = Field(description="Share of requests, percent.")
    tokens: Annotated[int, Field(ge=1, le=1000000)] = Field(description="Length.")


Percentiles = Annotated[list[PercentileSpec], Field(min_length=2, max_length=32)]


class WorkloadSpec(Resource):
    """What requests look like while it is measured: as in production, because acceptance and context depend on it."""

    input_tokens: Annotated[int, Field(ge=1, le=1000000)] = Field(1024, description="Prompt length.")
    output_tokens: Annotated[int, Field(ge=2, le=100000)] = Field(256, description="Answer length.")
    input_percentiles: Percentiles | None = Field(
        None,
        description="Prompt lengths by percentile instead, straight lines between them.",
    )
    output_percentiles: Percentiles | None = Field(None, description="Answer lengths by percentile instead.")
    trace_ref: KeyRef | None = Field(
        None,
        description="ConfigMap with a CSV of input_tokens and output_tokens: lengths are drawn from it instead.",
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"!has(self.{name}) || self.{name}.all(a, self.{name}.all(b, "
            "double(a.percentile) > double(b.percentile) || a.tokens <= b.tokens))",
            "tokens must not fall from one percentile to a higher one, nor differ at the same one",
            f".{name}",
        )
        for name in ("inputPercentiles", "outputPercentiles")
    )

    @model_validator(mode="after")
    def _rules(self) -> WorkloadSpec:
        for given, rule in zip((self.input_percentiles, self.output_percentiles), self.cel_rules, strict=True):
            ordered = sorted(given or (), key=lambda item: (item.percentile, item.tokens))
            rising = all(one.tokens <= two.tokens for one, two in pairwise(ordered))
            twice = any(one.percentile == two.percentile and one.tokens != two.tokens for one, two in pairwise(ordered))
            check(self, rising and not twice, rule)
        return self


class ForcedAcceptanceSpec(Resource):
    """Acceptance as production has it, whatever the prompts of the measurement are."""

    by_position: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=64)] | None = (
        Field(None, description="Share of steps in which the draft token of that position is accepted, never rising.")
    )
    acceptance_length: Annotated[float, Field(ge=1, le=65)] | None = Field(
        None, description="Instead: tokens per request and step with draftTokens, bonus token included."
    )
    draft_tokens: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="The draft length at which acceptanceLength was seen; others follow from it."
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.byPosition) ? !has(self.acceptanceLength) && !has(self.draftTokens) : "
            "has(self.acceptanceLength) && has(self.draftTokens)",
            "give byPosition, or acceptanceLength together with draftTokens",
            ".byPosition",
        ),
        Rule(
            "!has(self.acceptanceLength) || !has(self.draftTokens) || "
            "double(self.acceptanceLength) <= double(self.draftTokens) + 1.0",
            "acceptanceLength is at most draftTokens + 1: the bonus token counts",
            ".acceptanceLength",
        ),
        Rule(
            "!has(self.byPosition) || self.byPosition.map(share, -double(share)).isSorted()",
            "byPosition must not rise: a token is accepted only after the ones before it",
            ".byPosition",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> ForcedAcceptanceSpec:
        length, draft, shares = self.acceptance_length, self.draft_tokens, self.by_position
        others = {length is not None, draft is not None}
        check(self, others == {shares is None}, self.cel_rules[0])
        check(self, length is None or draft is None or length <= draft + 1, self.cel_rules[1])
        check(self, shares is None or shares == sorted(shares, reverse=True), self.cel_rules[2])
        return self


class PointSpec(Resource):
    """One steady state of one replica."""

    running_requests: Annotated[float, Field(ge=0, le=100000)] = Field(description="Mean decode batch.")
    draft_tokens: Draft = Field(description="Draft length; 0 with off false is 0 inside a speculating engine.")
    off: bool = Field(False, description="The process was started without speculation.")
    step_milliseconds: Annotated[float, Field(ge=0, le=1000000)] | None = Field(
        None, description="Step time. It or outputTokensPerSecond is needed."
    )
    output_tokens_per_second: Annotated[float, Field(ge=0, le=1e9)] | None = Field(None, description="Of the replica.")
    acceptance_length: Annotated[float, Field(ge=1, le=65)] | None = Field(
        None, description="Tokens per request and step, bonus token included."
    )
    acceptance_by_position: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=64)] | None = Field(
        None, description="Share of steps in which the draft token of that position was accepted."
    )
    context_tokens: Number | None = Field(None, description="Mean KV tokens per request.")
    verified_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Tokens verified per request and step where that is not draftTokens + 1 (trees)."
    )
    relative_error_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="One standard error, percent."
    )
    acceptance_error_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="One standard error of acceptanceLength, percent; as relativeErrorPercent when left out."
    )
    asked_running_requests: Running | None = Field(None, description="Requests kept in flight while it was measured.")
    interpolated: Literal[True] | None = Field(
        None, description="Not measured: the draft length lies between measured ones."
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.stepMilliseconds) || has(self.outputTokensPerSecond)",
            "a point needs stepMilliseconds or outputTokensPerSecond",
            ".stepMilliseconds",
        ),
        Rule("!(self.off && self.draftTokens > 0)", "off means no draft: draftTokens must be 0", ".draftTokens"),
        # The API server compares a whole number with a fractional minimum as integers: 0 would pass a minimum of 0.01.
        Rule(
            "double(self.runningRequests) > 0.0 && (!has(self.stepMilliseconds) || double(self.stepMilliseconds) > 0.0) && "
            "(!has(self.outputTokensPerSecond) || double(self.outputTokensPerSecond) > 0.0)",
            "runningRequests, stepMilliseconds and outputTokensPerSecond must be above 0",
            ".runningRequests",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> PointSpec:
        told = self.step_milliseconds is not None or self.output_tokens_per_second is not None
        check(self, told, self.cel_rules[0])
        check(self, not (self.off and self.draft_tokens > 0), self.cel_rules[1])
        measures = (self.running_requests, self.step_milliseconds, self.output_tokens_per_second)
        check(self, all(value is None or value > 0 for value in measures), self.cel_rules[2])
        return self

    def to_point(self) -> CalibrationPoint:
        """As plain data: what `decide` reads."""
        return CalibrationPoint(
            running_requests=self.running_requests,
            draft_tokens=self.draft_tokens,
            off=self.off,
            context_tokens=self.context_tokens,
            step_seconds=None if self.step_milliseconds is None else self.step_milliseconds / 1000,
            output_tokens_per_second=self.output_tokens_per_second,
            acceptance_length=self.acceptance_length,
            acceptance_by_position=tuple(self.acceptance_by_position or ()),
            relative_error=None if self.relative_error_percent is None else self.relative_error_percent / 100,
            verified_tokens=self.verified_tokens,
            asked_running_requests=self.asked_running_requests,
            acceptance_error=None if self.acceptance_error_percent is None else self.acceptance_error_percent / 100,
            interpolated=bool(self.interpolated),
        )

    @classmethod
    def of_point(cls, point: CalibrationPoint) -> PointSpec:
        """For status: six significant digits."""
        return cls(
            running_requests=_digits(point.running_requests),
            draft_tokens=point.draft_tokens,
            off=point.off,
            step_milliseconds=None if point.step_seconds is None else _digits(point.step_seconds * 1000),
            output_tokens_per_second=_digits(point.output_tokens_per_second),
            acceptance_length=_digits(point.acceptance_length),
            acceptance_by_position=[round(share, 6) for share in point.acceptance_by_position] or None,
            context_tokens=_digits(point.context_tokens),
            verified_tokens=point.verified_tokens,
            relative_error_percent=None if point.relative_error is None else _digits(point.relative_error * 100),
            acceptance_error_percent=None if point.acceptance_error is None else _digits(point.acceptance_error * 100),
            asked_running_requests=point.asked_running_requests,
            interpolated=True if point.interpolated else None,
        )


def _digits(value: float | None) -> Any:
    return None if value is None else float(f"{value:.6g}")


class WhenStale(StrEnum):
    """What becomes of a result whose pod template has changed."""

    KEEP = "Keep"
    MEASURE_AGAIN = "MeasureAgain"


Points = Annotated[list[PointSpec], Field(max_length=256)]


class CalibrationSpec(Resource):
    """What is to be measured, or the points themselves."""

    target_ref: ScaleTargetRef | None = Field(
        None, description="Deployment or StatefulSet whose pod template is measured; its own pods are never touched."
    )
    engine: ServerSpec = Field(default_factory=ServerSpec, description="The server in the pods.")
    model: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        None, description="Model name in requests; left out, the first that the server lists."
    )
    api_key_secret_ref: KeyRef | None = Field(None, description="Secret with the bearer token of the server.")
    workload: WorkloadSpec = Field(default_factory=WorkloadSpec, description="What requests look like.")
    draft_tokens: Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1, max_length=8)] | None = Field(
        None, description="Draft lengths to measure; left out, the one of the pod template."
    )
    forced_acceptance: ForcedAcceptanceSpec | None = Field(
        None,
        description=(
            "Scratch pods accept draft tokens as told instead of by their worth: prompts need not be like production's, and of "
            "four or more draft lengths only three are measured while the others follow from them."
        ),
    )
    include_off: bool = Field(True, description="Measure a process started without speculation.")
    include_gated: bool = Field(
        False, description="Measure draft length 0 inside a speculating engine, where it can follow a schedule."
    )
    running_requests: Annotated[list[Running], Field(min_length=1, max_length=32)] | None = Field(
        None, description="Exactly these loads; left out, the sweep spends points where curves may cross."
    )
    max_running_requests: Annotated[int, Field(ge=2, le=100000)] = Field(256, description="Largest load of the sweep.")
    max_points: Annotated[int, Field(ge=4, le=256)] = Field(24, description="Most points to spend.")
    pods: Annotated[int, Field(ge=1, le=8)] = Field(
        1, description="Scratch pods at a time. Each needs the accelerators of one replica."
    )
    startup_deadline_seconds: Annotated[int, Field(ge=5, le=14400)] = Field(
        1200, description="How long a scratch pod may take to become ready."
    )
    timeout_minutes: Annotated[int, Field(ge=1, le=1440)] = Field(
        120, description="How long it may take in all. What was measured by then counts."
    )
    time_per_output_token_milliseconds: Annotated[int, Field(ge=1, le=100000)] | None = Field(
        None, description="Target for which capacity is shown."
    )
    when_stale: WhenStale = Field(
        WhenStale.KEEP,
        description=(
            "What to do when the pod template is not the one that was measured any more: Keep the result, which is then gone by "
            "with care, or MeasureAgain, which needs accelerators at every such change."
        ),
    )
    suspend: bool = Field(False, description="True removes the scratch pods and keeps the points; false goes on.")
    points: Points | None = Field(None, description="Points measured elsewhere: nothing is measured here then.")
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.targetRef) || has(self.points)",
            "name a targetRef to measure, or give points",
            ".targetRef",
        ),
    )

    @model_validator(mode="after")
    def _rules(self) -> CalibrationSpec:
        check(self, self.target_ref is not None or self.points is not None, self.cel_rules[0])
        return self


class EnvironmentStatus(Resource):
    """Where the points were measured. When one of these differs in the fleet, the calibration is stale there."""

    arguments: Short | None = Field(None, description="Digest of the container's arguments without speculation's.")
    draft_model: Line | None = Field(None, description="As the arguments name it.")
    engine: Short | None = None
    engine_version: Short | None = None
    gpu: Line | None = Field(None, description="Accelerators of one replica.")
    gpu_product: Short | None = Field(None, description="Of the nodes where it was measured, as their labels tell it.")
    image: Line | None = None
    image_digest: Short | None = Field(None, description="What the image name pointed to.")
    model: Line | None = Field(None, description="As the arguments name it.")
    template: Short | None = Field(None, description="Digest of the pod template that was measured.")
    workload: Short | None = Field(None, description="Digest of targetRef, engine, model and workload of the spec.")


class ResultStatus(Resource):
    """What was measured and what it says."""

    capacity: Annotated[list[Line], Field(max_length=16)] | None = Field(None, description="By way to decode.")
    caveats: Annotated[list[Line], Field(max_length=16)] | None = Field(None, description="What to doubt, and why.")
    crossover: Short | None = Field(None, description="In running requests, with its interval.")
    crossovers: Annotated[list[Line], Field(max_length=32)] | None = Field(
        None, description="Every curve against every zero."
    )
    environment: EnvironmentStatus | None = Field(None, description="What the points are valid for.")
    finished_at: Time | None = None
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    points: Points | None = None
    rendered: Annotated[str, Field(max_length=16384)] | None = Field(
        None, description="The schedule in the engine's own dialect."
    )
    schedule: Line | None = Field(None, description="Best draft length by running requests.")
    skipped: Annotated[list[Line], Field(max_length=256)] | None = Field(
        None, description="Loads that could not be measured: they are not tried again."
    )
    started_at: Time | None = None
    verdict: Message | None = None


class CalibrationStatus(ResultStatus):
    """How it stands, and what was measured."""

    conditions: Conditions | None = None
    previous: ResultStatus | None = Field(
        None, description="The result of before, in use while the changed target is measured again."
    )
    progress: Line | None = None


class Calibration(Resource):
    """Measures where speculation stops paying on the hardware of a fleet; ModelAutoscalers refer to it."""

    api_version: Literal["crossover.dev/v1alpha1"] = "crossover.dev/v1alpha1"
    kind: Literal["Calibration"] = "Calibration"
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: CalibrationSpec = Field(description="What is to be measured, or the points themselves.")
    status: CalibrationStatus | None = Field(None, description="What was measured and what it says.")
