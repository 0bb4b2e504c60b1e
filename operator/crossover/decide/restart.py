"""Calibrated mode with an engine that must be restarted: the best draft length at the planned replica count, when it
pays."""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import Alternative, Change, DecisionReason, DraftDecision, Lever, Memory
from crossover.api.intent import SpeculationIntent
from crossover.decide.choice import Choice, alternatives, choose
from crossover.decide.draft import configured
from crossover.decide.guard import Hold, dwelling, frozen, unseen
from crossover.decide.learning import DRIFT, remember_present
from crossover.decide.memory import last_draft_change
from crossover.decide.payback import not_paid_back, note_regret, would_overload
from crossover.decide.situation import Situation, tokens
from crossover.decide.sizing import capacity_per_replica, planned_replicas
from crossover.decide.variant import Variant

MATCHED_DEMAND = 0.2
"""Demands within this share of each other count as the same."""
LOST = 0.15
"""A batch that grew by more than this at a like demand was not noise."""


def decide_restart(
    here: Situation, memory: Memory, speculation: SpeculationIntent
) -> tuple[DraftDecision, Memory, tuple[Alternative, ...], bool]:
    """A change when it pays back, or after the stabilization window when the target is broken now and another draft
    length would keep it (a rescue)."""
    choice, replicas, rescue = _choose(here, memory)
    wanted = choice.best.variant
    present = choice.current.variant if choice.current is not None else None
    lost = alternatives(choice, replicas, here.tpot_target, here.intent.replicas.utilization)
    text = _choice_text(choice, replicas)
    if wanted == present:
        memory = note_regret(memory, here.now, None, 0.0, False)
        return _stay(here, DecisionReason.STEADY, f"{text}: no change"), memory, lost, False
    memory = note_regret(memory, here.now, _number(wanted), choice.gain, rescue)
    held = _held(here, memory, speculation, choice, rescue)
    if held is not None:
        return _stay(here, held.reason, f"{text}: {held.message}"), memory, lost, rescue
    decision = _change(here, memory, present, wanted, text)
    return decision, remember_present(memory, present), lost, rescue


def _choose(here: Situation, memory: Memory) -> tuple[Choice, int, bool]:
    """(choice, at how many replicas, rescue). At the planned count, where replicas and draft length will meet; at the
    ready count when only there the target is broken; and back where a change was seen to lose."""
    assert here.best is not None
    assert here.present is not None
    current, target, utilization = here.present.variant, here.tpot_target, here.intent.replicas.utilization
    planned, ready = planned_replicas(here, here.best), here.ready_replicas

    def at(replicas: int) -> Choice:
        demand = here.demand_per_scheduler(replicas)
        return choose(here.reachable, demand, current=current, utilization=utilization, tpot_target=target)

    future, today = at(planned), at(ready)
    back = _lost_by_changing(here, memory, today)
    if back is not None:
        return back, ready, True
    rescue = today.rescue
    if rescue and future.best.variant == current:
        return today, ready, True
    return future, planned, rescue


def _lost_by_changing(here: Situation, memory: Memory, today: Choice) -> Choice | None:
    """The last change made the batch grow at a like demand: fewer tokens/s for each request, whatever the curves say."""
    last = last_draft_change(memory)
    if last is None or not last.running_requests or not last.running_requests_after or today.current is None:
        return None
    lost = last.running_requests_after / last.running_requests - 1
    if lost <= LOST or not _at_like_demand(here, last) or last.to_value != today.current.variant.draft_tokens:
        return None
    former = next((v for v in here.reachable if v.draft_tokens == last.from_value), None)
    if former is None:
        return None
    return replace(today, best=today.points[former], gain=lost, rescue=True, comfort=False)


def _at_like_demand(here: Situation, change: Change) -> bool:
    before = change.demand_tokens_per_second
    if not before:
        return False
    return abs(here.demand_per_scheduler(here.ready_replicas) / before - 1) <= MATCHED_DEMAND


def _held(here: Situation, memory: Memory, speculation: SpeculationIntent, choice: Choice, rescue: bool) -> Hold | None:
    """First rule that holds the change back."""
    assert here.present is not None
    assert here.demand is not None
    ready = here.ready_replicas
    use = here.demand.now / (capacity_per_replica(here, here.present) * ready)
    return (
        not_paid_back(
            memory,
            here.snapshot,
            speculation,
            choice.gain,
            rescue=rescue,
            comfort=choice.comfort,
            measured=here.present.variant.name in memory.correction,
        )
        or _shrinks_first(here, rescue)
        or frozen(here.snapshot, here.load)
        or unseen(here.load)
        or dwelling(memory, here.now, speculation)
        or would_overload(use, ready, speculation.max_surge)
    )


def _shrinks_first(here: Situation, rescue: bool) -> Hold | None:
    """Replicas that are about to go need no restart."""
    assert here.best is not None
    assert here.present is not None
    stays = max(planned_replicas(here, here.best), planned_replicas(here, here.present))
    if rescue or here.snapshot.desired_replicas is None or here.snapshot.desired_replicas <= stays:
        return None
    return Hold(
        DecisionReason.DWELLING,
        f"waits until {here.snapshot.desired_replicas} replicas have shrunk to the {stays} that are needed",
    )


def _change(here: Situation, memory: Memory, present: Variant | None, wanted: Variant, text: str) -> DraftDecision:
    before = _configured(here)
    reason = _reason(here, memory, present, wanted)
    message = f"{text}: draft {'unknown' if before is None else before} -> {wanted.draft_tokens} by a drained rollout"
    if reason is DecisionReason.REVERTED:
        message += "; the last change did not give what was predicted"
    return DraftDecision(before, wanted.draft_tokens, Lever.RESTART, reason, message)


def _stay(here: Situation, reason: DecisionReason, message: str) -> DraftDecision:
    return DraftDecision(_configured(here), None, Lever.RESTART, reason, message)


def _configured(here: Situation) -> int | None:
    assert here.settings is not None
    return configured(here.load, here.settings)


def _reason(here: Situation, memory: Memory, present: Variant | None, wanted: Variant) -> DecisionReason:
    """Back to where the last change came from, at a like demand or because it proved slower than calibrated: that change
    was wrong."""
    last = last_draft_change(memory)
    before = present.draft_tokens if present is not None else 0
    back = last is not None and (last.from_value, last.to_value) == (wanted.draft_tokens, before)
    slower = present is not None and memory.correction.get(present.name, 1.0) > 1 + DRIFT
    if last is not None and back and (slower or _at_like_demand(here, last)):
        return DecisionReason.REVERTED
    return DecisionReason.ABOVE_CROSSOVER if wanted.draft_tokens < before else DecisionReason.BELOW_CROSSOVER


def _choice_text(choice: Choice, replicas: int) -> str:
    """``"1.3k tok/s per scheduler on 4 replicas: draft 3 runs 41.0 at TPOT 31.5 ms; off runs 36.0 at TPOT 27.6 ms"``."""
    shown = []
    for point in dict.fromkeys(item for item in (choice.current, choice.best) if item is not None):
        how = "saturates at" if point.saturated else "runs"
        broken = "" if point.meets_target else ", over target"
        shown.append(
            f"{point.variant.shown} {how} {point.running:.1f} at TPOT {1000 * point.tpot_seconds:.1f} ms{broken}"
        )
    return f"{tokens(choice.best.demand)} tok/s per scheduler on {replicas} replicas: {'; '.join(shown)}"


def _number(variant: Variant) -> float:
    return -1.0 if variant.off else float(variant.draft_tokens)
