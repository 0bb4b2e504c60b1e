"""What was seen: one scrape of one pod (`PodReading`) and one look at a whole fleet (`FleetSnapshot`).

Plain frozen data shared by every floor above. Units are in the names. Unknown is ``None``, never 0; why a value is
unknown stands in ``unknown`` under the value's own name, so nothing has to guess between "zero", "absent" and "stale".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EngineType(StrEnum):
    """The inference servers Crossover understands, spelled as in the API (`spec.engine.type`)."""

    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRTLLM"
    VLLM = "VLLM"


@dataclass(frozen=True, slots=True)
class Trap:
    """A known way in which this answer misleads, recognised while reading it.

    code: CamelCase and stable, part of `crossover inspect --json`.
    message: one sentence for a person; never text taken from the remote answer.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SchedulerReading:
    """One scheduler (one data-parallel rank) at one moment. The draft length is decided per scheduler, so ranks are
    never summed before they are compared with a threshold.

    Fields ending in ``_total`` are counters since the process started: they fall back to 0 at a restart and only
    their differences mean anything (`crossover.observe.rates`). The others are values of this moment.
    """

    name: str
    """``"dp0"`` and so on; ``"0"`` where the engine has one scheduler."""
    running_requests: float | None = None
    """Decode batch: requests the scheduler advances each step."""
    waiting_requests: float | None = None
    max_running_requests: float | None = None
    """The engine's own limit on ``running_requests``."""
    kv_usage: float | None = None
    """Share of the KV pool in use, 0 to 1."""
    kv_tokens: float | None = None
    kv_capacity_tokens: float | None = None
    draft_tokens: float | None = None
    """Draft length K in force. 0 = the engine verifies nothing now; tree drafts give tokens verified minus one."""
    acceptance_length: float | None = None
    """Tokens emitted per request and step, the bonus token included: 1 without speculation."""
    speculated_share: float | None = None
    """Share of decode steps that speculated, 0 to 1."""
    output_tokens_per_second: float | None = None
    """As served by the engine; a rate from ``output_tokens_total`` is better and wins where there is one."""
    output_tokens_total: float | None = None
    draft_tokens_total: float | None = None
    accepted_tokens_total: float | None = None
    """Accepted draft tokens, the bonus token not counted."""
    drafts_total: float | None = None
    """(request, step) pairs that had at least one draft token."""
    request_steps_total: float | None = None
    """(request, step) pairs, speculated or not."""
    engine_steps_total: float | None = None
    accepted_tokens_by_position_total: tuple[float, ...] | None = None
    time_to_first_token_seconds_sum: float | None = None
    time_to_first_token_count: float | None = None
    time_per_output_token_seconds_sum: float | None = None
    """Over finished requests, (end to end - first token) / (tokens - 1). Never inter-token latency: under speculation
    tokens arrive in bursts and that number moves the wrong way."""
    time_per_output_token_count: float | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field name -> why it is None ("absent: ...", "stale: ...", "invalid: ...")."""


class ScrapeFault(StrEnum):
    """Why a pod gave no reading. Closed set: the text a user sees is chosen by it, no remote text is passed on."""

    UNREACHABLE = "Unreachable"
    TIMED_OUT = "TimedOut"
    HTTP_STATUS = "HTTPStatus"
    UNAUTHORIZED = "Unauthorized"
    METRICS_OFF = "MetricsOff"
    NOT_METRICS = "NotMetrics"
    TOO_LARGE = "TooLarge"
    REDIRECTED = "Redirected"
    WRONG_ENGINE = "WrongEngine"
    INVALID_VALUES = "InvalidValues"


@dataclass(frozen=True, slots=True)
class PodReading:
    """One scrape of one pod. ``schedulers`` is empty exactly when ``fault`` is set."""

    engine: EngineType | None
    version: str | None
    source: str
    """The path that answered, for example ``/v1/loads``."""
    observed_at_seconds: float
    schedulers: tuple[SchedulerReading, ...] = ()
    traps: tuple[Trap, ...] = ()
    fault: ScrapeFault | None = None
    fault_detail: str | None = None
    """Ours, short, without remote text: ``"HTTP 503"``, ``"after 2 s"``."""
    still_since_seconds: float | None = None
    """Since when requests seem to run and no counter has moved; None = something moves, nothing runs, or no counter tells."""


class ScheduleDialect(StrEnum):
    """How an engine is told a batch -> draft length schedule at start-up."""

    SGLANG_ADAPTIVE = "SGLangAdaptive"
    TENSORRT_LLM_LOWER_BOUND = "TensorRTLLMLowerBound"
    TENSORRT_LLM_UPPER_BOUND = "TensorRTLLMUpperBound"
    VLLM_BATCH_SIZE_RANGES = "VLLMBatchSizeRanges"


@dataclass(frozen=True, slots=True)
class Capability:
    """How speculation of one pod can be changed. Filled from what the server says, the pod spec second."""

    engine: EngineType
    version: str | None
    speculative_algorithm: str | None
    """The engine's own name; None = started without speculation."""
    max_draft_tokens: int | None = None
    """The draft length the process was started with (its maximum)."""
    schedule_dialect: ScheduleDialect | None = None
    """Set when this process can follow (or already follows) a schedule."""
    schedule_refusal: str | None = None
    """Why not, in the engine's own terms, when ``schedule_dialect`` is None."""
    follows_schedule: bool = False
    """True when the server itself says that a schedule is in force."""
    adapts_by_itself: bool = False
    """True when the engine picks draft lengths without our schedule (default tiers, adaptive verification)."""
    zero_is_safe: bool | None = None
    """Whether a scheduled draft length of 0 is safe in this build; None = unknown, treat as unsafe."""
    batch_padding: tuple[int, ...] = ()
    """Captured CUDA-graph batch sizes to which the engine pads before it looks a schedule up."""
    live_running_cap: str | None = None
    """Name of the live knob that caps the running batch, where the engine has one."""
    running_cap: int | None = None
    """The live cap in force on the scheduler that has the lowest one, as the server told it."""
    running_cap_at_start: int | None = None
    """What the process itself started with: setting it again takes a cap of ours away."""
    max_running_requests: int | None = None
    schedule: tuple[tuple[int, int], ...] = ()
    """The schedule in force as (running requests from, draft tokens), where the server or template shows it."""


