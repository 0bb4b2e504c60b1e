"""Small builders of what `decide` reads."""

from __future__ import annotations

from dataclasses import replace

from crossover.api.fleet import (
    Capability,
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    ScheduleDialect,
    SchedulerReading,
    SpeculationSettings,
)
from crossover.api.intent import Intent, ReplicaIntent, SpeculationIntent
from crossover.decide import plan, with_changes

NOW = 1_800_000_000.0

FOLLOWS = Capability(
    EngineType.SGLANG,
    "0.5.23",
    "EAGLE",
    max_draft_tokens=3,
    schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE,
    zero_is_safe=True,
)
RESTART_ONLY = Capability(
    EngineType.SGLANG,
    "0.5.23",
    "NGRAM",
    max_draft_tokens=7,
    schedule_refusal="SGLang's adaptive steps support EAGLE and EAGLE3, not NGRAM",
)
ON = SpeculationSettings(EngineType.SGLANG, enabled=True, algorithm="NGRAM", draft_tokens=7)
OFF = SpeculationSettings(EngineType.SGLANG, enabled=False)
EAGLE = SpeculationSettings(EngineType.SGLANG, enabled=True, algorithm="EAGLE", draft_tokens=3)

THRESHOLD = SpeculationIntent(
    disable_above_running_requests=32,
    enable_below_running_requests=20,
    stabilization_window_seconds=60.0,
    min_dwell_seconds=900.0,
)
INTENT = Intent(ReplicaIntent(min=1, max=20, target_running_requests=32), THRESHOLD)


def reading(running=10.0, waiting=0.0, draft=None, ranks=1, **more):
    schedulers = tuple(
        SchedulerReading(f"dp{rank}", running_requests=running, waiting_requests=waiting, draft_tokens=draft, **more)
        for rank in range(ranks)
    )
    return PodReading(EngineType.SGLANG, "0.5.23", "/v1/loads", NOW, schedulers)


def pod(
    name="a", running=10.0, waiting=0.0, draft=None, *, phase=PodPhase.READY, age=1.0, capability=RESTART_ONLY, **more
):
    """``running`` None = never read."""
    observed = None if running is None else reading(running, waiting, draft, **more)
    return PodObservation(
        name=name,
        uid=name,
        phase=phase,
        address="127.1.0.1",
        template_hash="h",
        created_at_seconds=NOW - 1000,
        ready_at_seconds=NOW - 900 if phase is PodPhase.READY else None,
        reading=observed,
        reading_age_seconds=None if observed is None else age,
        capability=capability,
    )


def fleet(
    *running,
    at=NOW,
    desired=None,
    waiting=0.0,
    draft=None,
    capability=RESTART_ONLY,
    settings=ON,
    pending=0,
    terminating=0,
    **more,
):
    """A fleet of ready pods with these running requests (None = unknown) and some that come or go."""
    pods = [pod(f"r{n}", value, waiting, draft, capability=capability) for n, value in enumerate(running)]
    pods += [pod(f"p{n}", None, phase=PodPhase.PENDING, capability=None) for n in range(pending)]
    pods += [pod(f"t{n}", 5.0, phase=PodPhase.TERMINATING, capability=capability) for n in range(terminating)]
    count = len(running) + pending if desired is None else desired
    return FleetSnapshot(at, count, tuple(pods), stale_after_seconds=30.0, settings=settings, **more)


def run(memory, intent, snapshots, *, apply=True):
    """Decisions over a series of snapshots, memory carried along; ``apply`` = every decision is carried out."""
    decisions = []
    for snapshot in snapshots:
        decision = plan(snapshot, intent, memory)
        memory = decision.memory
        if apply:
            memory = with_changes(memory, decision, replicas=True, draft=True)
        decisions.append(decision)
    return decisions, memory


def replicas(**more):
    """The usual intent with other replica settings."""
    return replace(INTENT, replicas=replace(INTENT.replicas, **more))


def speculation(**more):
    return replace(INTENT, speculation=replace(THRESHOLD, **more))
