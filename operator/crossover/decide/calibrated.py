"""Calibrated mode: draft length and replicas from demand and the profile, planned together.

1. What can be reached (lever), under what is true now: live acceptance, context, limits, corrections (`situation`).
2. Replicas from demand and the capacity of the best reachable way to decode (`sizing`).
3. The best way *at that replica count*, so that both loops want the same end state (`restart`, `schedule_choice`).
4. What holds a change back (`guard`, `payback`).
"""

from __future__ import annotations

from crossover.api.decision import Alternative, DecisionReason, DraftDecision, Lever, Memory
from crossover.api.intent import SpeculationPolicy
from crossover.decide.draft import leave
from crossover.decide.restart import decide_restart
from crossover.decide.schedule_choice import decide_schedule
from crossover.decide.situation import Situation


def decide_draft(here: Situation, memory: Memory) -> tuple[DraftDecision, Memory, tuple[Alternative, ...], bool]:
    """(decision, memory, what lost, rescue). ``rescue``: the present draft length breaks the target now and another one
    would not."""
    speculation = here.intent.speculation
    if here.lever is Lever.NONE or speculation is None:
        held = speculation is None or speculation.policy is SpeculationPolicy.HOLD
        reason = DecisionReason.HELD_BY_POLICY if held else DecisionReason.NO_LEVER
        return leave(here.load, reason, here.no_lever), memory, (), False
    if here.best is None or not here.reachable:
        message = "the calibration has no curve that this lever can reach: speculation is left as it is"
        return leave(here.load, DecisionReason.NO_LEVER, message, here.lever), memory, (), False
    if here.lever is Lever.ENGINE_SCHEDULE:
        decision, memory = decide_schedule(here, memory, speculation)
        return decision, memory, (), False
    if here.demand is None or here.present is None:
        message = "demand or draft length in force is unknown: no change"
        return leave(here.load, DecisionReason.METRICS_UNKNOWN, message, here.lever), memory, (), False
    return decide_restart(here, memory, speculation)
