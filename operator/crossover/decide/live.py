"""What is true of the fleet now and was not part of the calibration: context, acceptance, limits, corrections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from crossover.api.decision import Memory
from crossover.api.fleet import FleetSnapshot, PodObservation, SchedulerReading
from crossover.decide.acceptance import shift_between, truncated
from crossover.decide.load import FleetLoad, limit_of
from crossover.decide.operating import Conditions
from crossover.decide.profile import Profile
from crossover.decide.variant import Variant

SHIFT = "acceptance_shift"
SHIFT_AT = "acceptance_shift_at_seconds"
SHIFT_SECONDS = 120.0
"""Acceptance of a fleet is known within seconds; slower averaging only follows the workload."""
FEWEST_RUNNING = 4.0
"""Requests over the fleet from which live acceptance and context say something."""


@dataclass(frozen=True, slots=True)
class Live:
    """Averages over the known pods. None = not told."""

    acceptance_length: float | None
    acceptance_by_position: tuple[float, ...]
    """Marginals of position 1..K over the lifetimes of the processes."""
    context_tokens: float | None
    max_running_requests: float | None
    kv_capacity_tokens: float | None


def look(snapshot: FleetSnapshot, load: FleetLoad) -> Live:
    pods = snapshot.known
    enough = (load.running or 0.0) >= FEWEST_RUNNING
    limits = [limit for pod, item in _schedulers(pods) if (limit := limit_of(pod, item)) is not None]
    pools = [item.kv_capacity_tokens for _, item in _schedulers(pods) if item.kv_capacity_tokens]
    return Live(
        _acceptance(pods) if enough else None,
        _by_position(pods),
        _context(pods) if enough else None,
        min(limits, default=None),
        min(pools, default=None),
    )


def _schedulers(pods: tuple[PodObservation, ...]) -> Iterator[tuple[PodObservation, SchedulerReading]]:
    for pod in pods:
        for scheduler in pod.reading.schedulers if pod.reading is not None else ():
            yield pod, scheduler


def _acceptance(pods: tuple[PodObservation, ...]) -> float | None:
    """Weighted by the batch: a pod with one request says little."""
    weight = total = 0.0
    for pod in pods:
        running = sum(item.running_requests or 0.0 for item in (pod.reading.schedulers if pod.reading else ()))
        if pod.acceptance_length is not None and pod.acceptance_length >= 1:
            weight, total = weight + running, total + running * pod.acceptance_length
    return total / weight if weight else None


def _by_position(pods: tuple[PodObservation, ...]) -> tuple[float, ...]:
    drafts, accepted = 0.0, [0.0] * 64
    for _, item in _schedulers(pods):
        if item.drafts_total and item.accepted_tokens_by_position_total:
            drafts += item.drafts_total
            for place, value in enumerate(item.accepted_tokens_by_position_total[:64]):
                accepted[place] += value
    marginals = [value / drafts for value in accepted] if drafts else []
    while marginals and marginals[-1] <= 0:
        marginals.pop()
    return tuple(marginals)


def _context(pods: tuple[PodObservation, ...]) -> float | None:
    """KV tokens in use per running request."""
    tokens = running = 0.0
    for _, item in _schedulers(pods):
        used = item.kv_tokens
        if used is None and item.kv_usage is not None and item.kv_capacity_tokens:
            used = item.kv_usage * item.kv_capacity_tokens
        if used is not None and item.running_requests:
            tokens, running = tokens + used, running + item.running_requests
    return tokens / running if running else None


def conditions(
    live: Live, profile: Profile, memory: Memory, now: float, in_force: Variant | None, tpot_seconds: float | None
) -> tuple[Conditions, Memory]:
    """Conditions for the profile's curves. Live acceptance at the draft length in force moves the others with it: by
    positions where the engine counts them (shorter drafts), else by the equivalent single rate."""
    lengths: dict[Variant, float] = {}
    curve = profile.curves.get(in_force) if in_force is not None else None
    length = live.acceptance_length
    if curve is not None and in_force is not None and in_force.draft_tokens and curve.acceptance_known and length:
        sample = shift_between(curve.acceptance_length, min(length, in_force.draft_tokens + 1.0), in_force.draft_tokens)
        memory = _averaged(memory, sample, now)
        for variant in profile.curves:
            if 0 < variant.draft_tokens < in_force.draft_tokens:
                shorter = truncated(length, live.acceptance_by_position[: in_force.draft_tokens], variant.draft_tokens)
                if shorter is not None and len(live.acceptance_by_position) >= in_force.draft_tokens:
                    lengths[variant] = shorter
    context = live.context_tokens if live.context_tokens is not None else profile.context_tokens
    return (
        Conditions(
            context_tokens=context,
            acceptance_shift=memory.observations.get(SHIFT, 0.0),
            lengths=lengths,
            correction=memory.correction,
            max_running_requests=live.max_running_requests,
            kv_capacity_tokens=live.kv_capacity_tokens,
            tpot_seconds=tpot_seconds,
        ),
        memory,
    )


def _averaged(memory: Memory, sample: float, now: float) -> Memory:
    before, at = memory.observations.get(SHIFT), memory.observations.get(SHIFT_AT)
    share = 1.0 if before is None or at is None else 1 - math.exp(-max(0.0, now - at) / SHIFT_SECONDS)
    moved = sample if before is None else before + (sample - before) * share
    return replace(memory, observations={**memory.observations, SHIFT: moved, SHIFT_AT: now})
