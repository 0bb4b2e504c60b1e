"""What the user should know beyond this tick's action: drifted curves, a threshold that latches or cycles."""

from __future__ import annotations

from crossover.api.decision import DecisionReason, Memory, Notice
from crossover.api.intent import Intent
from crossover.decide.draft import thresholds
from crossover.decide.learning import drifts
from crossover.decide.recognition import explanation


def notices(memory: Memory, intent: Intent) -> tuple[Notice, ...]:
    """Most telling first; empty when there is nothing to say."""
    found = []
    speculation = intent.speculation
    if (
        memory.latched is not None
        and speculation is not None
        and speculation.disable_above_running_requests is not None
    ):
        found.append(Notice(memory.latched, explanation(memory, *thresholds(speculation))))
    drifted = drifts(memory)
    if drifted:
        shown = "; ".join(drift.shown for drift in drifted[:3])
        message = f"{shown}: decisions use the corrected curves; calibrate again to confirm"
        found.append(Notice(DecisionReason.CALIBRATION_DRIFT, message))
    return tuple(found)
