"""What the parts of a calibration hand to each other. Plain data, no I/O.

    sweep.next_ask(points, plan, available=..., skip=...) -> Ask | Done          pure: what to measure next
    await measure.describe(server, http=...) -> Described                        what this server is and runs as
    await measure.measure(described, ask.running_requests, workload, ...) -> Measured      raises MeasureFailure
    result.summarise(points, ...) -> CalibrationResult                           pure: curves, crossovers, schedule

A runner (the command line for servers at hand, the Calibration resource for scratch pods) loops over the first three and
keeps nothing but points: the sweep resumes from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from crossover.api.fleet import Capability, EngineType
from crossover.api.points import CalibrationPoint
from crossover.decide.variant import Variant

# -- the sweep ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is to be found out, and how much may be spent on it."""

    variants: tuple[Variant, ...]
    """Draft lengths, `GATED` and `OFF`: whatever a server can be had for. At least one zero, else nothing crosses."""
    smallest_running_requests: int = 1
    largest_running_requests: int = 64
    ladder: tuple[int, ...] = ()
    """Exactly these loads for every variant, all of them, nothing else; empty = the sweep chooses."""
    most_points: int = 24
    crossover_error: float = 0.03
    """Wanted half-width of a crossover's 95 % interval, as a share of it."""
    limits: Mapping[Variant, int] = field(default_factory=dict)
    """Most running requests of a variant's server (its own limit, or what KV allows), where known."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Measure this next: so many requests in flight on a server that runs as ``variant``."""

    variant: Variant
    running_requests: int


class DoneReason(StrEnum):
    CLEAR = "Clear"
    """Every crossing is known as well as wanted, and where there is none, that is known."""
    POINTS_SPENT = "PointsSpent"
    LADDER_MEASURED = "LadderMeasured"
    NOTHING_LEFT = "NothingLeft"
    """No load that could be measured would tell more."""
    TIME_SPENT = "TimeSpent"


@dataclass(frozen=True, slots=True)
class Done:
    reason: DoneReason
    message: str


# -- a server and a load -----------------------------------------------------------------------------------------------


class Route(StrEnum):
    """How requests are sent."""

    AUTO = "auto"
    """Native where it tells more than the OpenAI route (SGLang) or is the only one (Triton), else completions."""
    CHAT = "chat"
    """/v1/chat/completions"""
    COMPLETIONS = "completions"
    """/v1/completions: the native route of vLLM and trtllm-serve."""
    GENERATE = "generate"
    """SGLang's /generate: every answer tells its verification steps."""
    TRITON = "triton"
    """Triton's /v2/models/MODEL/generate and generate_stream, before TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running server, as the caller knows it."""

    base_url: str
    """``http://HOST:PORT``, no path."""
    engine: EngineType | None = None
    """None = found out."""
    model: str | None = None
    """Model name of requests; None = the first that /v1/models lists."""
    variant: Variant | None = None
    """What it was started as; None = read from the server itself (`Described.variant`)."""
    token: str | None = field(default=None, repr=False)
    """Bearer token."""
    route: Route = Route.AUTO
    metrics_port: int | None = None
    """Where metrics are served, when not on the port of ``base_url`` (Triton: 8002)."""


@dataclass(frozen=True, slots=True)
class Described:
    """A server that has been asked what it is."""

    server: Server
    engine: EngineType
    model: str
    variant: Variant
    """What it runs as under light load; a server that follows a schedule changes with the load, and every point says what
    was in force."""
    capability: Capability | None = None
    verified_tokens: int | None = None
    """Per request and step where that is not draft length + 1 (trees)."""
    most_running_requests: int | None = None
    metrics: bool = True
    """False: it serves no counters; only the client's clock is left."""


# -- a measurement -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Precision:
    """When a point is good enough, and when to give up waiting for that."""

    relative_error: float = 0.005
    """One standard error of the step time; of output tokens/s where the server does not count its steps."""
    least_seconds: float = 4.0
    most_seconds: float = 90.0
    """Warm-up included."""


