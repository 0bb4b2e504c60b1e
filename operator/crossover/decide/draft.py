"""Which draft length, in simple mode: a threshold with hysteresis and dwell, by the least disruptive lever there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from crossover.api.decision import DecisionReason, DraftDecision, Lever, Memory
from crossover.api.fleet import Capability, FleetSnapshot, PodPhase, SpeculationSettings
from crossover.api.intent import LeverChoice, SpeculationIntent, SpeculationPolicy
from crossover.decide.load import FleetLoad

Schedule = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _View:
    """What the rules below look at."""

    snapshot: FleetSnapshot
    load: FleetLoad
    intent: SpeculationIntent
    settings: SpeculationSettings
    above: int
    below: int


def decide_draft(
    snapshot: FleetSnapshot, load: FleetLoad, intent: SpeculationIntent | None, memory: Memory
) -> tuple[DraftDecision, Memory]:
    """One decision and the memory of how long the load has been beyond a threshold."""
    settings = snapshot.settings
    if intent is None or intent.policy is SpeculationPolicy.HOLD:
        why = "spec.speculation is not set" if intent is None else "spec.speculation.policy is Hold"
        return _leave(load, DecisionReason.HELD_BY_POLICY, f"{why}: speculation is left as it is"), memory
    if intent.disable_above_running_requests is None:
        return _leave(load, DecisionReason.HELD_BY_POLICY, "no threshold is set: speculation is left as it is"), memory
    if settings is None:
        return _leave(
            load, DecisionReason.NO_LEVER, "the speculation settings of the pod template are unreadable"
        ), memory
    above = intent.disable_above_running_requests
    below = intent.enable_below_running_requests if intent.enable_below_running_requests is not None else above
    view = _View(snapshot, load, intent, settings, above, below)
    memory = _note_load(view, memory)
    capabilities = [pod.capability for pod in snapshot.pods if pod.capability is not None]
    if not capabilities:
        return _leave(load, DecisionReason.METRICS_UNKNOWN, "no server has described itself yet"), memory
    lever, why = choose_lever(capabilities, settings, intent)
    if lever is Lever.ENGINE_SCHEDULE:
        return _by_schedule(view, capabilities), memory
    if lever is Lever.RESTART:
        return _by_restart(view, memory), memory
    return _leave(load, DecisionReason.NO_LEVER, why), memory


def choose_lever(
    capabilities: list[Capability], settings: SpeculationSettings, intent: SpeculationIntent
) -> tuple[Lever, str]:
    """The engine's own schedule where every server can follow one, else a restart; or why there is none."""
    refusal = next((item.schedule_refusal for item in capabilities if item.schedule_dialect is None), None)
    can_follow = all(item.schedule_dialect is not None for item in capabilities) and settings.enabled
    if can_follow and intent.lever is not LeverChoice.RESTART:
        return Lever.ENGINE_SCHEDULE, ""
    if intent.lever is LeverChoice.ENGINE_SCHEDULE:
        return Lever.NONE, f"spec.speculation.lever is EngineSchedule, but {refusal or 'speculation is off'}"
    return Lever.RESTART, refusal or ""


def _note_load(view: _View, memory: Memory) -> Memory:
    """Since when the load has been above or below. Unknown load is neither, and ends both."""
    running, now = view.load.running_per_scheduler, view.snapshot.at_seconds
    is_above = running is not None and running > view.above
    is_below = running is not None and running < view.below
    return replace(
        memory,
        above_since_seconds=_since(is_above, memory.above_since_seconds, now),
        below_since_seconds=_since(is_below, memory.below_since_seconds, now),
    )


