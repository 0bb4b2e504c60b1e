"""A fleet as a fluid: requests are real numbers, pods start, serve, drain and are rolled, all on the step-time model.

Closed-loop ground for `plan`: what it decides changes what it sees next. Requests arrive at a rate, go to the pods with the
fewest requests, wait when the engine's limit is reached, and leave when their tokens are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from crossover.api.decision import Decision, Lever, Memory
from crossover.api.fleet import (
    Capability,
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    ScheduleDialect,
    SchedulerReading,
    SpeculationSettings,
)
from crossover.api.intent import Intent
from crossover.decide import plan, with_changes
from crossover.decide.schedule import draft_at
from crossover.decide.step_model import PRESETS, StepModel, acceptance_length

START = 1_800_000_000.0
RATE_SECONDS = 15.0
"""Time constant of the served rate that pods show."""


@dataclass
class FluidPod:
    name: str
    created: float
    ready_at: float
    generation: int
    settings: SpeculationSettings
    running: float = 0.0
    waiting: float = 0.0
    rate: float = 0.0
    tokens: float = 10_000.0
    finished: float = 50.0
    draining_since: float | None = None

    @property
    def requests(self) -> float:
        return self.running + self.waiting


@dataclass
class FluidFleet:
    """One model deployment."""

    model: StepModel = PRESETS["70b-a100-tp4"]
    settings: SpeculationSettings = field(
        default_factory=lambda: SpeculationSettings(EngineType.SGLANG, True, "NGRAM", draft_tokens=7)
    )
    follows: bool = False
    """The engine takes a schedule."""
    acceptance: float = 0.67
    context: float = 512.0
    output_tokens: float = 250.0
    limit: float = 256.0
    kv_capacity: float = 400_000.0
    startup: float = 120.0
    drain: float = 60.0
    max_surge: int = 1
    desired: int = 4
    slower: float = 1.0
    """True step time as a share of the model's."""
    blind: set[str] = field(default_factory=set)
    """Pods whose metrics fail."""
    now: float = START

    def __post_init__(self) -> None:
        self.generation, self.count = 0, 0
        self.pods: list[FluidPod] = []
        self.queue = 0.0
        self.lost = 0.0
        for _ in range(self.desired):
            self._create(ready=True)

    def warm(self, demand: float) -> FluidFleet:
        """As if it had served this demand (output tokens/s) for long."""
        for _ in range(900):
            self.step(demand / self.output_tokens)
        return self

    # -- one second ---------------------------------------------------------------------------------------------------

    def step(self, arrivals_per_second: float, seconds: float = 1.0) -> None:
        self.now += seconds
        self._route(self.queue + arrivals_per_second * seconds)
        for pod in self.pods:
            if pod.ready_at <= self.now:
                self._serve(pod, seconds)
        self._finish_draining()
        self._replicas()

    def draft_of(self, pod: FluidPod) -> int:
        if not pod.settings.enabled:
            return 0
        if pod.settings.schedule:
            return draft_at(pod.settings.schedule, max(1.0, pod.running)) or 0
        return pod.settings.draft_tokens or 0

    def rate_at(self, running: float, draft: int, off: bool) -> float:
        """S(b, K), the truth."""
        if running <= 0:
            return 0.0
        batch = max(running, 1.0)
        seconds = self.slower * self.model.step_seconds(batch, draft, batch * self.context, off=off)
        return running * acceptance_length(self.acceptance, draft) / seconds

    def tpot_of(self, pod: FluidPod) -> float:
        rate = self.rate_at(max(pod.running, 1e-3), self.draft_of(pod), not pod.settings.enabled)
        return max(pod.running, 1e-3) / rate

    def _serve(self, pod: FluidPod, seconds: float) -> None:
        rate = self.rate_at(pod.running, self.draft_of(pod), not pod.settings.enabled)
        done = min(pod.running, rate * seconds / self.output_tokens)
        pod.running -= done
        pod.tokens += done * self.output_tokens
        pod.finished += done
        pod.rate += (done * self.output_tokens / seconds - pod.rate) * min(1.0, seconds / RATE_SECONDS)
        limit = min(self.limit, self.kv_capacity / self.context)
        admitted = max(0.0, min(pod.waiting, limit - pod.running))
        pod.running += admitted
        pod.waiting -= admitted

    def _route(self, arriving: float) -> None:
        """To the pods with the fewest requests, like water."""
        open_pods = sorted(self.serving, key=lambda pod: pod.requests)
        self.queue = 0.0
        if not open_pods:
            self.queue = arriving
            return
        level, filled, total = open_pods[0].requests, 0, 0.0
        for filled, pod in enumerate(open_pods, start=1):
            total += pod.requests
            level = (total + arriving) / filled
            if filled < len(open_pods) and level <= open_pods[filled].requests:
                break
        for pod in open_pods[:filled]:
            pod.waiting += max(0.0, level - pod.requests)

    # -- pods ---------------------------------------------------------------------------------------------------------

    @property
    def serving(self) -> list[FluidPod]:
        return [pod for pod in self.pods if pod.ready_at <= self.now and pod.draining_since is None]

    @property
    def staying(self) -> list[FluidPod]:
        return [pod for pod in self.pods if pod.draining_since is None]

    @property
    def rolling(self) -> bool:
        return any(pod.generation != self.generation for pod in self.staying) or (
            self.generation > 0
            and any(pod.ready_at > self.now and pod.generation == self.generation for pod in self.staying)
            and any(pod.draining_since is not None and pod.generation != self.generation for pod in self.pods)
        )

    def _create(self, ready: bool = False) -> None:
        self.count += 1
        at = self.now - 1000.0 if ready else self.now
        self.pods.append(FluidPod(f"pod-{self.count}", at, at + self.startup, self.generation, self.settings))

    def kill(self, pod: FluidPod) -> None:
        """A dead node: its requests come back to the queue."""
        self.queue += pod.requests
        self.pods.remove(pod)

    def _finish_draining(self) -> None:
        for pod in [pod for pod in self.pods if pod.draining_since is not None]:
            over = self.now - pod.draining_since >= self.drain
            if over or pod.requests < 0.5:
                self.lost += pod.requests if over else 0.0
                self.pods.remove(pod)

    def _replicas(self) -> None:
        """The workload's controller: surge first, then drain the old."""
        staying = self.staying
        old = [pod for pod in staying if pod.generation != self.generation]
        wanted = self.desired + (self.max_surge if old else 0)
        for _ in range(wanted - len(staying)):
            self._create()
        if len(staying) > wanted:
            doomed = sorted(
                staying, key=lambda pod: (pod.ready_at <= self.now, pod.generation == self.generation, -pod.created)
            )
            for pod in doomed[: len(staying) - wanted]:
                self._drain(pod)
        ready = len(self.serving)
        if old and ready > self.desired:
            self._drain(old[0])

    def _drain(self, pod: FluidPod) -> None:
        if pod.ready_at > self.now:
            self.pods.remove(pod)
        else:
            pod.draining_since = self.now
            self.queue += pod.waiting
            pod.waiting = 0.0

    # -- what is seen and done ----------------------------------------------------------------------------------------

    @property
    def capability(self) -> Capability:
        return Capability(
            EngineType.SGLANG,
            "0.5.23",
            "EAGLE" if self.follows else "NGRAM",
            max_draft_tokens=7,
            schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE if self.follows else None,
            zero_is_safe=True,
            max_running_requests=int(self.limit),
        )

    def snapshot(self) -> FleetSnapshot:
        return FleetSnapshot(
            self.now,
            self.desired,
            tuple(self._seen(pod) for pod in self.pods),
            stale_after_seconds=30.0,
            rollout_in_progress=self.rolling,
            settings=self.settings,
            startup_seconds=self.startup,
        )

    def _seen(self, pod: FluidPod) -> PodObservation:
        ready = pod.ready_at <= self.now
        phase = (
            PodPhase.TERMINATING if pod.draining_since is not None else PodPhase.READY if ready else PodPhase.PENDING
        )
        draft = self.draft_of(pod)
        told = ready and pod.name not in self.blind
        reading = PodReading(
            EngineType.SGLANG,
            "0.5.23",
            "/v1/loads",
            self.now,
            (
                SchedulerReading(
                    "dp0",
                    running_requests=pod.running,
                    waiting_requests=pod.waiting,
                    max_running_requests=self.limit,
                    kv_tokens=pod.running * self.context,
                    kv_capacity_tokens=self.kv_capacity,
                    draft_tokens=float(draft) if pod.settings.enabled and pod.running > 0.1 else None,
                    output_tokens_total=pod.tokens,
                    time_per_output_token_count=pod.finished,
                ),
            ),
        )
        return PodObservation(
            pod.name,
            pod.name,
            phase,
            "127.1.0.1",
            str(pod.generation),
            pod.created,
            pod.ready_at if ready else None,
            reading=reading if told else None,
            reading_age_seconds=1.0 if told else None,
            output_tokens_per_second=pod.rate if told else None,
            acceptance_length=acceptance_length(self.acceptance, draft) if told and draft else None,
            capability=self.capability if ready else None,
        )

    def carry_out(self, decision: Decision) -> None:
        if decision.replicas.target is not None:
            self.desired = decision.replicas.target
        if decision.draft.target is None:
            return
        if decision.draft.lever is Lever.ENGINE_SCHEDULE:
            self.settings = replace(self.settings, schedule=decision.draft.schedule)
        else:
            on = decision.draft.target > 0
            self.settings = replace(self.settings, enabled=on, draft_tokens=decision.draft.target if on else 7)
        self.generation += 1


