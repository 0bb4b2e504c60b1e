"""What a policy is shown of the fleet: delayed, and now and then missing."""

from __future__ import annotations

from dataclasses import dataclass

from crossover.simulate.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Observation:
    """One look. Per-pod values are equal (least-requests router); ``known`` False = the metrics were lost."""

    at_seconds: float
    ready: int
    pending: int
    running: float
    waiting: float
    kv_usage: float
    max_running_requests: int
    kv_capacity_tokens: float
    draft_tokens: int
    output_rate: float
    arrival_rate: float
    input_rate: float
    mean_input: float
    mean_output: float
    mean_context: float
    tpot_seconds: float
    acceptance_length: float
    rolling: bool = False
    known: bool = True

    @property
    def replicas(self) -> int:
        return self.ready + self.pending


def observe(fleet: Fleet) -> Observation:
    state, plant = fleet.state, fleet.physics.plant
    per_replica = state.running / state.ready
    mean_input = state.input_rate / state.arrival_rate if state.arrival_rate > 1e-9 else 0.0
    return Observation(
        at_seconds=state.now,
        ready=state.ready,
        pending=len(state.pending),
        running=state.running,
        waiting=state.waiting,
        kv_usage=min(1.0, per_replica * state.mean_context / plant.kv_capacity_tokens),
        max_running_requests=fleet.physics.max_running_requests,
        kv_capacity_tokens=plant.kv_capacity_tokens,
        draft_tokens=state.draft_tokens,
        output_rate=state.output_rate,
        arrival_rate=state.arrival_rate,
        input_rate=state.input_rate,
        mean_input=mean_input,
        mean_output=state.mean_output,
        mean_context=state.mean_context,
        tpot_seconds=state.tpot_seconds,
        acceptance_length=plant.acceptance_length(state.draft_tokens),
        rolling=fleet.rollout_until is not None,
    )
