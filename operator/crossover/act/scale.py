"""From a `ReplicaDecision` to a write of the scale subresource, or none. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from crossover.api.decision import ReplicaDecision
from crossover.api.workload import Workload


@dataclass(frozen=True, slots=True)
class ScalePatch:
    path: str
    replicas: int
    summary: str
    """``"replicas 3 -> 5"``."""


def plan_scale(workload: Workload, decision: ReplicaDecision) -> ScalePatch | None:
    """None = the target already asks for it, or the decision leaves it alone.

    The count in ``workload`` counts, not the one the decision saw: a decision is written once, however often it is
    repeated.
    """
    if decision.target is None or decision.target == workload.desired_replicas:
        return None
    before = "unknown" if workload.desired_replicas is None else str(workload.desired_replicas)
    return ScalePatch(workload.path, decision.target, f"replicas {before} -> {decision.target}")
