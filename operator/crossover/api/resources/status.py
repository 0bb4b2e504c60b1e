"""Status of a ModelAutoscaler. `kubectl describe` sorts keys by name and prints lists without separators: names and
one-line strings are chosen for that."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crossover.api.resources.base import Resource

Short = Annotated[str, Field(max_length=128)]
Line = Annotated[str, Field(max_length=512)]
Message = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Condition(Resource):
    """metav1.Condition."""

    type: Short
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    message: Message
    last_transition_time: Time
    observed_generation: Annotated[int, Field(ge=0)] | None = None


class Fleet(Resource):
    """What is seen. A number that is unknown is absent; the condition MetricsAvailable says why."""

    acceptance_length: Short | None = Field(None, description="Tokens per request and step, bonus token included.")
    draft_tokens: Short | None = Field(None, description="Draft length in force; a range while pods differ.")
    engine: Short | None = Field(None, description="Server and version.")
    kv_usage_percent: Count | None = Field(None, description="Fullest KV pool.")
    mean_running_requests: Short | None = Field(None, description="Decode batch per scheduler.")
    output_tokens_per_second: Count | None = Field(None, description="Over the fleet.")
    pods: Short | None = Field(None, description="Pods by state.")
    running_requests: Count | None = Field(None, description="Over the fleet.")
    running_requests_cap: Count | None = Field(
        None, description="Live cap on each scheduler's batch, set by Crossover."
    )
    time_per_output_token_milliseconds: Count | None = Field(None, description="Slowest pod's mean.")
    verified_tokens_per_step: Short | None = Field(
        None, description="Batch times (draft length + 1), mean per scheduler."
    )
    waiting_requests: Count | None = Field(None, description="Over the fleet.")


class Crossover(Resource):
    """Where speculation stops paying, and who says so."""

    running_requests: Short | None = None
    source: Line | None = None


class LastDecision(Resource):
    """The decision in force."""

    action: Line
    message: Message
    reason: Short
    time: Time


class RecentDecision(Resource):
    """One thing that was done."""

    summary: Line
    time: Time


class RememberedChange(Resource):
    """A past change that dwell times and policies count from."""

    at_seconds: Annotated[int, Field(ge=0)]
    demand_tokens_per_second: Short | None = None
    from_value: int | None = None
    kind: Short
    running_requests: Short | None = None
    running_requests_after: Short | None = None
    to_value: int | None = None


class Correction(Resource):
    """What outcomes taught about one curve of the calibration: measured step time as a share of the calibrated one."""

    curve: Short
    factor: Short


class Memory(Resource):
    """Decision state that must survive a restart of the operator."""

    changes: Annotated[list[RememberedChange], Field(max_length=40)] | None = None
    corrections: Annotated[list[Correction], Field(max_length=32)] | None = None
    latched: Short | None = None
    running_cap: Count | None = None


Conditions = Annotated[
    list[Condition], Field(max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]})
]


class ModelAutoscalerStatus(Resource):
    """What is seen, decided and done."""

    conditions: Conditions | None = None
    crossover: Crossover | None = Field(None, description="Where speculation stops paying.")
    fleet: Fleet | None = Field(None, description="What is seen.")
    last_decision: LastDecision | None = Field(None, description="The decision in force.")
    memory: Memory | None = Field(None, description="What must survive a restart of the operator.")
    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Generation of the spec acted on."
    )
    recent_decisions: Annotated[list[RecentDecision], Field(max_length=10)] | None = Field(
        None, description="Newest first."
    )
    replicas: Count | None = Field(None, description="Pods of the fleet that are not being deleted.")
    selector: Annotated[str, Field(max_length=2048)] | None = Field(
        None, description="Label selector of the fleet's pods."
    )
