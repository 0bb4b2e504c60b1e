"""Pure assembly of the `FleetSnapshot`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from crossover.api.fleet import FleetSnapshot, PodObservation, SpeculationSettings

STARTUP_SAMPLES = 10


def assemble(
    pods: Sequence[PodObservation],
    *,
    at_seconds: float,
    desired_replicas: int | None,
    stale_after_seconds: float,
    rollout_in_progress: bool,
    settings: SpeculationSettings | None,
) -> FleetSnapshot:
    """Everything seen of one fleet at one moment."""
    return FleetSnapshot(
        at_seconds=at_seconds,
        desired_replicas=desired_replicas,
        pods=tuple(sorted(pods, key=lambda pod: pod.name)),
        stale_after_seconds=stale_after_seconds,
        rollout_in_progress=rollout_in_progress,
        settings=settings,
        startup_seconds=startup_seconds(pods),
    )


def startup_seconds(pods: Sequence[PodObservation]) -> float | None:
    """Creation to Ready, median over the newest pods that have been ready. Restarted pods tell another time."""
    newest = sorted(pods, key=lambda pod: pod.created_at_seconds, reverse=True)
    times = [
        pod.ready_at_seconds - pod.created_at_seconds
        for pod in newest
        if pod.ready_at_seconds is not None and pod.restarts == 0 and pod.ready_at_seconds >= pod.created_at_seconds
    ]
    return median(times[:STARTUP_SAMPLES]) if times else None
