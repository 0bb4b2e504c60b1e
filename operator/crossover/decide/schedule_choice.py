"""Calibrated mode with an engine that follows a schedule: the best one is rendered from the profile and written once.

At equal batch the lowest TPOT is also the highest output rate, so the best schedule is the lower envelope of the TPOT
curves; an engine that follows it is at the best draft length at every batch, and no threshold can latch or cycle.
"""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import DecisionReason, DraftDecision, Lever, Memory
from crossover.api.intent import SpeculationIntent
from crossover.decide.draft import following, leave, padding_of
from crossover.decide.guard import dwelling, frozen, unseen
from crossover.decide.lever import full_length
from crossover.decide.operating import Rates, nearest
from crossover.decide.payback import not_paid_back, note_regret
from crossover.decide.schedule import Schedule, describe, same
from crossover.decide.situation import Situation

MARGIN = 0.05
"""Gain in TPOT at some batch below which no schedule is written."""


def decide_schedule(here: Situation, memory: Memory, speculation: SpeculationIntent) -> tuple[DraftDecision, Memory]:
    """The best schedule is written when there is none and it gains anywhere, and again only when it pays back."""
    settings, best = here.settings, here.best
    assert settings is not None
    assert best is not None
    lever, load = Lever.ENGINE_SCHEDULE, here.load
    wanted = here.wanted_schedule
    if same(wanted, settings.schedule, padding_of(here.capabilities)):
        memory = note_regret(memory, here.now, None, 0.0, False)
        return following(load, settings.schedule, memory, here.now), memory
    gain, batch = _largest_gain(here, best)
    shown = describe(wanted)
    if gain <= MARGIN:
        memory = note_regret(memory, here.now, None, 0.0, False)
        if settings.schedule:
            return following(load, settings.schedule, memory, here.now), memory
        message = f"a schedule ({shown}) would gain {gain:.1%} at most: speculation stays as it is"
        return leave(load, DecisionReason.STEADY, message, lever), memory
    if settings.schedule:
        here_gain = _gain_now(here, best)
        memory = note_regret(memory, here.now, _name_of(wanted), here_gain, False)
        if not_paid_back(memory, here.snapshot, speculation, here_gain) is not None:
            told = following(load, settings.schedule, memory, here.now)
            return replace(told, message=f"{told.message}; {shown} would gain {here_gain:.1%} now"), memory
    held = frozen(here.snapshot, load) or unseen(load) or dwelling(memory, here.now, speculation)
    if held is not None:
        message = f"schedule to be written ({shown}): {held.message}"
        return leave(load, held.reason, message, lever), memory
    message = f"write {shown}, once, by a drained rollout: TPOT {gain:.0%} lower at {batch:.0f} running per scheduler"
    full = max(draft for _, draft in wanted)
    decision = DraftDecision(load.draft_in_force, full, lever, DecisionReason.SCHEDULE_NEEDED, message, wanted)
    return decision, memory


def _largest_gain(here: Situation, best: Rates) -> tuple[float, float]:
    """(largest gain of the best schedule over the present set-up, at which batch), over the batches that can happen.
    Without a schedule the present set-up is the full draft length at any batch."""
    present = here.present
    settings, speculation = here.settings, here.intent.speculation
    if settings is not None and not settings.schedule and speculation is not None:
        full = full_length(here.capabilities, settings, speculation)
        if full is not None and here.reachable:
            present = here.reachable[nearest(full, here.reachable)]
    if present is None:
        return 0.0, 0.0
    batches = [batch for batch in best.running if batch <= best.limit] or [1.0]
    gains = [(present.tpot(batch) / best.tpot(batch) - 1, batch) for batch in batches]
    return max(gains)


def _gain_now(here: Situation, best: Rates) -> float:
    """Of the best schedule over the present one at the present demand; 0 where the demand is unknown."""
    if here.demand is None or here.present is None:
        return 0.0
    each = here.demand_per_scheduler(here.ready_replicas)
    one, two = here.present.at(each, here.tpot_target), best.at(each, here.tpot_target)
    return max(0.0, one.tpot_seconds / two.tpot_seconds - 1)


def _name_of(schedule: Schedule) -> float:
    """A number for the regret's bookkeeping: neighbours in batch count as the same wish."""
    return float(sum((index + 1) * (draft + 1) for index, (_, draft) in enumerate(schedule)))
