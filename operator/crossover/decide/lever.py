"""Which lever reaches the engine: its own schedule where every server can follow one, else a restart, else none."""

from __future__ import annotations

from collections.abc import Sequence

from crossover.api.decision import Lever, Memory
from crossover.api.fleet import Capability, SpeculationSettings
from crossover.api.intent import LeverChoice, SpeculationIntent
from crossover.decide.memory import last_draft_change


def choose_lever(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent, memory: Memory
) -> tuple[Lever, str]:
    """The lever and, for `Lever.NONE`, why there is none. First rule that answers wins."""
    for rule in (_own_schedule, _only_schedule_wanted, _adapts_by_itself, _nothing_to_turn_on):
        answer = rule(capabilities, settings, intent, memory)
        if answer is not None:
            return answer
    return Lever.RESTART, ""


Answer = tuple[Lever, str] | None


def _own_schedule(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent, memory: Memory
) -> Answer:
    can_follow = settings.enabled and all(item.schedule_dialect is not None for item in capabilities)
    if not can_follow or intent.lever is LeverChoice.RESTART:
        return None
    if full_length(capabilities, settings, intent) == 1 and not zero_is_safe(capabilities):
        if intent.lever is LeverChoice.ENGINE_SCHEDULE:
            return Lever.NONE, "a scheduled draft length of 0 is not safe in this build and 1 is the full length"
        return None
    return Lever.ENGINE_SCHEDULE, ""


def _only_schedule_wanted(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent, memory: Memory
) -> Answer:
    if intent.lever is not LeverChoice.ENGINE_SCHEDULE:
        return None
    why = "speculation is off" if not settings.enabled else (_refusal(capabilities) or "the servers cannot follow one")
    return Lever.NONE, f"spec.speculation.lever is EngineSchedule, but {why}"


def _adapts_by_itself(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent, memory: Memory
) -> Answer:
    if intent.lever is LeverChoice.AUTO and any(item.adapts_by_itself for item in capabilities) and settings.enabled:
        return Lever.NONE, "the engine picks draft lengths by itself and takes no schedule: it is not fought"
    return None


def _nothing_to_turn_on(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent, memory: Memory
) -> Answer:
    """Speculation that the user never configured has no draft model and no algorithm to turn on."""
    last = last_draft_change(memory)
    taken_out = settings.algorithm is not None or (last is not None and last.to_value == 0)
    if settings.enabled or taken_out:
        return None
    return Lever.NONE, "the pod template starts the engine without speculation: there is nothing to turn off or on"


def _refusal(capabilities: Sequence[Capability]) -> str | None:
    return next((item.schedule_refusal for item in capabilities if item.schedule_dialect is None), None)


def zero_is_safe(capabilities: Sequence[Capability]) -> bool:
    """Unknown counts as unsafe."""
    return all(item.zero_is_safe is True for item in capabilities)


def full_length(
    capabilities: Sequence[Capability], settings: SpeculationSettings, intent: SpeculationIntent
) -> int | None:
    """The draft length of "on": what the user allows, else what the template asks for, else what the server says."""
    if intent.max_draft_tokens is not None:
        return intent.max_draft_tokens
    if settings.draft_tokens is not None:
        return settings.draft_tokens
    return max((item.max_draft_tokens for item in capabilities if item.max_draft_tokens is not None), default=None)
