"""Every reason of a decision in a sentence, and what to do about it. The table of docs/decision.md is this one."""

from __future__ import annotations

from crossover.api.decision import DecisionReason as R

NOTHING = "nothing"

MEANING: dict[R, tuple[str, str]] = {
    R.STEADY: ("the draft length in force is the right one for this load", NOTHING),
    R.ABOVE_CROSSOVER: ("at this load a shorter draft, or none, gives more tokens/s", NOTHING),
    R.BELOW_CROSSOVER: ("at this load a longer draft gives more tokens/s", NOTHING),
    R.ENGINE_FOLLOWS_SCHEDULE: (
        "the engine picks the draft length at every step from the schedule it was given",
        NOTHING,
    ),
    R.SCHEDULE_NEEDED: ("the engine can follow a schedule and gets it by one drained rollout", NOTHING),
    R.DEMAND_ABOVE_CAPACITY: ("the demand at start-up time needs more replicas than there are", NOTHING),
    R.DEMAND_BELOW_CAPACITY: ("fewer replicas carry the demand", NOTHING),
    R.ABOVE_TARGET: ("more requests per replica than targetRunningRequests", NOTHING),
    R.BELOW_TARGET: ("fewer requests per replica than targetRunningRequests", NOTHING),
    R.WITHIN_TOLERANCE: ("the replica count fits within the tolerance", NOTHING),
    R.STABILIZING: (
        "the stabilization window must agree first",
        "wait, or shorten the window in behavior or threshold",
    ),
    R.DWELLING: ("the draft length changed too short a time ago", "wait, or lower restart.minDwellSeconds"),
    R.FROZEN_PODS_PENDING: ("pods are starting: the load per pod is about to change", "look at pods that stay pending"),
    R.FROZEN_PODS_TERMINATING: ("pods are draining: the load per pod is about to change", NOTHING),
    R.FROZEN_ROLLOUT: ("a rollout is in progress, or about to begin", "look at kubectl rollout status if it lasts"),
    R.METRICS_UNKNOWN: ("the load is unknown, and unknown is not zero", "read the condition MetricsAvailable"),
    R.LIMITED_BY_MIN: ("fewer replicas would do, min holds them", "lower replicas.min if that is wanted"),
    R.LIMITED_BY_MAX: ("more replicas are needed, max holds them", "raise replicas.max"),
    R.LIMITED_BY_POLICY: ("a policy of behavior allows no larger step now", "wait, or change replicas.behavior"),
    R.NO_LEVER: (
        "the draft length cannot be changed here",
        "read the message: it names the field or the engine's refusal",
    ),
    R.DOES_NOT_PAY_BACK: ("a restart would cost more than was lost so far by not restarting", NOTHING),
    R.ROLLOUT_WOULD_OVERLOAD: (
        "the fleet cannot spare a replica for a rollout",
        "allow restart.maxSurge or add replicas",
    ),
    R.THRESHOLD_LATCHES: (
        "switched off, the batch grew at the same demand: the threshold lies below the crossover",
        "raise disableAboveRunningRequests, or calibrate",
    ),
    R.THRESHOLD_CYCLES: (
        "switching on again would bring back the batch that switched it off: the threshold lies above the crossover",
        "lower disableAboveRunningRequests, or calibrate",
    ),
    R.REVERTED: ("the last change did not give what was predicted and is taken back", "calibrate again"),
    R.CALIBRATION_DRIFT: (
        "steps take another time than calibrated; decisions use the corrected curves",
        "calibrate again",
    ),
    R.ADMISSION_BREAKS_TARGET: (
        "the engine admits more requests than the TPOT target bears: the batch is capped live",
        NOTHING,
    ),
    R.TARGET_HAS_ROOM: ("the TPOT target has room again: the live cap is raised", NOTHING),
    R.FALLBACK: ("no pod could be read for fallback.afterSeconds", "read the condition MetricsAvailable"),
    R.BELOW_MIN: ("fewer replicas than min", NOTHING),
    R.ABOVE_MAX: ("more replicas than max", NOTHING),
    R.SCALED_TO_ZERO: ("somebody scaled to 0", "scale up by hand to have it managed again"),
    R.HELD_BY_POLICY: ("the spec asks for no change", "set speculation or targetRunningRequests if that is not wanted"),
}


def meaning(reason: str) -> tuple[str, str]:
    """(what it says, what to do); of an unknown reason, written by another version, nothing is known."""
    try:
        return MEANING[R(reason)]
    except ValueError:
        return "", ""


def as_table() -> str:
    """Markdown, for docs/decision.md."""
    lines = ["| reason | what it says | what to do |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {reason} | {says} | {todo} |" for reason, (says, todo) in MEANING.items())])
