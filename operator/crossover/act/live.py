"""A live cap on the running batch, brought to one pod and read back before it is believed.

`POST` alone proves nothing: older servers answer "true" for a key they ignored. The state is asked for first (an equal one
is left alone), and again afterwards; what it shows then is the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from crossover.engines.contract import Answer, CapState, RunningCap


class Door(Protocol):
    """HTTP to one pod, bounded in time and size. None = no answer at all."""

    async def get(self, path: str) -> Answer | None: ...

    async def post(self, path: str, body: bytes) -> Answer | None: ...


class CapOutcome(StrEnum):
    IN_FORCE = "InForce"
    """It was there already; nothing was sent."""
    APPLIED = "Applied"
    """Sent, read back, there."""
    UNREACHABLE = "Unreachable"
    UNAUTHORIZED = "Unauthorized"
    UNSUPPORTED = "Unsupported"
    """The server shows no such knob."""
    NOT_TAKEN = "NotTaken"
    """Sent, and the state read back does not show it, whatever was answered."""


@dataclass(frozen=True, slots=True)
class CapResult:
    outcome: CapOutcome
    cap: int | None = None
    """In force now, as read back; the lowest over the schedulers. None = not known."""

    @property
    def holds(self) -> bool:
        return self.outcome in (CapOutcome.IN_FORCE, CapOutcome.APPLIED)


async def hold(door: Door, knob: RunningCap, wanted: int | None) -> CapResult:
    """Make ``wanted`` (requests per scheduler; None = what the process started with) the cap of one pod.

    Idempotent. A cap above what the server accepts is set to that. Never raises for what a pod does or says.
    """
    before = await _look(door, knob)
    if isinstance(before, CapOutcome):
        return CapResult(before)
    target = before.at_start if wanted is None else max(1, min(wanted, before.most))
    if set(before.in_force) == {target}:
        return CapResult(CapOutcome.IN_FORCE, target)
    path, body = knob.request(before, target)
    answer = await door.post(path, body)
    refused = _refusal(answer)
    if refused is not None:
        return CapResult(refused, min(before.in_force))
    after = await _look(door, knob)
    if isinstance(after, CapOutcome):
        return CapResult(after)
    taken = set(after.in_force) == {target}
    return CapResult(CapOutcome.APPLIED if taken else CapOutcome.NOT_TAKEN, min(after.in_force))


async def _look(door: Door, knob: RunningCap) -> CapState | CapOutcome:
    answer = None
    for path in knob.state_paths:
        answer = await door.get(path)
        if answer is None or answer.status != 404:
            break
    refused = _refusal(answer)
    if refused is not None or answer is None:
        return refused or CapOutcome.UNREACHABLE
    state = knob.state(answer) if answer.status == 200 else None
    return state if state is not None else CapOutcome.UNSUPPORTED


def _refusal(answer: Answer | None) -> CapOutcome | None:
    if answer is None or answer.status >= 500:
        return CapOutcome.UNREACHABLE
    return CapOutcome.UNAUTHORIZED if answer.status in (401, 403) else None
