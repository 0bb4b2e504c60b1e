"""Peers' replica policies. Each class names its source; ``target`` is what the same search tunes for all of them."""

from __future__ import annotations

import math
from collections import deque

from crossover.simulate.observation import Observation
from crossover.simulate.policies.base import HPABehavior, hpa_pods_metric, keda_average_value


class HPA:
    """Kubernetes HPA v2 on running requests per pod (kubernetes/kubernetes podautoscaler)."""

    interval_seconds = 15.0

    def __init__(self, target: float) -> None:
        self._target, self._behavior = target, HPABehavior()

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        return self._behavior.shape(seen.at_seconds, seen.replicas, hpa_pods_metric(seen, self._target))


class KEDA:
    """KEDA Prometheus scaler + HPA, AverageValue, on running + waiting (kedacore/keda; llm-d and vLLM guides)."""

    interval_seconds = 15.0

    def __init__(self, target: float) -> None:
        self._target, self._behavior = target, HPABehavior()

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        wanted = keda_average_value(seen.running + seen.waiting, seen.replicas, self._target)
        return self._behavior.shape(seen.at_seconds, seen.replicas, wanted)


class KPA:
    """Knative KPA: 60 s stable and 6 s panic windows of total concurrency (knative/serving autoscaler.go)."""

    interval_seconds = 2.0

    def __init__(self, target: float) -> None:
        self._target = target
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_until, self._panic_high = -1.0, 0

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        now = seen.at_seconds
        self._seen.append((now, seen.running + seen.waiting))
        while self._seen[0][0] <= now - 60:
            self._seen.popleft()
        recent = [value for at, value in self._seen if at > now - 6]
        stable, panic = sum(v for _, v in self._seen) / len(self._seen), sum(recent) / len(recent)
        count = max(1, seen.ready)
        low, high = count // 2, math.ceil(1000 * count)
        by_stable = min(max(math.ceil(stable / self._target), low), high)
        by_panic = min(max(math.ceil(panic / self._target), low), high)
        if math.ceil(panic / self._target) / count >= 2:
            self._panic_until = now + 60
        if now < self._panic_until:
            self._panic_high = max(self._panic_high, by_stable, by_panic)
            return max(1, self._panic_high)
        self._panic_high = 0
        return max(1, by_stable)


class APA:
    """AIBrix APA (podautoscaler): 180 s mean, tolerance 10 %, rates 2; the down window takes the MIN as shipped, or the MAX
    as the HPA does."""

    interval_seconds = 10.0

    def __init__(self, target: float, *, down_takes_min: bool) -> None:
        self._target, self._pick = target, min if down_takes_min else max
        self._seen: deque[tuple[float, float]] = deque()
        self._recommended: deque[tuple[float, int]] = deque()

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        now, current = seen.at_seconds, seen.replicas
        self._seen.append((now, seen.running / seen.ready))
        while self._seen[0][0] <= now - 180:
            self._seen.popleft()
        ratio = sum(value for _, value in self._seen) / len(self._seen) / self._target
        wanted = current
        if ratio > 1.1:
            wanted = min(math.ceil(current * ratio), math.ceil(2 * current))
        elif ratio < 0.9:
            wanted = max(math.ceil(current * ratio), current // 2, 1)
        self._recommended.append((now, wanted))
        while self._recommended[0][0] <= now - 300:
            self._recommended.popleft()
        return wanted if wanted >= current else min(current, self._pick(value for _, value in self._recommended))


class KEDAOnly:
    """llm-d's KEDA-only guides: ceil(sum of KV use / 0.8) and queued prefill tokens over what an idle replica prefills in
    1.5 s; the larger (llm-d keda-epp-token-aware)."""

    interval_seconds = 15.0
    PREFILL_TOKENS_PER_SECOND = 15_928.0

    def __init__(self, target: float) -> None:
        self._behavior = HPABehavior()

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        decode = math.ceil(seen.kv_usage * seen.ready / 0.8)
        prefill = math.ceil(seen.waiting * seen.mean_input / (self.PREFILL_TOKENS_PER_SECOND * 1.5))
        return self._behavior.shape(seen.at_seconds, seen.replicas, max(1, decode, prefill))


class Ray:
    """Ray Serve: ceil(n x mean ongoing over 30 s / target), only when held 30 s up or 600 s down (Ray docs)."""

    interval_seconds = 10.0

    def __init__(self, target: float) -> None:
        self._target = target
        self._seen: deque[tuple[float, float]] = deque()
        self._since: tuple[int, float] = (0, 0.0)

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        now = seen.at_seconds
        self._seen.append((now, (seen.running + seen.waiting) / seen.ready))
        while self._seen[0][0] <= now - 30:
            self._seen.popleft()
        mean = sum(value for _, value in self._seen) / len(self._seen)
        wanted = max(1, math.ceil(seen.ready * mean / self._target - 1e-9))
        direction = (wanted > seen.replicas) - (wanted < seen.replicas)
        if direction != self._since[0]:
            self._since = (direction, now)
        held = now - self._since[1]
        return wanted if direction and held >= (30 if direction > 0 else 600) else None


class Static:
    """A fixed count: ``target`` replicas."""

    interval_seconds = 3600.0

    def __init__(self, target: float) -> None:
        self._replicas = max(1, round(target))

    def decide(self, seen: Observation) -> int | None:
        return self._replicas