class PodPhase(StrEnum):
    PENDING = "Pending"
    """Created, scheduled or starting: not ready yet and not being deleted."""
    READY = "Ready"
    TERMINATING = "Terminating"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod as the cluster tells it: the little that is kept of every watched pod."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    address: str | None
    phase: PodPhase
    template_hash: str | None
    created_at_seconds: float
    ready_at_seconds: float | None
    restarts: int
    ports: tuple[int, ...] = ()
    """Declared container ports, first container first."""
    node: str | None = None
    waiting_reason: str | None = None
    """Why its container does not run (CrashLoopBackOff, ImagePullBackOff), as the kubelet says."""
    owner_uid: str | None = None
    unschedulable: bool = False
    """The scheduler has found no node for it."""
    deleted_at_seconds: float | None = None
    """`metadata.deletionTimestamp`, the end of its grace period; None = not being deleted."""
    image_digests: tuple[tuple[str, str], ...] = ()
    """(container name, ``sha256:...`` of what its image name pointed to when it was pulled), where the kubelet tells."""


@dataclass(frozen=True, slots=True)
class PodObservation:
    """One pod of the fleet at the time of the snapshot."""

    name: str
    uid: str
    phase: PodPhase
    address: str | None
    template_hash: str | None
    """`pod-template-hash` (Deployment) or `controller-revision-hash`: tells old pods from new during a rollout."""
    created_at_seconds: float
    ready_at_seconds: float | None = None
    restarts: int = 0
    reading: PodReading | None = None
    """The newest usable reading, however old; ``reading_age_seconds`` tells. None = never read."""
    reading_age_seconds: float | None = None
    fault: ScrapeFault | None = None
    """The newest attempt's fault, even when an older reading is still fresh enough to use."""
    fault_detail: str | None = None
    output_tokens_per_second: float | None = None
    """From counters where the engine has them, resets survived; else the engine's gauge."""
    acceptance_length: float | None = None
    """Over the last window, from counters where the engine has them."""
    time_per_output_token_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    capability: Capability | None = None
    port: int | None = None
    """Where its server answered."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """What a pod template asks of the engine, in one form for all engines."""

    engine: EngineType
    enabled: bool
    algorithm: str | None = None
    draft_tokens: int | None = None
    """Draft length asked for (maximum where a schedule is set); None = the engine's default."""
    schedule: tuple[tuple[int, int], ...] = ()
    """(running requests from, draft tokens), ascending; empty = no schedule."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Everything `decide` may know about one fleet at one moment."""

    at_seconds: float
    """Seconds since the epoch; the clock of every other time in this snapshot."""
    desired_replicas: int | None
    """`spec.replicas` as read from the scale subresource. None = could not be read."""
    pods: tuple[PodObservation, ...]
    stale_after_seconds: float
    """Readings older than this count as unknown."""
    rollout_in_progress: bool = False
    """The workload's controller has not finished bringing the template to every pod."""
    settings: SpeculationSettings | None = None
    """The pod template's present speculation settings. None = unreadable; the reason is a condition."""
    startup_seconds: float | None = None
    """Creation to Ready, median of this fleet's own recent pods."""

    def in_phase(self, phase: PodPhase) -> tuple[PodObservation, ...]:
        return tuple(pod for pod in self.pods if pod.phase is phase)

    def is_fresh(self, pod: PodObservation) -> bool:
        """True when the pod's newest reading is young enough to decide on."""
        return (
            pod.reading is not None
            and pod.reading_age_seconds is not None
            and pod.reading_age_seconds <= self.stale_after_seconds
        )

    @property
    def known(self) -> tuple[PodObservation, ...]:
        """Ready pods with a fresh reading."""
        return tuple(pod for pod in self.in_phase(PodPhase.READY) if self.is_fresh(pod))

    @property
    def unknown(self) -> tuple[PodObservation, ...]:
        """Ready pods without one: their load is unknown, not zero."""
        return tuple(pod for pod in self.in_phase(PodPhase.READY) if not self.is_fresh(pod))
