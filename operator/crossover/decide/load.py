"""The fleet's load in the numbers that decisions speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossover.api.fleet import FleetSnapshot, PodObservation, PodPhase, SchedulerReading


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """Over ready pods with a fresh reading. None = no such pod."""

    demands: tuple[float, ...]
    """Running + waiting requests of each known pod. A saturated engine's running count is capped at its own limit, so
    running alone cannot see overload."""
    running_per_scheduler: float | None
    """Mean decode batch over schedulers: what a speculation threshold is compared with."""
    waiting: float | None
    output_tokens_per_second: float | None
    draft_in_force: int | None
    """The one draft length of all schedulers that tell; None = unknown or mixed."""
    known: int
    unknown: int
    pending: int
    terminating: int

    @property
    def mean_demand(self) -> float | None:
        return sum(self.demands) / len(self.demands) if self.demands else None


def measure(snapshot: FleetSnapshot) -> FleetLoad:
    """Sum up a snapshot. A pod whose running requests are unknown counts as unknown as a whole."""
    told = [(pod, demand) for pod in snapshot.known if (demand := _demand(pod)) is not None]
    ready = len(snapshot.in_phase(PodPhase.READY))
    schedulers = [scheduler for pod, _ in told for scheduler in _schedulers(pod)]
    running = [scheduler.running_requests for scheduler in schedulers if scheduler.running_requests is not None]
    waiting = [scheduler.waiting_requests for scheduler in schedulers if scheduler.waiting_requests is not None]
    rates = [pod.output_tokens_per_second for pod, _ in told if pod.output_tokens_per_second is not None]
    drafts = {round(scheduler.draft_tokens) for scheduler in schedulers if scheduler.draft_tokens is not None}
    return FleetLoad(
        demands=tuple(demand for _, demand in told),
        running_per_scheduler=sum(running) / len(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        output_tokens_per_second=sum(rates) if rates and len(rates) == len(told) else None,
        draft_in_force=drafts.pop() if len(drafts) == 1 else None,
        known=len(told),
        unknown=ready - len(told),
        pending=len(snapshot.in_phase(PodPhase.PENDING)),
        terminating=len(snapshot.in_phase(PodPhase.TERMINATING)),
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