def _since(holds: bool, before: float | None, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _leave(load: FleetLoad, reason: DecisionReason, message: str, lever: Lever = Lever.NONE) -> DraftDecision:
    return DraftDecision(load.draft_in_force, None, lever, reason, message)


# -- lever: the engine's own schedule ----------------------------------------------------------------------------------


def wanted_schedule(above: int, draft_tokens: int, zero_is_safe: bool) -> Schedule:
    """Full length up to the threshold, off (or 1 where 0 is not safe) from the next request on."""
    return ((1, draft_tokens), (above + 1, 0 if zero_is_safe else 1))


def _by_schedule(view: _View, capabilities: list[Capability]) -> DraftDecision:
    """Written once; from then on the engine acts by itself and this only tells what it does."""
    load = view.load
    lever = Lever.ENGINE_SCHEDULE
    draft_tokens = _full_length(view, capabilities)
    if draft_tokens is None:
        message = "the full draft length is unknown: set spec.speculation.maxDraftTokens"
        return _leave(load, DecisionReason.NO_LEVER, message)
    schedule = wanted_schedule(view.above, draft_tokens, all(item.zero_is_safe is True for item in capabilities))
    shown = describe(schedule)
    if view.settings.schedule == schedule:
        running = _shown(load.running_per_scheduler)
        now = "idle or unknown" if load.draft_in_force is None else str(load.draft_in_force)
        message = f"the engine follows {shown}; draft length now {now} at {running} running per scheduler"
        return _leave(load, DecisionReason.ENGINE_FOLLOWS_SCHEDULE, message, lever)
    frozen = _frozen(view)
    if frozen is not None:
        return _leave(load, frozen[0], f"schedule {shown} to be written: {frozen[1]}", lever)
    message = f"the pods can follow a schedule: write {shown} once, by a drained rollout"
    return DraftDecision(load.draft_in_force, draft_tokens, lever, DecisionReason.SCHEDULE_NEEDED, message, schedule)


def _full_length(view: _View, capabilities: list[Capability]) -> int | None:
    if view.intent.max_draft_tokens is not None:
        return view.intent.max_draft_tokens
    if view.settings.draft_tokens is not None:
        return view.settings.draft_tokens
    told = [item.max_draft_tokens for item in capabilities if item.max_draft_tokens is not None]
    return max(told) if told else None


def describe(schedule: Schedule) -> str:
    """``"draft 3 up to 32 running requests, 0 above"``."""
    if not schedule:
        return "no schedule"
    parts = []
    for position, (_, draft) in enumerate(schedule[:-1]):
        parts.append(f"{draft} up to {schedule[position + 1][0] - 1}")
    last = schedule[-1][1]
    if not parts:
        return f"draft {last} at any load"
    return f"draft {', '.join(parts)} running requests, {last} above"


# -- lever: a restart with other arguments -----------------------------------------------------------------------------


def _by_restart(view: _View, memory: Memory) -> DraftDecision:
    """Off when the load stays above, on again when it stays below; never while anything is moving."""
    if view.settings.enabled:
        return _beyond(view, memory, memory.above_since_seconds, 0, DecisionReason.ABOVE_CROSSOVER)
    return _beyond(
        view, memory, memory.below_since_seconds, _restored_length(view, memory), DecisionReason.BELOW_CROSSOVER
    )


def _restored_length(view: _View, memory: Memory) -> int:
    """What was in force before it was taken out; the arguments themselves are put back as they stood."""
    if view.intent.max_draft_tokens is not None:
        return view.intent.max_draft_tokens
    taken = [change.from_value for change in memory.changes if change.kind == "draft" and change.to_value == 0]
    return taken[-1] if taken and taken[-1] else 1


def _beyond(view: _View, memory: Memory, since: float | None, target: int, reason: DecisionReason) -> DraftDecision:
    load, intent, now = view.load, view.intent, view.snapshot.at_seconds
    current = _configured(view)
    running = _shown(load.running_per_scheduler)
    side = f"above {view.above}" if target == 0 else f"below {view.below}"
    text = f"{running} running per scheduler, speculation {'on' if view.settings.enabled else 'off'}"
    if load.running_per_scheduler is None:
        return DraftDecision(
            current, None, Lever.RESTART, DecisionReason.METRICS_UNKNOWN, "the load is unknown: no change"
        )
    if since is None:
        bounds = f"off above {view.above}, on again below {view.below}"
        return DraftDecision(current, None, Lever.RESTART, DecisionReason.STEADY, f"{text}, {bounds}: no change")
    held = now - since
    text = f"{text}, {side} for {held:.0f} s"
    if held < intent.stabilization_window_seconds:
        message = f"{text}: changes after {intent.stabilization_window_seconds:.0f} s"
        return DraftDecision(current, None, Lever.RESTART, DecisionReason.STABILIZING, message)
    frozen = _frozen(view) or _unknown(load) or _dwelling(memory, now, intent)
    if frozen is not None:
        return DraftDecision(current, None, Lever.RESTART, frozen[0], f"{text}: {frozen[1]}")
    message = f"{text}: draft {_shown_int(current)} -> {target} by a drained rollout"
    return DraftDecision(current, target, Lever.RESTART, reason, message)


def _configured(view: _View) -> int | None:
    """The draft length in force where the servers tell, else what the template asks for."""
    if not view.settings.enabled:
        return 0
    return view.load.draft_in_force if view.load.draft_in_force else view.settings.draft_tokens


def _frozen(view: _View) -> tuple[DecisionReason, str] | None:
    """No change of draft length while pods come or go: the load they leave behind is not the load to decide on."""
    snapshot, load = view.snapshot, view.load
    if snapshot.rollout_in_progress:
        return DecisionReason.FROZEN_ROLLOUT, "a rollout is in progress"
    if load.pending or snapshot.in_phase(PodPhase.FAILED):
        return DecisionReason.FROZEN_PODS_PENDING, f"{load.pending} pods are starting"
    if load.terminating:
        return DecisionReason.FROZEN_PODS_TERMINATING, f"{load.terminating} pods are draining"
    ready = len(snapshot.in_phase(PodPhase.READY))
    if snapshot.desired_replicas is None or ready < snapshot.desired_replicas:
        return DecisionReason.FROZEN_PODS_PENDING, f"{ready} of {snapshot.desired_replicas} replicas are ready"
    return None


def _unknown(load: FleetLoad) -> tuple[DecisionReason, str] | None:
    if load.unknown:
        return DecisionReason.METRICS_UNKNOWN, f"the load of {load.unknown} ready pods is unknown"
    return None


def _dwelling(memory: Memory, now: float, intent: SpeculationIntent) -> tuple[DecisionReason, str] | None:
    last = max((change.at_seconds for change in memory.changes if change.kind == "draft"), default=None)
    if last is not None and now - last < intent.min_dwell_seconds:
        left = intent.min_dwell_seconds - (now - last)
        return DecisionReason.DWELLING, f"changed {now - last:.0f} s ago, dwells {left:.0f} s more"
    return None


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _shown_int(value: int | None) -> str:
    return "unknown" if value is None else str(value)
