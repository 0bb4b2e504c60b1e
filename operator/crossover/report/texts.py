"""Every word a user reads in conditions and Events: types, reasons, sentences. Changed here, changed everywhere.

Sentences say what is seen, which field or pod, and what to do. No text of a remote answer may reach them: faults come
as `ScrapeFault` members and our own details.
"""

from __future__ import annotations

from enum import StrEnum

from crossover.api.fleet import ScrapeFault


class ConditionType(StrEnum):
    READY = "Ready"
    TARGET_RESOLVED = "TargetResolved"
    METRICS_AVAILABLE = "MetricsAvailable"
    CALIBRATED = "Calibrated"
    SPECULATION_MANAGED = "SpeculationManaged"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"
    EFFECTIVE = "Effective"


class Reason(StrEnum):
    """Condition reasons and Event reasons that are not a `DecisionReason` or a `Refusal.code`."""

    # Ready
    OPERATING = "Operating"
    ADVISORY = "Advisory"
    PAUSED = "Paused"
    INVALID_SPEC = "InvalidSpec"
    # TargetResolved
    TARGET_FOUND = "TargetFound"
    TARGET_NOT_FOUND = "TargetNotFound"
    TARGET_UNREADABLE = "TargetUnreadable"
    TARGET_CLAIMED = "TargetClaimed"
    NO_SCALE_SUBRESOURCE = "NoScaleSubresource"
    SELECTOR_MATCHES_NOTHING = "SelectorMatchesNothing"
    # MetricsAvailable
    ALL_PODS_READ = "AllPodsRead"
    SOME_PODS_UNKNOWN = "SomePodsUnknown"
    NO_READY_PODS = "NoReadyPods"
    NOT_ASKED_YET = "NotAskedYet"
    # Calibrated
    CALIBRATION_NOT_FOUND = "CalibrationNotFound"
    CALIBRATION_NOT_READY = "CalibrationNotReady"
    CALIBRATION_UNUSABLE = "CalibrationUnusable"
    CALIBRATION_STALE = "CalibrationStale"
    CALIBRATION_IN_USE = "CalibrationInUse"
    # SpeculationManaged
    FOLLOWS_SCHEDULE = "EngineFollowsSchedule"
    SCHEDULE_IGNORED = "ScheduleIgnoredByEngine"
    BY_RESTART = "ByRestart"
    NOTHING_TO_DO = "NothingToDo"
    NOT_MANAGED = "NotManaged"
    ON_HOLD = "OnHold"
    # ScalingActive
    SCALING = "Scaling"
    NO_REPLICA_TARGET = "NoReplicaTarget"
    FOREIGN_AUTOSCALER = "ForeignAutoscaler"
    SCALED_TO_ZERO = "ScaledToZero"
    # ScalingLimited
    WITHIN_BOUNDS = "WithinBounds"
    # Effective
    CAN_ACT = "CanAct"
    CLUSTER_UNREACHABLE = "ClusterUnreachable"
    # Events
    SCALED = "Scaled"
    SPECULATION_CHANGED = "SpeculationChanged"
    ROLLOUT_COMPLETE = "RolloutComplete"
    ROLLOUT_STUCK = "RolloutStuck"
    DRAFT_LENGTH_CHANGED = "DraftLengthChanged"
    DECIDED = "Decided"
    RUNNING_CAP_CHANGED = "RunningCapChanged"
    RUNNING_CAP_PUT_BACK = "RunningCapPutBack"
    # Effective
    RUNNING_CAP_REFUSED = "RunningCapRefused"


SCRAPE_FAULT_FIX = {
    ScrapeFault.UNREACHABLE: "does not answer on port {port}: check spec.engine.port and that the server listens on the pod's address (--host 0.0.0.0)",
    ScrapeFault.TIMED_OUT: "did not answer in time on port {port}: the server may hang or be overloaded; look at its log",
    ScrapeFault.HTTP_STATUS: "answers port {port} with an error status: check spec.engine.port and the server's log",
    ScrapeFault.UNAUTHORIZED: "refuses an anonymous scrape on port {port}: leave /metrics open or start the server without an API key",
    ScrapeFault.METRICS_OFF: "serves no metrics: start the server with metrics on (SGLang: --enable-metrics)",
    ScrapeFault.NOT_METRICS: "answers port {port} with something that is not metrics: check spec.engine.port",
    ScrapeFault.TOO_LARGE: "answers with more than the size limit: check spec.engine.port",
    ScrapeFault.REDIRECTED: "answers port {port} with a redirect, which is never followed: check spec.engine.port",
    ScrapeFault.WRONG_ENGINE: "serves another engine's metrics: check spec.engine.type",
    ScrapeFault.INVALID_VALUES: "serves values that are no numbers: they count as unknown; look at the server's log",
}


