"""Conditions, computed once at the end of a tick by one small function per type.

Polarity: True is good, except ScalingLimited (as in the HPA). Transition times move only when the status moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from crossover.api.decision import DecisionReason, Lever
from crossover.api.fleet import PodObservation, PodPhase
from crossover.api.intent import Mode, SpeculationPolicy
from crossover.report.facts import TickFacts
from crossover.report.texts import ConditionType, Reason, pod_fault

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

MAX_MESSAGE = 1024
"""Longest condition message the CRD accepts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    status: str
    reason: str
    message: str


def compute(facts: TickFacts, previous: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All conditions of one fleet, in a fixed order; Ready last because it sums the others up."""
    verdicts: dict[ConditionType, Verdict] = {}
    for condition, judge in JUDGES.items():
        problem = facts.problem(condition)
        if problem is not None:
            status = UNKNOWN if problem.transient else FALSE
            verdicts[condition] = Verdict(status, problem.reason, problem.message)
        elif (verdict := judge(facts)) is not None:
            verdicts[condition] = verdict
    verdicts[ConditionType.READY] = _ready(facts, verdicts)
    before = {item.get("type"): item for item in previous}
    return [_as_condition(kind, verdict, facts, before.get(str(kind))) for kind, verdict in verdicts.items()]


def _as_condition(
    kind: ConditionType, verdict: Verdict, facts: TickFacts, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    kept = before is not None and before.get("status") == verdict.status
    since = before["lastTransitionTime"] if before is not None and kept else timestamp(facts.at_seconds)
    return {
        "type": str(kind),
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message[:MAX_MESSAGE],
        "lastTransitionTime": since,
        "observedGeneration": facts.generation,
    }


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as Kubernetes' metav1.Time."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _target_resolved(facts: TickFacts) -> Verdict:
    if facts.snapshot is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "the target has not been read yet")
    return Verdict(TRUE, Reason.TARGET_FOUND, f"{facts.target}, pods by selector {facts.selector!r}")


def _metrics_available(facts: TickFacts) -> Verdict:
    snapshot = facts.snapshot
    if snapshot is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "no pod has been read yet")
    ready = snapshot.in_phase(PodPhase.READY)
    if not ready:
        return Verdict(UNKNOWN, Reason.NO_READY_PODS, "no pod is ready; load is unknown, not zero")
    unknown = snapshot.unknown
    if unknown:
        clauses = "; ".join(_pod_clause(pod, facts) for pod in unknown[:3])
        more = f"; and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        worst = next((pod.fault for pod in unknown if pod.fault is not None), None)
        reason = str(worst) if worst is not None and len(unknown) == len(ready) else str(Reason.SOME_PODS_UNKNOWN)
        return Verdict(FALSE, reason, f"{len(unknown)} of {len(ready)} ready pods unknown: {clauses}{more}")
    sources = sorted({pod.reading.source for pod in ready if pod.reading is not None})
    return Verdict(TRUE, Reason.ALL_PODS_READ, f"{len(ready)} of {len(ready)} ready pods read by {', '.join(sources)}")


def _pod_clause(pod: PodObservation, facts: TickFacts) -> str:
    if pod.fault is not None:
        return pod_fault(pod.name, pod.fault, facts.port, pod.fault_detail)
    return f"pod {pod.name} has not been read yet"


def _calibrated(facts: TickFacts) -> Verdict | None:
    """None = no calibration is in use: there is nothing to say. A drifted one still counts: decisions use the corrected
    curves."""
    if not facts.calibrated or facts.decision is None:
        return None
    drift = facts.notice(DecisionReason.CALIBRATION_DRIFT)
    if drift is not None:
        return Verdict(TRUE, drift.reason, drift.message)
    return Verdict(TRUE, Reason.CALIBRATION_IN_USE, "thresholds, capacity and draft lengths come from a calibration")


def _speculation_managed(facts: TickFacts) -> Verdict:
    verdict = _managed(facts)
    told = facts.notice(*WRONG_THRESHOLD)
    if verdict.status != TRUE or told is None:
        return verdict
    return Verdict(TRUE, told.reason, told.message)


WRONG_THRESHOLD = (DecisionReason.THRESHOLD_LATCHES, DecisionReason.THRESHOLD_CYCLES)
"""What simple mode recognises of a threshold that is not the crossover. It still manages speculation, with that in mind."""


def _managed(facts: TickFacts) -> Verdict:
    intent, decision, snapshot = facts.intent, facts.decision, facts.snapshot
    if intent is not None and intent.speculation is None:
        return Verdict(FALSE, Reason.NOT_MANAGED, "spec.speculation is not set: speculation is left as it is")
    if intent is not None and intent.speculation and intent.speculation.policy is SpeculationPolicy.HOLD:
        return Verdict(FALSE, Reason.ON_HOLD, "spec.speculation.policy is Hold: speculation is left as it is")
    if decision is None or snapshot is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "nothing has been decided yet")
    draft = decision.draft
    if draft.reason is DecisionReason.NO_LEVER:
        return Verdict(FALSE, draft.reason, draft.message)
    if draft.lever is Lever.ENGINE_SCHEDULE:
        return _schedule_verdict(facts)
    return Verdict(TRUE, Reason.BY_RESTART, f"by a drained rollout; {draft.message}")


def _schedule_verdict(facts: TickFacts) -> Verdict:
    """A schedule in the template counts only when the pods say that they follow it."""
    assert facts.decision is not None
    assert facts.snapshot is not None
    draft = facts.decision.draft
    if draft.reason is DecisionReason.SCHEDULE_NEEDED:
        return Verdict(FALSE, draft.reason, draft.message)
    settings = facts.snapshot.settings
    if settings is not None and not settings.schedule:  # none is worth writing, or it waits for its moment
        return Verdict(TRUE, Reason.NOTHING_TO_DO, draft.message)
    ready = facts.snapshot.in_phase(PodPhase.READY)
    told = [pod for pod in ready if pod.capability is not None]
    ignoring = [pod.name for pod in told if pod.capability is not None and not pod.capability.follows_schedule]
    if ignoring and not facts.snapshot.rollout_in_progress:
        return Verdict(
            FALSE,
            Reason.SCHEDULE_IGNORED,
            f"pod {ignoring[0]} ({len(ignoring)} of {len(ready)}) was started with the schedule but does not follow "
            "it: its log says why the engine fell back to a fixed draft length",
        )
    return Verdict(TRUE, Reason.FOLLOWS_SCHEDULE, draft.message)


def _scaling_active(facts: TickFacts) -> Verdict:
    intent = facts.intent
    if facts.mode is not Mode.ACTIVE:
        reason = Reason.PAUSED if facts.mode is Mode.PAUSED else Reason.ADVISORY
        return Verdict(FALSE, reason, f"spec.mode is {facts.mode}: nothing is changed")
    if intent is not None and intent.replicas.target_running_requests is None and not facts.calibrated:
        return Verdict(
            FALSE,
            Reason.NO_REPLICA_TARGET,
            "spec.replicas.targetRunningRequests is not set: replicas are left alone",
        )
    decision = facts.decision
    if decision is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "nothing has been decided yet")
    if decision.replicas.reason is DecisionReason.SCALED_TO_ZERO:
        return Verdict(FALSE, Reason.SCALED_TO_ZERO, decision.replicas.message)
    if decision.replicas.reason is DecisionReason.METRICS_UNKNOWN:
        return Verdict(FALSE, decision.replicas.reason, decision.replicas.message)
    return Verdict(TRUE, Reason.SCALING, "replicas follow the load through the scale subresource")


def _scaling_limited(facts: TickFacts) -> Verdict:
    decision = facts.decision
    if decision is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "nothing has been decided yet")
    if decision.replicas.limited is not None:
        return Verdict(TRUE, decision.replicas.limited, decision.replicas.message)
    return Verdict(FALSE, Reason.WITHIN_BOUNDS, "the recommended replica count is within spec.replicas and behavior")


def _effective(facts: TickFacts) -> Verdict:
    """Whether anything can happen at all: everything may look green while nothing can be measured or changed."""
    if facts.snapshot is None:
        return Verdict(UNKNOWN, Reason.NOT_ASKED_YET, "the fleet has not been seen yet")
    if facts.mode is not Mode.ACTIVE:
        reason = Reason.PAUSED if facts.mode is Mode.PAUSED else Reason.ADVISORY
        return Verdict(FALSE, reason, f"spec.mode is {facts.mode}: decisions are shown, nothing is changed")
    if not facts.snapshot.known and facts.snapshot.in_phase(PodPhase.READY):
        return Verdict(FALSE, DecisionReason.METRICS_UNKNOWN, "no ready pod can be read, so nothing can be decided")
    return Verdict(TRUE, Reason.CAN_ACT, "the fleet is measured and can be changed")


JUDGES: dict[ConditionType, Callable[[TickFacts], Verdict | None]] = {
    ConditionType.TARGET_RESOLVED: _target_resolved,
    ConditionType.METRICS_AVAILABLE: _metrics_available,
    ConditionType.CALIBRATED: _calibrated,
    ConditionType.SPECULATION_MANAGED: _speculation_managed,
    ConditionType.SCALING_ACTIVE: _scaling_active,
    ConditionType.SCALING_LIMITED: _scaling_limited,
    ConditionType.EFFECTIVE: _effective,
}

DELIBERATE = frozenset(
    {
        Reason.PAUSED,
        Reason.ADVISORY,
        Reason.NOT_MANAGED,
        Reason.ON_HOLD,
        Reason.NO_REPLICA_TARGET,
        Reason.SCALED_TO_ZERO,
    }
)
"""Reasons for which False is what the user asked for: they do not make the fleet unready."""


def _ready(facts: TickFacts, verdicts: Mapping[ConditionType, Verdict]) -> Verdict:
    problem = facts.problem(ConditionType.READY)
    if problem is not None:
        return Verdict(UNKNOWN if problem.transient else FALSE, problem.reason, problem.message)
    if facts.mode is Mode.PAUSED:
        return Verdict(TRUE, Reason.PAUSED, "paused as asked by spec.mode")
    summed = [kind for kind in verdicts if kind is not ConditionType.SCALING_LIMITED]
    for wanted in (FALSE, UNKNOWN):
        for kind in summed:
            verdict = verdicts[kind]
            if verdict.status == wanted and verdict.reason not in DELIBERATE and not _is_progress(verdict):
                return Verdict(wanted, verdict.reason, f"{kind}: {verdict.message}")
    return Verdict(TRUE, Reason.ADVISORY if facts.mode is Mode.ADVISORY else Reason.OPERATING, _operating(facts))


def _is_progress(verdict: Verdict) -> bool:
    """A schedule about to be written, or no speculation to manage, is no fault."""
    return verdict.reason == DecisionReason.SCHEDULE_NEEDED


def _operating(facts: TickFacts) -> str:
    return "measured, decided and applied" if facts.mode is Mode.ACTIVE else "measured and decided; nothing is changed"
