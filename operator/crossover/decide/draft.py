"""Which draft length, in simple mode: a threshold with hysteresis and dwell, by the least disruptive lever there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.api.decision import DecisionReason, DraftDecision, Lever, Memory
from crossover.api.fleet import Capability, FleetSnapshot, PodPhase, SpeculationSettings
from crossover.api.intent import SpeculationIntent, SpeculationPolicy
from crossover.decide.guard import Hold, dwelling, frozen, unseen
from crossover.decide.lever import choose_lever, full_length, zero_is_safe
from crossover.decide.load import FleetLoad, limit_of
from crossover.decide.memory import last_draft_change
from crossover.decide.recognition import note_cycle, note_outcome, would_cycle
from crossover.decide.schedule import describe, of_threshold, same

HYSTERESIS = 1.5
"""`enableBelow` left out is `disableAbove` divided by this: at a right threshold 1.3 to 1.6 is enough, at a wrong one
no ratio is (docs/design/0041)."""
IN_FORCE = "draft_in_force"
IN_FORCE_SINCE = "draft_in_force_since_seconds"


@dataclass(frozen=True, slots=True)
class View:
    """What the rules below look at."""

    snapshot: FleetSnapshot
    load: FleetLoad
    intent: SpeculationIntent
    settings: SpeculationSettings
    capabilities: tuple[Capability, ...]
    above: int
    below: int

    @property
    def now(self) -> float:
        return self.snapshot.at_seconds


def decide_draft(
    snapshot: FleetSnapshot,
    load: FleetLoad,
    intent: SpeculationIntent | None,
    memory: Memory,
    demand: float | None = None,
) -> tuple[DraftDecision, Memory]:
    """One decision, and the memory of how long the load has been beyond a threshold. ``demand``: output tokens/s per
    scheduler."""
    memory = note_in_force(load, memory, snapshot.at_seconds)
    memory = note_outcome(snapshot, load, demand, memory)
    refused = _not_managed(intent)
    if refused is not None or intent is None:
        return leave(load, DecisionReason.HELD_BY_POLICY, refused or ""), memory
    above, below = thresholds(intent)
    settings = snapshot.settings
    if settings is None:
        message = "the speculation settings of the pod template cannot be read"
        return leave(load, DecisionReason.NO_LEVER, message), memory
    view = View(snapshot, load, intent, settings, capabilities_of(snapshot), above, below)
    memory = note_load(view, memory)
    if not view.capabilities:
        return leave(load, DecisionReason.METRICS_UNKNOWN, "no server has described itself yet"), memory
    lever, why = choose_lever(view.capabilities, settings, intent, memory)
    if lever is Lever.ENGINE_SCHEDULE:
        return _by_schedule(view, memory), memory
    if lever is Lever.RESTART:
        decision = _by_restart(view, memory, demand)
        return decision, note_cycle(memory, decision.reason is DecisionReason.THRESHOLD_CYCLES)
    return leave(load, DecisionReason.NO_LEVER, why), memory


def _not_managed(intent: SpeculationIntent | None) -> str | None:
    """Why the draft length is none of our business, or None."""
    if intent is None:
        return "spec.speculation is not set: speculation is left as it is"
    if intent.policy is SpeculationPolicy.HOLD:
        return "spec.speculation.policy is Hold: speculation is left as it is"
    if intent.disable_above_running_requests is None:
        return "no threshold and no calibration: speculation is left as it is"
    above, below = thresholds(intent)
    if below > above:
        return (
            f"enableBelowRunningRequests {below} is above disableAboveRunningRequests {above}: swap them; "
            "speculation is left as it is"
        )
    return None


def thresholds(intent: SpeculationIntent) -> tuple[int, int]:
    """(off above, on again below), in mean running requests per scheduler."""
    above = intent.disable_above_running_requests
    assert above is not None
    below = intent.enable_below_running_requests
    return above, int(above / HYSTERESIS) if below is None else below


def capabilities_of(snapshot: FleetSnapshot) -> tuple[Capability, ...]:
    """Of the pods that stay; a pod on its way out may still be of an older template."""
    staying = [pod for pod in snapshot.pods if pod.phase in (PodPhase.READY, PodPhase.PENDING)]
    return tuple(pod.capability for pod in staying if pod.capability is not None)


def note_load(view: View, memory: Memory) -> Memory:
    """Since when the load has been above or below. Unknown load is neither, and ends both."""
    running = view.load.running_per_scheduler
    return replace(
        memory,
        above_since_seconds=_since(running is not None and running > view.above, memory.above_since_seconds, view.now),
        below_since_seconds=_since(running is not None and running < view.below, memory.below_since_seconds, view.now),
    )


def _since(holds: bool, before: float | None, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def note_in_force(load: FleetLoad, memory: Memory, now: float) -> Memory:
    """Since when all schedulers that tell have had one draft length."""
    draft, before = load.draft_in_force, memory.observations.get(IN_FORCE)
    if draft is None or draft == before:
        return memory
    return replace(memory, observations={**memory.observations, IN_FORCE: float(draft), IN_FORCE_SINCE: now})


def leave(load: FleetLoad, reason: DecisionReason, message: str, lever: Lever = Lever.NONE) -> DraftDecision:
    """No change."""
    return DraftDecision(load.draft_in_force, None, lever, reason, message)


# -- lever: the engine's own schedule ----------------------------------------------------------------------------------


def _by_schedule(view: View, memory: Memory) -> DraftDecision:
    """Written once; from then on the engine acts by itself and this only tells what it does."""
    draft_tokens = full_length(view.capabilities, view.settings, view.intent)
    if draft_tokens is None:
        message = "the full draft length is unknown: set spec.speculation.maxDraftTokens"
        return leave(view.load, DecisionReason.NO_LEVER, message)
    wanted = of_threshold(view.above, draft_tokens, zero_is_safe=zero_is_safe(view.capabilities))
    if same(wanted, view.settings.schedule, padding_of(view.capabilities)):
        return following(view.load, view.settings.schedule, memory, view.now)
    held = frozen(view.snapshot, view.load) or unseen(view.load) or dwelling(memory, view.now, view.intent)
    if held is not None:
        message = f"schedule to be written ({describe(wanted)}): {held.message}"
        return leave(view.load, held.reason, message, Lever.ENGINE_SCHEDULE)
    message = f"the servers can follow a schedule: write {describe(wanted)}, once, by a drained rollout"
    return DraftDecision(
        view.load.draft_in_force,
        draft_tokens,
        Lever.ENGINE_SCHEDULE,
        DecisionReason.SCHEDULE_NEEDED,
        message,
        wanted,
    )


def padding_of(capabilities: Sequence[Capability]) -> tuple[int, ...]:
    return max((item.batch_padding for item in capabilities), key=len, default=())


def following(load: FleetLoad, schedule: tuple[tuple[int, int], ...], memory: Memory, now: float) -> DraftDecision:
    """What the engine does by itself now: draft length, since when, at which batch."""
    running = load.running_per_scheduler
    batch = "batch unknown" if running is None else f"{running:.1f} running per scheduler"
    message = f"the engine follows {describe(schedule)}; {_in_force(load, memory, now)} at {batch}"
    return leave(load, DecisionReason.ENGINE_FOLLOWS_SCHEDULE, message, Lever.ENGINE_SCHEDULE)


def _in_force(load: FleetLoad, memory: Memory, now: float) -> str:
    if not load.drafts:
        return "draft length now unknown or idle"
    if load.draft_in_force is None:
        return "now " + ", ".join(f"{draft} on {count}" for draft, count in load.drafts.items()) + " schedulers"
    since = memory.observations.get(IN_FORCE_SINCE, now)
    return f"draft {load.draft_in_force} in force for {now - since:.0f} s"


# -- lever: a restart with other arguments -----------------------------------------------------------------------------


def _by_restart(view: View, memory: Memory, demand: float | None) -> DraftDecision:
    """Off when the load stays above, on again when it stays below; never while anything is moving."""
    if view.load.running_per_scheduler is None:
        return _stay(view, DecisionReason.METRICS_UNKNOWN, "the load is unknown: no change of draft length")
    if view.settings.enabled:
        return _beyond(view, memory, memory.above_since_seconds, 0, DecisionReason.ABOVE_CROSSOVER, None)
    length = restored_length(view.intent, memory)
    if length is None:
        message = "speculation is off and the draft length to return to is unknown: set spec.speculation.maxDraftTokens"
        return _stay(view, DecisionReason.NO_LEVER, message)
    cycles = would_cycle(memory, demand, view.above, view.intent.min_dwell_seconds, view.now)
    return _beyond(view, memory, memory.below_since_seconds, length, DecisionReason.BELOW_CROSSOVER, cycles)


def restored_length(intent: SpeculationIntent, memory: Memory) -> int | None:
    """What "on" means for a template whose speculation was taken out; its other arguments are put back as they stood."""
    if intent.max_draft_tokens is not None:
        return intent.max_draft_tokens
    last = last_draft_change(memory)
    return last.from_value if last is not None and last.to_value == 0 and last.from_value else None


def _beyond(
    view: View, memory: Memory, since: float | None, target: int, reason: DecisionReason, cycles: Hold | None
) -> DraftDecision:
    """The change to ``target`` once the load has been beyond the threshold since ``since`` and nothing holds it back."""
    current = configured(view.load, view.settings)
    window = view.intent.stabilization_window_seconds
    text = f"{view.load.running_per_scheduler:.1f} running per scheduler, "
    text += "speculation off" if current == 0 else f"draft {_shown(current)}"
    if since is None:
        bounds = f"off above {view.above}, on again below {view.below}{_unreachable(view)}"
        return _stay(view, DecisionReason.STEADY, f"{text}; {bounds}: no change")
    text += f", {f'above {view.above}' if target == 0 else f'below {view.below}'} for {view.now - since:.0f} s"
    held = (
        _too_short(view.now - since, window)
        or cycles
        or frozen(view.snapshot, view.load)
        or unseen(view.load)
        or dwelling(memory, view.now, view.intent)
    )
    if held is not None:
        return _stay(view, held.reason, f"{text}: {held.message}")
    message = f"{text}: draft {_shown(current)} -> {target} by a drained rollout"
    return DraftDecision(current, target, Lever.RESTART, reason, message)


def _stay(view: View, reason: DecisionReason, message: str) -> DraftDecision:
    return DraftDecision(configured(view.load, view.settings), None, Lever.RESTART, reason, message)


def _too_short(held_seconds: float, window_seconds: float) -> Hold | None:
    if held_seconds >= window_seconds:
        return None
    return Hold(DecisionReason.STABILIZING, f"changes after {window_seconds:.0f} s")


def _unreachable(view: View) -> str:
    """A threshold above the engine's own limit on the batch can never be crossed."""
    limits = [
        limit
        for pod in view.snapshot.known
        if pod.reading is not None
        for scheduler in pod.reading.schedulers
        if (limit := limit_of(pod, scheduler)) is not None
    ]
    if not limits or max(limits) > view.above or not view.settings.enabled:
        return ""
    return f" (never reached: the engine runs at most {max(limits):.0f} requests)"


def configured(load: FleetLoad, settings: SpeculationSettings) -> int | None:
    """0 when the template starts without speculation; else the length in force where the servers tell one, else what
    the template asks for."""
    if not settings.enabled:
        return 0
    return load.draft_in_force if load.draft_in_force else settings.draft_tokens


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
