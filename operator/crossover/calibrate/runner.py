"""The loop over servers that are all up: ask the sweep, measure, remember, until it is done or stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import (
    Ask,
    Clock,
    Described,
    Done,
    DoneReason,
    FailureReason,
    Measured,
    MeasureFailure,
    SweepPlan,
)
from crossover.calibrate.sweep import next_ask
from crossover.decide.variant import Variant

RETRY_SECONDS = 5.0
TRIES = 2
LASTING = frozenset(
    {
        FailureReason.UNAUTHORIZED,
        FailureReason.WRONG_MODEL,
        FailureReason.WRONG_ENGINE,
        FailureReason.METRICS_OFF,
        FailureReason.REJECTED,
        FailureReason.SERVER_DIED,
        FailureReason.UNREACHABLE,
    }
)
"""After these a server is not asked again."""


class Measurer(Protocol):
    """Measures one load on one server. Raises `MeasureFailure`."""

    async def __call__(self, described: Described, running_requests: int) -> Measured: ...


@dataclass
class Swept:
    """All that came of it, updated while it runs: whoever stops the loop finds here what was measured."""

    points: list[CalibrationPoint] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    failures: list[tuple[Ask, MeasureFailure]] = field(default_factory=list)
    skip: set[Ask] = field(default_factory=set)
    done: Done | None = None
    """None = stopped from outside."""


async def sweep_servers(
    servers: Mapping[Variant, Described],
    plan: SweepPlan,
    measure: Measurer,
    swept: Swept,
    *,
    clock: Clock,
    on_ask: Callable[[Ask], None] = lambda ask: None,
    on_measured: Callable[[Measured], None] = lambda measured: None,
    ends_at: float | None = None,
) -> Swept:
    """``swept.points`` may hold earlier points: the sweep goes on from there. ``ends_at``: no point is begun after this."""
    up = dict(servers)
    while True:
        left = replace(plan, variants=tuple(variant for variant in plan.variants if variant in up))
        step = next_ask(swept.points, left, available=up, skip=swept.skip)
        if isinstance(step, Done):
            swept.done = step
            return swept
        if ends_at is not None and clock.now() >= ends_at:
            swept.done = Done(DoneReason.TIME_SPENT, "the time that was given is over")
            return swept
        on_ask(step)
        measured = await _tried(up, step, measure, swept, clock)
        if measured is None:
            swept.skip.add(step)
            continue
        swept.measured.append(measured)
        seen = Variant(measured.point.draft_tokens, measured.point.off)
        if measured.is_usable:
            swept.points.append(measured.point)
        if not measured.is_usable or seen != step.variant:
            swept.skip.add(step)
        on_measured(measured)


async def _tried(
    up: dict[Variant, Described], ask: Ask, measure: Measurer, swept: Swept, clock: Clock
) -> Measured | None:
    """None = failed; a server that will not come back is taken out of ``up``."""
    for attempt in range(1, TRIES + 1):
        try:
            return await measure(up[ask.variant], ask.running_requests)
        except MeasureFailure as failure:
            swept.failures.append((ask, failure))
            if failure.reason in LASTING and (attempt == TRIES or not failure.is_retriable):
                del up[ask.variant]
                return None
            if attempt < TRIES:
                await clock.sleep(RETRY_SECONDS)
    return None
