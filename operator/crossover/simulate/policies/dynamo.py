"""NVIDIA Dynamo's planner: by load, and by service levels."""

from __future__ import annotations

import math

from crossover.simulate.fleet import Physics
from crossover.simulate.observation import Observation
from crossover.simulate.policies.own import most_requests
from crossover.simulate.traces import Trace


class Load:
    """Dynamo planner, load path in easy mode, target throughput: any engine over its KV: +1; all below 0.6: -1
    (ai-dynamo/dynamo planner load_scaling.py @936d8195)."""

    interval_seconds = 5.0

    def __init__(self, target: float) -> None:
        self._last_change = -1e9

    def decide(self, seen: Observation) -> int | None:
        if not seen.known or seen.pending:
            return None
        queued = seen.waiting / seen.ready * (seen.mean_input + seen.mean_output)
        use = seen.kv_usage + queued / seen.kv_capacity_tokens
        if use > 1.0:
            return seen.ready + 1
        return max(1, seen.ready - 1) if use < 0.6 else seen.ready


class SLA:
    """SLA path: estimated TPOT (inter-token latency over the accept length) and TTFT: either over its target: +1; both below
    0.8 of it: -1; every 180 s not below predicted rate / rate that one engine serves within the targets
    (planner @08db9ac2). The engine's rate comes from its profile, drafts at full length; the prediction is constant."""

    interval_seconds = 5.0
    FLOOR_SECONDS = 180.0

    def __init__(self, physics: Physics, trace: Trace) -> None:
        self._physics = physics
        self._floor, self._floor_at = 1, -1e9
        self._engine_rate = most_requests(trace, physics, [3] * (physics.max_running_requests + 1))

    def decide(self, seen: Observation) -> int | None:
        if not seen.known or seen.pending:
            return None
        if seen.at_seconds - self._floor_at >= self.FLOOR_SECONDS:
            self._floor = max(1, math.ceil(seen.arrival_rate / self._engine_rate))
            self._floor_at = seen.at_seconds
        tpot = seen.tpot_seconds / self._physics.tpot_target_seconds
        prefill = self._physics.plant.prefill_seconds(seen.mean_input * (1 + seen.waiting / seen.ready))
        ttft = prefill / self._physics.ttft_target_seconds
        wanted = seen.ready + 1 if max(tpot, ttft) > 1 else seen.ready - 1 if max(tpot, ttft) < 0.8 else seen.ready
        return max(self._floor, wanted, 1)
