"""llm-d's workload variant autoscaler in its three forms, each ending in an HPA's behavior."""

from __future__ import annotations

import math
from collections import deque

from crossover.simulate.fleet import Physics
from crossover.simulate.observation import Observation
from crossover.simulate.policies.base import HPABehavior
from crossover.simulate.traces import Trace


class Saturation:
    """llm-d WVA V1, saturation: spare KV below 0.10 or spare queue below 3: one up; one down when both spares would stay
    (workload-variant-autoscaler @v0.5.1). ``target`` is not used: its thresholds are its own."""

    interval_seconds = 15.0

    def __init__(self, target: float) -> None:
        self._behavior = HPABehavior()

    def decide(self, seen: Observation) -> int | None:
        if not seen.known or seen.pending:
            return None
        queue = seen.waiting / seen.ready
        saturated = seen.kv_usage >= 0.80 or queue >= 5
        wanted = seen.ready
        if saturated or 0.80 - seen.kv_usage < 0.10 or 5 - queue < 3:
            wanted = seen.ready + 1
        elif seen.ready >= 2:
            factor = seen.ready / (seen.ready - 1)
            if 0.80 - seen.kv_usage * factor >= 0.10 and 5 - queue * factor >= 3:
                wanted = seen.ready - 1
        return self._behavior.shape(seen.at_seconds, seen.replicas, wanted)


class Tokens:
    """llm-d WVA V2: tokens in use plus queued against min(0.80 KV, learned k2); up at 0.85, down at 0.70
    (llm-d-autoscaling saturation_v2 @2976e4ee)."""

    interval_seconds = 15.0

    def __init__(self, target: float) -> None:
        self._behavior = HPABehavior()
        self._k2: deque[float] = deque(maxlen=10)

    def decide(self, seen: Observation) -> int | None:
        if not seen.known:
            return None
        in_use = seen.kv_usage * seen.kv_capacity_tokens
        if seen.waiting / seen.ready >= 5:
            self._k2.append(in_use)
        k1 = 0.80 * seen.kv_capacity_tokens
        if self._k2:
            k2 = sum(self._k2) / len(self._k2)
        elif seen.mean_input + seen.mean_output > 0:
            batch = 8192 * seen.mean_output / (seen.mean_input + seen.mean_output)
            k2 = min(batch, seen.max_running_requests) * (seen.mean_input + seen.mean_output / 2)
        else:
            k2 = k1
        capacity = max(1.0, min(k1, k2))
        demand = in_use * seen.ready + seen.waiting * (seen.mean_input + seen.mean_output)
        required = max(0.0, demand / 0.85 - seen.replicas * capacity)
        spare = max(0.0, seen.ready * capacity - demand / 0.70)
        wanted = seen.replicas + math.ceil(required / capacity - 1e-9)
        if required == 0:
            wanted = max(1, seen.replicas - int(spare / capacity))
        return self._behavior.shape(seen.at_seconds, seen.replicas, wanted)


class Queueing:
    """Queueing model: iteration time T = alpha / (1 - rho), rho = lambda (beta (i + o) + gamma (o + 1) (i + o / 2)), and the
    target T <= 3 alpha, so rho <= 2/3; replicas = ceil(rate / lambda*) (workload-variant-autoscaler, queueing model).

    There a Kalman filter estimates alpha, beta and gamma; here they are the plant's own: a better filter than any.
    """

    interval_seconds = 15.0
    HIGHEST_LOAD = 2 / 3

    def __init__(self, physics: Physics, trace: Trace) -> None:
        plant, self._behavior = physics.plant, HPABehavior()
        alpha = plant.step_seconds(1, 0, 0.0, False)
        self._beta = (plant.step_seconds(128, 0, 0.0, False) - alpha) / 127
        self._gamma = (plant.step_seconds(1, 0, 1e5, False) - alpha) / 1e5
        self._prefill = plant.prefill_seconds(8192) / 8192

    def decide(self, seen: Observation) -> int | None:
        if not seen.known or seen.arrival_rate <= 0:
            return None
        given, made = seen.mean_input, seen.mean_output
        per_request = (
            max(self._beta, 0.0) * made + self._prefill * given + self._gamma * (made + 1) * (given + made / 2)
        )
        wanted = max(1, math.ceil(seen.arrival_rate * per_request / self.HIGHEST_LOAD - 1e-9))
        return self._behavior.shape(seen.at_seconds, seen.replicas, wanted)
