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
DEADLINE_SECONDS = 1800.0
"""For kinds without a progress deadline: a new pod not ready after this time is stuck."""

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


def judge(workload: Workload, revisions: Sequence[Revision], pods: Sequence[PodFacts], now_seconds: float) -> Rollout:
    """``revisions`` as `cluster.Workloads.revisions` gives them, ``pods`` all pods of the workload's selector."""
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
    stuck = _stuck(workload, new, now_seconds) or _waited_for(workload, left_behind, now_seconds)
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


def _stuck(workload: Workload, new: Sequence[PodFacts], now_seconds: float) -> tuple[StuckReason, str] | None:
    for pod in new:
        reason = _cannot_start(pod, now_seconds)
        if reason is StuckReason.PODS_CRASH:
            return reason, f"new pod {pod.name} does not start: its server ended {pod.restarts} times"
        if reason is not None:
            return reason, f"new pod {pod.name} cannot start: {pod.waiting_reason}"
    waiting = [pod for pod in new if pod.phase is PodPhase.PENDING]
    progressing = workload.condition("Progressing")
    exceeded = progressing is not None and progressing.reason == "ProgressDeadlineExceeded"
    late = [
        pod
        for pod in waiting
        if exceeded or (progressing is None and now_seconds - pod.created_at_seconds > DEADLINE_SECONDS)
    ]
    for pod in late:
        if pod.unschedulable:
            return StuckReason.NO_ROOM, f"no node has room for new pod {pod.name}"
    if exceeded or late:
        which = f"new pod {late[0].name} is" if late else "new pods are"
        return StuckReason.DEADLINE_EXCEEDED, f"{which} not ready within the progress deadline"
    return None
