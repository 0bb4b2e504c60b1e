"""Small builders for the plain data that reports are made of."""

from crossover.api.decision import Decision, DecisionReason, DraftDecision, Lever, ReplicaDecision
from crossover.api.fleet import (
    Capability,
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    SchedulerReading,
)
from crossover.api.intent import Intent, Mode, ReplicaIntent, SpeculationIntent
from crossover.report.facts import TickFacts

NOW = 1_800_000_000.0


def reading(running=10.0, draft=3.0, waiting=0.0, **more):
    scheduler = SchedulerReading("dp0", running_requests=running, waiting_requests=waiting, draft_tokens=draft, **more)
    return PodReading(EngineType.SGLANG, "0.5.23", "/v1/loads", NOW, (scheduler,))


def capability(follows=True):
    return Capability(EngineType.SGLANG, "0.5.23", "EAGLE", follows_schedule=follows)


def pod(name="llama-1", phase=PodPhase.READY, age=1.0, read=True, **more):
    observed = reading() if read is True else read or None
    return PodObservation(
        name=name,
        uid=name,
        phase=phase,
        address="127.1.0.1",
        template_hash="a",
        created_at_seconds=NOW - 100,
        reading=observed,
        reading_age_seconds=age if observed else None,
        **more,
    )


def snapshot(*pods, **more):
    return FleetSnapshot(NOW, 3, tuple(pods), stale_after_seconds=30.0, **more)


def decision(
    *,
    current=3,
    target=None,
    reason=DecisionReason.WITHIN_TOLERANCE,
    draft_current=3,
    draft_target=None,
    lever=Lever.ENGINE_SCHEDULE,
    draft_reason=DecisionReason.ENGINE_FOLLOWS_SCHEDULE,
    limited=None,
):
    return Decision(
        NOW,
        ReplicaDecision(current, target, reason, "30.0 running per replica, target 32", limited),
        DraftDecision(draft_current, draft_target, lever, draft_reason, "draft 3 at 30.0 running"),
        {},
    )


INTENT = Intent(
    ReplicaIntent(1, 8, 32),
    SpeculationIntent(disable_above_running_requests=32, enable_below_running_requests=20, max_draft_tokens=3),
)


def facts(**more):
    given = {
        "at_seconds": NOW,
        "generation": 2,
        "mode": Mode.ACTIVE,
        "intent": INTENT,
        "target": "Deployment llama",
        "selector": "app=llama",
        "port": 30000,
        "engine": EngineType.SGLANG,
        "engine_version": "0.5.23",
    }
    return TickFacts(**(given | more))