@dataclass(frozen=True)
class Moment:
    """One tick of a run."""

    at: float
    replicas: int
    ready: int
    running: float
    """Mean per serving pod."""
    waiting: float
    tpot: float
    """Of the slowest serving pod."""
    demand: float
    decision: Decision

    def meets(self, tpot: float | None, waiting_per_pod: float = 2.0) -> bool:
        return self.waiting <= waiting_per_pod * max(1, self.ready) and (tpot is None or self.tpot <= tpot * 1.001)


def run_loop(
    fleet: FluidFleet,
    intent: Intent,
    demand: Callable[[float], float],
    seconds: float,
    *,
    profile=None,
    memory: Memory | None = None,
    tick: float = 10.0,
    step: float = 1.0,
    event: Callable[[FluidFleet, float], None] | None = None,
) -> list[Moment]:
    """``demand(t)``: output tokens/s at t seconds from the start. ``event`` is called before every tick."""
    memory = memory or Memory()
    moments: list[Moment] = []
    elapsed = 0.0
    while elapsed < seconds:
        if event is not None:
            event(fleet, elapsed)
        decision = plan(fleet.snapshot(), intent, memory, profile)
        fleet.carry_out(decision)
        memory = with_changes(decision.memory, decision, replicas=True, draft=True)
        for _ in range(int(tick / step)):
            fleet.step(demand(elapsed) / fleet.output_tokens, step)
            elapsed += step
        serving = fleet.serving
        moments.append(
            Moment(
                elapsed,
                fleet.desired,
                len(serving),
                sum(pod.running for pod in serving) / len(serving) if serving else 0.0,
                sum(pod.waiting for pod in fleet.pods) + fleet.queue,
                max((fleet.tpot_of(pod) for pod in serving), default=0.0),
                demand(elapsed),
                decision,
            )
        )
    return moments


def draft_changes(moments: list[Moment]) -> list[tuple[float, int]]:
    return [(m.at, m.decision.draft.target) for m in moments if m.decision.draft.target is not None]


def replica_changes(moments: list[Moment]) -> list[tuple[float, int]]:
    return [
        (m.at, m.decision.replicas.target)
        for m in moments
        if m.decision.replicas.target not in (None, m.decision.replicas.current)
    ]
