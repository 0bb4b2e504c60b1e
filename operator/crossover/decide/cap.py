"""The live cap on the running batch: the lever that costs nothing and is taken back by itself.

TPOT grows with the batch, so a fleet that misses its TPOT target can meet it by admitting fewer requests at once; the
others wait, and the replica loop counts them (running + waiting), so that new replicas, not the cap, end the overload.
Used where the user allows it and the engine has the knob (docs/design/0030).

The batch that meets the target is not known without a profile. TPOT(b) = a + c b with a, c >= 0 gives
``b target / TPOT(b)`` as an upper bound of it: repeated steps come down to it and never go below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from crossover.api.decision import CapDecision, DecisionReason, Memory
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent, LiveCapPolicy
from crossover.decide.load import FleetLoad
from crossover.decide.memory import TPOT_MISSED_SINCE, TPOT_ROOM_SINCE

MISSED, ROOM = 1.05, 0.9
"""Shares of the target: above the first it is missed, below the second there is room. Between them nothing is changed."""
MISSED_SECONDS, ROOM_SECONDS = 15.0, 60.0
"""How long, without a break, before the cap comes down or goes up."""
SETTLE_SECONDS = 30.0
"""Between two changes: the batch shrinks only as fast as requests end, and rates are means over this window."""
LOWEST_SHARE = 0.25
"""Of the engine's own limit: a target that is still missed there is not to be met by admission."""
GROWTH = 1.25
ROUNDING = 1e-6
FULL, IDLE = 0.95, 0.5
"""Shares of the cap: from the first on it binds; below the second nobody needs it."""

CHANGED_AT = "cap_changed_at_seconds"


@dataclass(frozen=True, slots=True)
class _View:
    batch: float
    """Mean running requests per scheduler."""
    tpot: float
    """Seconds: batch over served rate. It sees every request that runs, now; histograms see those that ended."""
    target: float
    waiting: float
    limit: int
    lowest: int


def decide_cap(
    snapshot: FleetSnapshot, load: FleetLoad, intent: Intent, memory: Memory
) -> tuple[CapDecision | None, Memory]:
    """The cap that every scheduler shall have, and the memory of how long the target has been missed or had room."""
    target = intent.objectives.time_per_output_token_seconds
    cap = memory.running_cap
    if intent.live_cap is LiveCapPolicy.OFF or target is None:
        if cap is None:
            return None, memory
        message = "spec.engine.liveCap is Off: the cap is taken away"
        return _decided(memory, None, DecisionReason.HELD_BY_POLICY, message, snapshot.at_seconds)
    held = _held(snapshot, load)
    if held is not None:
        return CapDecision(cap, cap, *held), _timed(memory, snapshot.at_seconds, missed=False, room=False)
    view = _view(snapshot, load, intent, target)
    if isinstance(view, str):
        decision = CapDecision(cap, cap, DecisionReason.METRICS_UNKNOWN, view)
        return decision, _timed(memory, snapshot.at_seconds, missed=False, room=False)
    missed, room = view.tpot > MISSED * target, view.tpot < ROOM * target
    memory = _timed(memory, snapshot.at_seconds, missed=missed, room=room)
    return _choose(view, cap, memory, snapshot.at_seconds)


def _held(snapshot: FleetSnapshot, load: FleetLoad) -> tuple[DecisionReason, str] | None:
    """Starting pods do not hold the cap back: until they serve is when it is needed."""
    if snapshot.rollout_in_progress:
        return DecisionReason.FROZEN_ROLLOUT, "a rollout is in progress"
    able = [pod.capability for pod in snapshot.known if pod.capability is not None]
    if able and any(item.live_running_cap is None for item in able):
        return DecisionReason.NO_LEVER, "this engine has no live cap on the running batch"
    if load.unknown or not load.known or not able:
        return DecisionReason.METRICS_UNKNOWN, "not every ready pod can be read"
    return None


def _view(snapshot: FleetSnapshot, load: FleetLoad, intent: Intent, target: float) -> _View | str:
    limits = [
        pod.capability.running_cap_at_start
        for pod in snapshot.known
        if pod.capability is not None and pod.capability.running_cap_at_start is not None
    ]
    if not load.running or not load.output_tokens_per_second or load.running_per_scheduler is None:
        return "nothing is being served: time per output token is unknown"
    if not limits:
        return "no server has told its batch limit"
    limit = min(limits)
    threshold = intent.speculation.disable_above_running_requests if intent.speculation is not None else None
    lowest = max(1, int(LOWEST_SHARE * limit), 0 if threshold is None else threshold + 1)
    tpot = load.running / load.output_tokens_per_second
    return _View(load.running_per_scheduler, tpot, target, load.waiting or 0.0, limit, min(lowest, limit))


def _choose(view: _View, cap: int | None, memory: Memory, now: float) -> tuple[CapDecision, Memory]:
    shown = f"TPOT {1000 * view.tpot:.0f} ms at {view.batch:.0f} running, target {1000 * view.target:.0f} ms"
    wait = SETTLE_SECONDS - (now - memory.observations.get(CHANGED_AT, -SETTLE_SECONDS))
    if wait > 0:
        return CapDecision(cap, cap, DecisionReason.DWELLING, f"{shown}; the cap changed just now"), memory
    if _lasted(memory, TPOT_MISSED_SINCE, now, MISSED_SECONDS):
        lower = max(view.lowest, int(view.batch * view.target / view.tpot + ROUNDING))
        if lower < (view.limit if cap is None else cap):
            return _decided(memory, lower, DecisionReason.ADMISSION_BREAKS_TARGET, shown, now)
        message = f"{shown}; the cap cannot go lower: fewer requests at once do not meet it"
        return CapDecision(cap, cap, DecisionReason.ADMISSION_BREAKS_TARGET, message), memory
    if cap is not None and _lasted(memory, TPOT_ROOM_SINCE, now, ROOM_SECONDS):
        higher = _higher(view, cap)
        if higher != cap:
            return _decided(memory, higher, DecisionReason.TARGET_HAS_ROOM, shown, now)
    return CapDecision(cap, cap, DecisionReason.STEADY, shown), memory


def _higher(view: _View, cap: int) -> int | None:
    """More for a cap that binds, none for one that nobody needs any more."""
    if view.batch < IDLE * cap and not view.waiting:
        return None
    if view.batch < FULL * cap and not view.waiting:
        return cap
    higher = max(cap + 1, min(int(GROWTH * cap), int(view.batch * ROOM * view.target / view.tpot)))
    return None if higher >= view.limit else higher


def _decided(
    memory: Memory, wanted: int | None, reason: DecisionReason, message: str, now: float
) -> tuple[CapDecision, Memory]:
    observations = {**memory.observations, CHANGED_AT: now}
    for name in (TPOT_MISSED_SINCE, TPOT_ROOM_SINCE):
        observations.pop(name, None)
    decision = CapDecision(memory.running_cap, wanted, reason, message)
    return decision, replace(memory, running_cap=wanted, observations=observations)


def _timed(memory: Memory, now: float, *, missed: bool, room: bool) -> Memory:
    observations = dict(memory.observations)
    for name, holds in ((TPOT_MISSED_SINCE, missed), (TPOT_ROOM_SINCE, room)):
        if holds:
            observations.setdefault(name, now)
        else:
            observations.pop(name, None)
    return replace(memory, observations=observations)


def _lasted(memory: Memory, name: str, now: float, seconds: float) -> bool:
    since = memory.observations.get(name)
    return since is not None and now - since >= seconds
