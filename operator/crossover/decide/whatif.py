"""What would change a decision: `plan` itself, asked again under other loads held for as long as its windows need.

The load is scaled at the present number of replicas until another draft length or replica count comes out. A change of
draft length that comes out is noted in memory, so that the other lever is seen behind it; nothing else is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from crossover.api.decision import Decision, Memory
from crossover.api.fleet import FleetSnapshot, PodObservation
from crossover.api.intent import Intent
from crossover.decide.load import measure
from crossover.decide.memory import with_changes
from crossover.decide.plan import plan
from crossover.decide.profile import Profile
from crossover.decide.situation import observe

TICK_SECONDS = 30.0
LONGEST_SECONDS = 7200.0
RATIO, FARTHEST, BISECTIONS = 1.25, 24, 6
"""Loads are tried at 1.25, 1.56, ... times the present one, up to 200 times; then the turn is narrowed down to 0.4 %."""
DRAFT, REPLICAS = "draft", "replicas"


@dataclass(frozen=True, slots=True)
class Turn:
    """The nearest load, on one side of the present one, at which a decision changes something."""

    kind: str
    """``"draft"`` or ``"replicas"``."""
    factor: float
    """Of the present load; 1 = it changes at the present load, when its windows have passed."""
    running_requests_per_scheduler: float | None
    demand_tokens_per_second: float | None
    after_seconds: float
    """How long the load must last."""
    decision: Decision

    @property
    def what(self) -> str:
        """``"draft 7 -> 0"``, ``"replicas 3 -> 4"``."""
        part = self.decision.draft if self.kind == DRAFT else self.decision.replicas
        return f"{self.kind} {'unknown' if part.current is None else part.current} -> {part.target}"


Move = tuple[str, bool]
"""(kind, whether it grows)."""
Outcome = dict[Move, tuple[float, Decision]]
"""First change by move: (after how many seconds, the decision)."""
MOVES = 4


def turns(snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: Profile | None = None) -> tuple[Turn, ...]:
    """Nearest turns of both kinds, at the present load, above and below; none where the load is unknown or 0."""
    load = measure(snapshot)
    if not load.running:
        return ()
    at = _scaling(snapshot, intent, memory, profile)

    @cache
    def outcome(factor: float) -> Outcome:
        scaled = at(factor)
        return {} if scaled is None else _settled(scaled, intent, memory, profile)

    now = outcome(1.0)
    found = [_turn(move, 1.0, at, now) for move in now]
    for step in (RATIO, 1 / RATIO):
        found += [_turn(move, factor, at, outcome(factor)) for move, factor in _search(step, outcome, set(now), at)]
    return tuple(found)


def _search(
    step: float,
    outcome: Callable[[float], Outcome],
    skipped: set[Move],
    at: Callable[[float], FleetSnapshot | None],
) -> Iterator[tuple[Move, float]]:
    """Away from the present load until every move was seen or the load cannot be served any more."""
    factor, seen = 1.0, set(skipped)
    for _ in range(FARTHEST):
        before, factor = factor, factor * step
        if at(factor) is None or len(seen) == MOVES:
            return
        for move in sorted(set(outcome(factor)) - seen):
            seen.add(move)
            low, high = before, factor
            for _ in range(BISECTIONS):
                middle = (low * high) ** 0.5
                low, high = (low, middle) if move in outcome(middle) else (middle, high)
            yield move, high


def _turn(move: Move, factor: float, at: Callable[[float], FleetSnapshot | None], outcome: Outcome) -> Turn:
    after, decision = outcome[move]
    scaled = at(factor)
    assert scaled is not None
    load = measure(scaled)
    return Turn(
        move[0], factor, load.running_per_scheduler, decision.numbers.get("demand_tokens_per_second"), after, decision
    )


def _settled(snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: Profile | None) -> Outcome:
    found: Outcome = {}
    elapsed, end = 0.0, _long_enough(intent, profile)
    while elapsed <= end and len(found) < 2:
        decision = plan(replace(snapshot, at_seconds=snapshot.at_seconds + elapsed), intent, memory, profile)
        memory = with_changes(decision.memory, decision, replicas=False, draft=True)
        if decision.draft.target is not None:
            found.setdefault((DRAFT, decision.draft.target > (decision.draft.current or 0)), (elapsed, decision))
        elif decision.replicas.target is not None and decision.replicas.target != decision.replicas.current:
            grows = decision.replicas.target > (decision.replicas.current or 0)
            found.setdefault((REPLICAS, grows), (elapsed, decision))
        elapsed += TICK_SECONDS
    return found


def _long_enough(intent: Intent, profile: Profile | None) -> float:
    if profile is not None:
        return LONGEST_SECONDS
    sides = (intent.replicas.scale_up, intent.replicas.scale_down)
    windows = max(side.stabilization_window_seconds for side in sides)
    speculation = intent.speculation
    own = speculation.stabilization_window_seconds + speculation.min_dwell_seconds if speculation is not None else 0.0
    return min(LONGEST_SECONDS, windows + own + 4 * TICK_SECONDS)


def _scaling(
    snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: Profile | None
) -> Callable[[float], FleetSnapshot | None]:
    """From a factor to the fleet under that load; None where it could not serve it. Without a profile the batch is scaled;
    with one the demand is, and the batch follows from the curve in force (Little's law)."""
    if profile is None:
        return lambda factor: _scaled(snapshot, factor, factor)
    load = measure(snapshot)
    here, _ = observe(snapshot, load, intent, profile, memory)
    if here.demand is None or here.present is None or not load.running_per_scheduler:
        return lambda factor: _scaled(snapshot, factor, factor)
    present, demand, batch = here.present, here.demand_per_scheduler(here.ready_replicas), load.running_per_scheduler

    def at(factor: float) -> FleetSnapshot | None:
        found = present.batch_at(factor * demand)
        return None if found is None or found <= 0 else _scaled(snapshot, found / batch, factor)

    return at


def _scaled(snapshot: FleetSnapshot, batches: float, rates: float) -> FleetSnapshot:
    return replace(snapshot, pods=tuple(_scaled_pod(pod, batches, rates) for pod in snapshot.pods))


def _scaled_pod(pod: PodObservation, batches: float, rates: float) -> PodObservation:
    if pod.reading is None:
        return pod
    schedulers = tuple(
        replace(
            item,
            running_requests=None if item.running_requests is None else item.running_requests * batches,
            waiting_requests=None if item.waiting_requests is None else item.waiting_requests * batches,
        )
        for item in pod.reading.schedulers
    )
    rate = pod.output_tokens_per_second
    return replace(
        pod,
        reading=replace(pod.reading, schedulers=schedulers),
        output_tokens_per_second=None if rate is None else rate * rates,
    )
