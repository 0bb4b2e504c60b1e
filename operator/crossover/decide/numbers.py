"""Every number the messages speak of, by name with unit."""

from __future__ import annotations

from crossover.api.fleet import FleetSnapshot
from crossover.decide.demand import Demand
from crossover.decide.load import FleetLoad


def numbers_of(snapshot: FleetSnapshot, load: FleetLoad, demand: Demand | None) -> dict[str, float | None]:
    """What simple and calibrated mode share. None = unknown."""
    return {
        "desired_replicas": snapshot.desired_replicas,
        "pods_known": load.known,
        "pods_unknown": load.unknown,
        "pods_pending": load.pending,
        "pods_terminating": load.terminating,
        "demand_requests_per_replica": load.mean_demand,
        "running_requests_per_scheduler": load.running_per_scheduler,
        "running_requests": load.running,
        "waiting_requests": load.waiting,
        "output_tokens_per_second": load.output_tokens_per_second,
        "demand_tokens_per_second": demand.now if demand is not None else None,
        "demand_tokens_per_second_per_scheduler": demand_per_scheduler(load, demand),
        "demand_forecast_tokens_per_second": demand.forecast if demand is not None else None,
        "backlog_tokens": demand.backlog_tokens if demand is not None else None,
        "draft_tokens": load.draft_in_force,
        "startup_seconds": snapshot.startup_seconds,
    }


def demand_per_scheduler(load: FleetLoad, demand: Demand | None) -> float | None:
    """What one scheduler is asked for while the ready pods share the demand: comparable across replica counts."""
    if demand is None or not load.schedulers or not load.known:
        return None
    return demand.now / (load.schedulers / load.known * (load.known + load.unknown))