class CaveatCode(StrEnum):
    OTHER_TRAFFIC = "OtherTraffic"
    GENERATOR_IS_BOTTLENECK = "GeneratorIsBottleneck"
    SEVERAL_SERVERS = "SeveralServers"
    """The clients got far more than this server's counters gave: the URL balances over several."""
    CLOCKS_DISAGREE = "ClocksDisagree"
    METRICS_OFF = "MetricsOff"
    NO_STEADY_STATE = "NoSteadyState"
    LIMIT_MET = "LimitMet"
    """The server ran fewer requests than were in flight: its own limit or its KV pool."""
    SHORT_ANSWERS = "ShortAnswers"
    """Answers ended before the length that was asked for."""
    INPUT_LENGTH = "InputLength"
    """Prompts came out longer or shorter than asked for."""
    DRAFT_CHANGED = "DraftChanged"
    """The draft length in force was not the same all the time."""
    NOT_FORCED = "AcceptanceNotForced"
    """The server accepted by the worth of its draft, although it was told what to accept."""
    RETRIED = "Retried"
    """Some requests were refused (429, 503) and sent again."""


UNUSABLE = frozenset(
    {CaveatCode.OTHER_TRAFFIC, CaveatCode.GENERATOR_IS_BOTTLENECK, CaveatCode.SEVERAL_SERVERS, CaveatCode.DRAFT_CHANGED}
)
"""With one of these the number does not say what it seems to."""


@dataclass(frozen=True, slots=True)
class Caveat:
    code: CaveatCode
    message: str
    """One sentence with the numbers; never text of a remote answer."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds over the requests of the window; None = nobody streamed."""

    mean: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One steady state."""

    point: CalibrationPoint
    """`point.asked_running_requests` is what was asked for; `running_requests` the mean decode batch that came of it."""
    seconds: float
    """Length of the window that counts, without warm-up."""
    requests: int
    time_per_output_token: Latency = field(default_factory=Latency)
    time_to_first_token: Latency = field(default_factory=Latency)
    client_tokens_per_second: float | None = None
    server_tokens_per_second: float | None = None
    kv_tokens: float | None = None
    caveats: tuple[Caveat, ...] = ()

    @property
    def is_usable(self) -> bool:
        """False: leave it out of the curves, and do not ask for it again (`skip`)."""
        return not any(caveat.code in UNUSABLE for caveat in self.caveats)


class FailureReason(StrEnum):
    UNREACHABLE = "Unreachable"
    UNAUTHORIZED = "Unauthorized"
    WRONG_MODEL = "WrongModel"
    WRONG_ENGINE = "WrongEngine"
    METRICS_OFF = "MetricsOff"
    """Nothing tells the draft length in force."""
    OVERLOADED = "Overloaded"
    """429 or 503 for longer than retries make sense."""
    REJECTED = "Rejected"
    """The server refuses these requests (400, 404, 422)."""
    SERVER_DIED = "ServerDied"
    """It answered before, and stopped."""
    NO_PROGRESS = "NoProgress"
    """No token for too long."""


class MeasureFailure(Exception):  # noqa: N818 - an outcome of a measurement
    """Why there is no number. ``message``: ours, with the fix, without remote text."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message

    @property
    def is_retriable(self) -> bool:
        """Worth another try later, with nothing changed."""
        return self.reason in (FailureReason.UNREACHABLE, FailureReason.OVERLOADED, FailureReason.NO_PROGRESS)


class Phase(StrEnum):
    WARMING_UP = "WarmingUp"
    MEASURING = "Measuring"


@dataclass(frozen=True, slots=True)
class Progress:
    """Told about once a second while a point is measured."""

    phase: Phase
    seconds: float
    share: float
    """0 to 1, an estimate."""
    relative_error: float | None = None


Report = Callable[[Progress], None]


class Clock(Protocol):
    """Seconds on any steady scale."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


Pairs = Sequence[tuple[int, int]]
"""(input tokens, output tokens) of requests."""
