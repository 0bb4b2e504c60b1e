"""Keeping the live cap where it was decided: on every ready pod, again after a restart, gone when nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossover.act.live import CapOutcome, CapResult, Door, hold
from crossover.api.decision import CapDecision
from crossover.api.fleet import Capability, EngineType, FleetSnapshot, PodObservation, PodPhase
from crossover.engines import ENGINES
from crossover.report import texts
from crossover.report.facts import Done, Problem
from crossover.report.texts import ConditionType, Reason

LOOK_AGAIN_SECONDS = 300.0
"""The state is asked for again this often: the question makes a round trip through every scheduler of the server."""
RETRY_SECONDS = 30.0

Doors = Callable[[str, int], Door]
"""(address, port) -> HTTP to that pod."""


@dataclass(frozen=True, slots=True)
class Held:
    """The last attempt at one pod."""

    pod: str
    address: str
    port: int
    engine: EngineType
    restarts: int
    wanted: int | None
    at_seconds: float
    result: CapResult
    described: Capability
    """What the server had said of itself by then."""


class Caps:
    """What is known of the caps of one fleet's pods. A cache: the truth is asked of the servers."""

    def __init__(self, cap: int | None = None) -> None:
        self._held: dict[str, Held] = {}
        self._told = cap

    async def keep(
        self, doors: Doors, snapshot: FleetSnapshot, decision: CapDecision | None
    ) -> tuple[tuple[Done, ...], tuple[Problem, ...]]:
        """Bring the cap to every ready pod that does not have it yet. ``decision`` None = no pod shall have one of ours."""
        wanted = decision.wanted if decision is not None else None
        present = {pod.uid for pod in snapshot.pods}
        self._held = {uid: held for uid, held in self._held.items() if uid in present}
        due = [pod for pod in snapshot.in_phase(PodPhase.READY) if self._is_due(pod, decision, snapshot.at_seconds)]
        await asyncio.gather(*(self._hold(doors, pod, wanted, snapshot.at_seconds) for pod in due))
        return self._told_of(due, decision), self._problems()

    async def release(self, doors: Doors) -> None:
        """The ModelAutoscaler is gone: what it added goes too, since that needs no restart."""
        capped = [held for held in self._held.values() if held.wanted is not None]
        knobs = [(held, ENGINES[held.engine].running_cap) for held in capped]
        await asyncio.gather(*(hold(doors(held.address, held.port), knob, None) for held, knob in knobs if knob))
        self._held.clear()

    @property
    def any_held(self) -> bool:
        return any(held.wanted is not None for held in self._held.values())

    def _is_due(self, pod: PodObservation, decision: CapDecision | None, now: float) -> bool:
        if pod.address is None or pod.capability is None or ENGINES[pod.capability.engine].running_cap is None:
            return False
        held, wanted = self._held.get(pod.uid), decision.wanted if decision is not None else None
        if held is not None and (held.restarts, held.wanted) == (pod.restarts, wanted):
            pause = LOOK_AGAIN_SECONDS if held.result.holds else RETRY_SECONDS
            lost = pod.capability != held.described and pod.capability.running_cap != held.result.cap
            return lost or now - held.at_seconds >= pause
        if held is not None or wanted is not None:
            return True
        # Never asked, and none is wanted: a cap left over from before a restart of the operator goes.
        return decision is not None and pod.capability.running_cap != pod.capability.running_cap_at_start

    async def _hold(self, doors: Doors, pod: PodObservation, wanted: int | None, now: float) -> None:
        assert pod.address is not None
        assert pod.capability is not None
        engine = ENGINES[pod.capability.engine]
        knob = engine.running_cap
        assert knob is not None
        where = pod.port if pod.port is not None else engine.default_port
        result = await hold(doors(pod.address, where), knob, wanted)
        if wanted is None and result.holds:
            self._held.pop(pod.uid, None)
            return
        self._held[pod.uid] = Held(
            pod.name, pod.address, where, engine.type, pod.restarts, wanted, now, result, pod.capability
        )

    def _told_of(self, due: Sequence[PodObservation], decision: CapDecision | None) -> tuple[Done, ...]:
        """A new cap once, and each pod on which it had to be put back after a restart."""
        wanted = decision.wanted if decision is not None else None
        applied = [
            held
            for pod in due
            if (held := self._held.get(pod.uid)) is not None and held.result.outcome is CapOutcome.APPLIED
        ]
        if wanted != self._told and (applied or wanted is None):
            summary = texts.running_cap(self._told, wanted)
            self._told = wanted
            message = decision.message if decision is not None else texts.RUNNING_CAP_NOT_WANTED
            return (Done("admission", summary, message, Reason.RUNNING_CAP_CHANGED),)
        return tuple(
            Done(
                "admission",
                f"running cap {held.wanted} put back on pod {held.pod}",
                "it had been lost, as by a restart of the server",
                Reason.RUNNING_CAP_PUT_BACK,
            )
            for held in applied
        )

    def _problems(self) -> tuple[Problem, ...]:
        failed = [held for held in self._held.values() if not held.result.holds]
        lasting = [held for held in failed if held.result.outcome is not CapOutcome.UNREACHABLE]
        if not lasting:
            return ()
        worst = lasting[0]
        message = texts.running_cap_refused(worst.pod, str(worst.result.outcome), len(lasting))
        return (Problem(ConditionType.EFFECTIVE, Reason.RUNNING_CAP_REFUSED, message),)
