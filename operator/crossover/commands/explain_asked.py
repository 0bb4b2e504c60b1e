"""`crossover explain --running N --pods N`: what `plan` would do with a load that somebody asks about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.api.decision import Decision, Memory
from crossover.api.fleet import FleetSnapshot, PodObservation
from crossover.api.intent import Intent
from crossover.decide import plan, with_changes
from crossover.decide.load import FleetLoad, measure
from crossover.decide.operating import Conditions, Rates
from crossover.decide.profile import Profile
from crossover.decide.situation import observe

TICK_SECONDS = 30.0
LONGEST_SECONDS = 7200.0
"""Loads that last longer than this are another question."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked. None = as it is now."""

    running_requests: float | None = None
    """Mean per scheduler."""
    pods: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.running_requests is not None or self.pods is not None


@dataclass(frozen=True, slots=True)
class Answer:
    running_requests: float | None
    """Per scheduler, as it would be."""
    pods: int
    at_once: Decision | None
    """None = ``granted`` says why nothing can be decided."""
    later: tuple[tuple[float, Decision], ...]
    """If the load lasts: the first change of draft length and of replicas, with the seconds it takes."""
    granted: tuple[str, ...]
    """What was taken for granted."""


def answer(
    snapshot: FleetSnapshot | None, intent: Intent, memory: Memory, profile: Profile | None, asked: Load
) -> Answer:
    """The fleet of ``snapshot`` under the load that is asked for, held until windows and dwell times have passed."""
    load = measure(snapshot) if snapshot is not None else None
    if snapshot is None or load is None or not load.running_per_scheduler or not load.known:
        why = "the present batch is unknown or 0: there is no pod to take for an example"
        return Answer(asked.running_requests, asked.pods or 0, None, (), (why,))
    count = asked.pods or load.known + load.unknown
    present, demand = _curve(snapshot, load, intent, memory, profile)
    batch, granted = _batch(load, count, asked, present, demand)
    if batch is None:
        return Answer(None, count, None, (), granted)
    rate = present.rate(batch) if present is not None else _rate(load, batch)
    there = _fleet(snapshot, load, count, batch, rate, queue_stays=asked.running_requests is None)
    at_once, later = _held(there, intent, memory, profile)
    return Answer(batch, count, at_once, later, granted)


def live_conditions(snapshot: FleetSnapshot | None, intent: Intent, memory: Memory, profile: Profile) -> Conditions:
    """What a calibration is to be read under: present acceptance, context and corrections as far as status tells."""
    if snapshot is not None and (load := measure(snapshot)).known:
        return observe(snapshot, load, intent, profile, memory)[0].conditions
    target = intent.objectives.time_per_output_token_seconds
    return Conditions(profile.context_tokens, correction=memory.correction, tpot_seconds=target)


def _curve(
    snapshot: FleetSnapshot, load: FleetLoad, intent: Intent, memory: Memory, profile: Profile | None
) -> tuple[Rates | None, float | None]:
    """(the curve in force, output tokens/s over the fleet), with a profile and where they are known."""
    if profile is None:
        return None, None
    here, _ = observe(snapshot, load, intent, profile, memory)
    return here.present, here.demand.now if here.demand is not None else None


def _batch(
    load: FleetLoad, count: int, asked: Load, present: Rates | None, demand: float | None
) -> tuple[float | None, tuple[str, ...]]:
    """Mean running requests per scheduler. Without a curve the sum of requests is all there is to divide."""
    if asked.running_requests is not None:
        served = "from the calibrated curve" if present is not None else "taken to grow with the batch"
        return asked.running_requests, (f"nothing waits, and the output rate is {served}",)
    if present is not None and demand is not None:
        per_replica = load.schedulers / load.known
        found = present.batch_at(demand / count / per_replica)
        if found is not None:
            return found, ("the demand stays; the batch follows from the calibrated curve in force",)
        why = f"{count} pods as they run now serve at most {count * per_replica * present.highest:.0f} of {demand:.0f} tok/s"
        return None, (f"{why}: requests would queue without end",)
    assert load.running_per_scheduler is not None
    share = (load.known + load.unknown) / count
    return load.running_per_scheduler * share, (
        "the sum of running and waiting requests stays; without a calibration nothing tells how the batch would move",
    )


def _rate(load: FleetLoad, batch: float) -> float | None:
    """Output tokens/s per scheduler at the present time per output token: S = b / TPOT."""
    if load.output_tokens_per_second is None or not load.running:
        return None
    return load.output_tokens_per_second * batch / load.running


def _fleet(
    snapshot: FleetSnapshot, load: FleetLoad, count: int, batch: float, rate: float | None, *, queue_stays: bool
) -> FleetSnapshot:
    """``count`` ready pods like the first one that is known, and none that come or go."""
    queue = (load.waiting or 0.0) if queue_stays else 0.0
    example = snapshot.known[0]
    assert example.reading is not None
    ranks = len(example.reading.schedulers)
    each = tuple(
        replace(item, running_requests=batch, waiting_requests=queue / count / ranks)
        for item in example.reading.schedulers
    )
    reading = replace(example.reading, schedulers=each)
    served = None if rate is None else rate * ranks
    pods: Sequence[PodObservation] = [
        replace(
            example, name=f"asked-{n}", uid=f"asked-{n}", reading=reading, output_tokens_per_second=served,
            time_per_output_token_seconds=None,
        )
        for n in range(count)
    ]  # fmt: skip
    return replace(snapshot, desired_replicas=count, pods=tuple(pods), rollout_in_progress=False)


def _held(
    snapshot: FleetSnapshot, intent: Intent, memory: Memory, profile: Profile | None
) -> tuple[Decision, tuple[tuple[float, Decision], ...]]:
    """The decision at once, and the first change of each kind. A change of draft length is noted, so that the other lever
    is seen behind it; the load is not changed by it."""
    first: Decision | None = None
    found: dict[str, tuple[float, Decision]] = {}
    elapsed = 0.0
    while elapsed <= LONGEST_SECONDS and len(found) < 2:
        decision = plan(replace(snapshot, at_seconds=snapshot.at_seconds + elapsed), intent, memory, profile)
        first = first or decision
        memory = with_changes(decision.memory, decision, replicas=False, draft=True)
        if decision.draft.target is not None:
            found.setdefault("draft", (elapsed, decision))
        elif decision.replicas.target not in (None, decision.replicas.current):
            found.setdefault("replicas", (elapsed, decision))
        elapsed += TICK_SECONDS
    assert first is not None
    return first, tuple(found.values())