def pod_fault(pod: str, fault: ScrapeFault, port: int | None, detail: str | None) -> str:
    """One pod's fault as a clause: ``"pod llama-1 does not answer on port 30000 (HTTP 503): check ..."``."""
    text = SCRAPE_FAULT_FIX[fault].format(port=port if port is not None else "(unknown)")
    if detail:
        head, colon, tail = text.partition(":")
        text = f"{head} ({detail}){colon}{tail}"
    return f"pod {pod} {text}"


def target_not_found(kind: str, name: str) -> str:
    return (
        f"{kind} {name} does not exist in this namespace: create it or correct spec.scaleTargetRef; nothing is changed"
    )


def pods_unwatched(namespace: str, fault: str) -> str:
    """``fault``: a `ClusterError`'s own text."""
    return f"the pods of namespace {namespace} cannot be watched ({fault}): grant the operator list and watch on pods there, or see its log; the fleet stays as it is"


def no_scale_subresource(kind: str) -> str:
    return f"{kind} has no scale subresource: name a kind that has one (Deployment, StatefulSet, LeaderWorkerSet) in spec.scaleTargetRef"


def target_claimed(kind: str, name: str, other: str) -> str:
    return f"ModelAutoscaler {other} is older and already manages {kind} {name}: delete one of the two"


def selector_matches_nothing(kind: str, name: str, selector: str, desired: int | None) -> str:
    return (
        f"no pod matches the selector {selector!r} of {kind} {name} although {desired} replicas are wanted: "
        "compare the selector with the labels of the pod template; nothing can be measured or changed"
    )


def foreign_autoscaler(kind: str, name: str) -> str:
    return (
        f"{kind} {name} scales the same target: delete it, or remove spec.replicas.targetRunningRequests here; "
        "replicas are left to it"
    )


RUNNING_CAP_NOT_WANTED = "spec.engine.liveCap is Off"

RUNNING_CAP_FIX = {
    "Unauthorized": "refuses /set_internal_state or /server_info without a key, and Crossover reads no Secrets: leave the routes open on the pod network, or set spec.engine.liveCap to Off",
    "Unsupported": "shows no live cap on its batch: SGLang 0.5.3 or newer has one; else set spec.engine.liveCap to Off",
    "NotTaken": "was asked for the cap and does not show it afterwards: its batch is not limited; look at the server's log or set spec.engine.liveCap to Off",
}


def running_cap(before: int | None, now: int | None) -> str:
    return f"running cap {'none' if before is None else before} -> {'none' if now is None else now}"


def running_cap_refused(pod: str, outcome: str, pods: int) -> str:
    """``outcome``: an `act.live.CapOutcome`."""
    more = f" (and {pods - 1} more)" if pods > 1 else ""
    return f"pod {pod}{more} {RUNNING_CAP_FIX[outcome]}"


def calibration_not_found(name: str) -> str:
    return (
        f"Calibration {name} does not exist in this namespace: create it or correct spec.speculation.calibrationRef; "
        "nothing is changed until then"
    )


def calibration_not_ready(name: str) -> str:
    return f"Calibration {name} has no result yet (kubectl describe calibration {name}); nothing is changed until then"


def calibration_unusable(name: str, why: str) -> str:
    """``why``: a `ProfileError`'s own text."""
    return f"Calibration {name} makes no curve: {why}; nothing is changed until then"


def calibration_stale(name: str, what: str) -> str:
    return (
        f"{what} changed since Calibration {name} was measured: the draft length is held and nothing shrinks; with "
        "spec.whenStale: MeasureAgain the Calibration is measured again by itself"
    )
