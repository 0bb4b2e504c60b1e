"""The fleet's load in the numbers that decisions speak of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crossover.api.fleet import FleetSnapshot, PodObservation, PodPhase, SchedulerReading

NEAR_LIMIT = 0.95
"""Share of the engine's own limit from which a batch counts as full."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """Over ready pods with a fresh reading. None = no such pod."""

    demands: tuple[float, ...]
    """Running + waiting requests of each known pod. A saturated engine's running count is capped at its own limit, so
    running alone cannot see overload (docs/design/0040)."""
    running: float | None
    """Sum over known pods."""
    running_per_scheduler: float | None
    """Mean decode batch over schedulers: what a speculation threshold is compared with."""
    waiting: float | None
    """Sum over known pods; None when no engine tells its queue."""
    output_tokens_per_second: float | None
    """Sum over known pods; None when one of them does not tell."""
    drafts: Mapping[int, int] = field(default_factory=dict)
    """Draft length in force -> schedulers that tell it (an idle scheduler tells none)."""
    known: int = 0
    unknown: int = 0
    hidden_queues: int = 0
    """Known pods whose batch is full and whose queue cannot be seen: their demand is at least what is counted."""
    pending: int = 0
    terminating: int = 0
    failed: int = 0
    schedulers: int = 0
    """Over known pods."""

    @property
    def mean_demand(self) -> float | None:
        return sum(self.demands) / len(self.demands) if self.demands else None

    @property
    def draft_in_force(self) -> int | None:
        """The one draft length of all schedulers that tell; None = unknown or mixed."""
        return next(iter(self.drafts)) if len(self.drafts) == 1 else None


def measure(snapshot: FleetSnapshot) -> FleetLoad:
    """Sum up a snapshot. A pod whose running requests are unknown counts as unknown as a whole."""
    told = [(pod, demand) for pod in snapshot.known if (demand := _demand(pod)) is not None]
    schedulers = [scheduler for pod, _ in told for scheduler in _schedulers(pod)]
    running = [scheduler.running_requests for scheduler in schedulers if scheduler.running_requests is not None]
    waiting = [scheduler.waiting_requests for scheduler in schedulers if scheduler.waiting_requests is not None]
    rates = [pod.output_tokens_per_second for pod, _ in told if pod.output_tokens_per_second is not None]
    phases = Counter(pod.phase for pod in snapshot.pods)
    return FleetLoad(
        demands=tuple(demand for _, demand in told),
        running=sum(running) if running else None,
        running_per_scheduler=sum(running) / len(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        output_tokens_per_second=sum(rates) if rates and len(rates) == len(told) else None,
        drafts=dict(sorted(Counter(round(s.draft_tokens) for s in schedulers if s.draft_tokens is not None).items())),
        known=len(told),
        unknown=phases[PodPhase.READY] - len(told),
        hidden_queues=sum(1 for pod, _ in told if _hides_queue(pod)),
        pending=phases[PodPhase.PENDING],
        terminating=phases[PodPhase.TERMINATING],
        failed=phases[PodPhase.FAILED],
        schedulers=len(schedulers),
    )


def _schedulers(pod: PodObservation) -> Sequence[SchedulerReading]:
    return pod.reading.schedulers if pod.reading is not None else ()


def _demand(pod: PodObservation) -> float | None:
    """Running + waiting over the pod's schedulers; unknown waiting counts as none, unknown running as unknown."""
    total = 0.0
    for scheduler in _schedulers(pod):
        if scheduler.running_requests is None:
            return None
        total += scheduler.running_requests + (scheduler.waiting_requests or 0.0)
    return total if _schedulers(pod) else None


def _hides_queue(pod: PodObservation) -> bool:
    return any(
        scheduler.waiting_requests is None
        and scheduler.running_requests is not None
        and (limit := limit_of(pod, scheduler)) is not None
        and scheduler.running_requests >= NEAR_LIMIT * limit
        for scheduler in _schedulers(pod)
    )


def limit_of(pod: PodObservation, scheduler: SchedulerReading) -> float | None:
    """The engine's own limit on the decode batch, where it tells one."""
    if scheduler.max_running_requests is not None:
        return scheduler.max_running_requests
    return pod.capability.max_running_requests if pod.capability is not None else None
