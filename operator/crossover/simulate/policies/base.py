"""The contract of a replica policy, and the Kubernetes HPA's behavior that many of them end in."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from crossover.simulate.observation import Observation

TOLERANCE = 0.1
PERIOD_SECONDS = 15.0


class ReplicaPolicy(Protocol):
    """One fleet's replica count. Stateful; made anew for every run."""

    interval_seconds: float

    def decide(self, seen: Observation) -> int | None:
        """Replicas wanted, before min and max. None = leave it alone."""


class HPABehavior:
    """autoscaling/v2 defaults: up 100 % or 4 pods in 15 s, whichever is more; down the largest recommendation of 300 s,
    100 % in 15 s (kubernetes/kubernetes pkg/controller/podautoscaler, API reference autoscaling/v2)."""

    def __init__(self, down_seconds: float = 300.0) -> None:
        self._down_seconds = down_seconds
        self._recommended: deque[tuple[float, int]] = deque()
        self._added: deque[tuple[float, int]] = deque()

    def shape(self, now: float, current: int, wanted: int) -> int:
        self._recommended.append((now, wanted))
        while self._recommended[0][0] <= now - self._down_seconds:
            self._recommended.popleft()
        stable = wanted if wanted >= current else min(current, max(value for _, value in self._recommended))
        while self._added and self._added[0][0] <= now - PERIOD_SECONDS:
            self._added.popleft()
        begin = current - sum(count for _, count in self._added)
        shaped = min(stable, max(2 * begin, begin + 4))
        if shaped > current:
            self._added.append((now, shaped - current))
        return shaped


def hpa_pods_metric(seen: Observation, target: float) -> int:
    """HPA, Pods metric (replica_calculator.go): mean of running requests over ready pods; unready pods count as idle when
    scaling up; 10 % tolerance."""
    ready, current = seen.ready, seen.replicas
    ratio = seen.running / ready / target
    count, total = ready, seen.running
    if seen.pending and ratio > 1:
        count += seen.pending
    filled = total / count / target
    if abs(1 - filled) <= TOLERANCE or (ratio - 1) * (filled - 1) < 0:
        return current
    wanted = math.ceil(filled * count - 1e-9)
    return max(wanted, current) if filled > 1 else max(1, min(wanted, current))


def keda_average_value(total: float, replicas: int, target: float) -> int:
    """KEDA's default: an external metric as AverageValue: ceil(total / target) outside of the tolerance."""
    ratio = total / (target * replicas)
    return replicas if abs(1 - ratio) <= TOLERANCE else max(1, math.ceil(total / target - 1e-9))
