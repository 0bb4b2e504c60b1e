"""The state of a rollout from what the API server shows: under way, or stuck so that it must be taken back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from crossover.api.fleet import PodFacts, PodPhase
from crossover.api.workload import Revision, Workload

CRASHES = 2
"""Restarts of a pod that has not been ready: one may be a start-up race, two are a server that cannot start."""
WAITING_SECONDS = 60.0
"""An image or configuration error of this age is not going away by itself."""
STARTUPS = 3.0
SHORTEST_DEADLINE_SECONDS = 600.0
UNKNOWN_STARTUP_SECONDS = 600.0
"""A new pod that runs and is not ready is late after three times what this fleet's pods took, never before ten minutes.
Large models load for longer than a Deployment's default progress deadline: alone that one proves nothing."""

CANNOT_START = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


class RolloutState(StrEnum):
    NONE = "None"
    """Every pod is of the newest template."""
    IN_PROGRESS = "InProgress"
    STUCK = "Stuck"


class StuckReason(StrEnum):
    PODS_CRASH = "PodsCrash"
    PODS_CANNOT_START = "PodsCannotStart"
    NO_ROOM = "NoRoom"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Rollout:
    """``summary``: one line for status; names the pod and what it does when stuck."""

    state: RolloutState
    summary: str
    stuck: StuckReason | None = None
    new_pods: int = 0
    new_ready: int = 0
    old_pods: int = 0


def judge(
    workload: Workload,
    revisions: Sequence[Revision],
    pods: Sequence[PodFacts],
    now_seconds: float,
    *,
    startup_seconds: float | None = None,
) -> Rollout:
    """``revisions`` as `cluster.Workloads.revisions` gives them, ``pods`` all pods of the workload's selector,
    ``startup_seconds`` from creation to ready, as this fleet's pods usually take; None = not known yet."""
    if not workload.rollout_in_progress:
        return Rollout(RolloutState.NONE, "every pod has the newest settings")
    newest = next((revision.template_hash for revision in revisions if workload.is_current(revision)), None)
    observed = workload.observed_generation is None or workload.observed_generation >= workload.generation
    if newest is None or not observed:
        return Rollout(RolloutState.IN_PROGRESS, "rollout: its controller has not started yet")
    staying = [pod for pod in pods if pod.phase is not PodPhase.TERMINATING]
    new = [pod for pod in staying if pod.template_hash == newest]
    ready = sum(pod.phase is PodPhase.READY for pod in new)
    left_behind = [pod for pod in staying if pod.template_hash != newest]
    old = len(left_behind)
    usual = UNKNOWN_STARTUP_SECONDS if startup_seconds is None else startup_seconds
    patience_seconds = max(SHORTEST_DEADLINE_SECONDS, STARTUPS * usual)
    stuck = _stuck(workload, new, now_seconds, patience_seconds) or _waited_for(workload, left_behind, now_seconds)
    if stuck is not None:
        return Rollout(RolloutState.STUCK, stuck[1], stuck[0], len(new), ready, old)
    total = workload.desired_replicas if workload.desired_replicas is not None else len(new) + old
    summary = f"rollout: {ready} of {total} pods ready with the new settings, {old} with the old"
    return Rollout(RolloutState.IN_PROGRESS, summary, None, len(new), ready, old)


def _cannot_start(pod: PodFacts, now_seconds: float) -> StuckReason | None:
    """A pod that has not become ready and will not."""
    if pod.phase is PodPhase.FAILED or (pod.phase is PodPhase.PENDING and pod.restarts >= CRASHES):
        return StuckReason.PODS_CRASH
    age = now_seconds - pod.created_at_seconds
    if pod.phase is PodPhase.PENDING and pod.waiting_reason in CANNOT_START and age >= WAITING_SECONDS:
        return StuckReason.PODS_CANNOT_START
    return None


def _waited_for(
    workload: Workload, left_behind: Sequence[PodFacts], now_seconds: float
) -> tuple[StuckReason, str] | None:
    """A StatefulSet waits for a pod of settings that were taken back, and would for ever: only its deletion helps."""
    if workload.ref.kind != "StatefulSet":
        return None
    for pod in left_behind:
        reason = _cannot_start(pod, now_seconds)
        if reason is not None:
            return (
                reason,
                f"the StatefulSet waits for pod {pod.name}, which cannot start with older settings: delete it",
            )
    return None


def _stuck(
    workload: Workload, new: Sequence[PodFacts], now_seconds: float, patience_seconds: float
) -> tuple[StuckReason, str] | None:
    for pod in new:
        reason = _cannot_start(pod, now_seconds)
        if reason is StuckReason.PODS_CRASH:
            return reason, f"new pod {pod.name} does not start: its server ended {pod.restarts} times"
        if reason is not None:
            return reason, f"new pod {pod.name} cannot start: {pod.waiting_reason}"
    progressing = workload.condition("Progressing")
    exceeded = progressing is not None and progressing.reason == "ProgressDeadlineExceeded"
    if exceeded and not new:
        return StuckReason.NO_ROOM, "no new pod can be created: a quota or an admission rule may be in the way"
    for pod in new:
        age = now_seconds - pod.created_at_seconds
        is_late = age >= patience_seconds and (exceeded or progressing is None)
        if pod.unschedulable and (exceeded or is_late):
            return StuckReason.NO_ROOM, f"no node has room for new pod {pod.name}"
        if pod.phase is PodPhase.PENDING and is_late:
            return StuckReason.DEADLINE_EXCEEDED, f"new pod {pod.name} is not ready after {age / 60:.0f} min"
    return None
