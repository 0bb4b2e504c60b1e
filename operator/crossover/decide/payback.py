"""Whether a restart pays: the regret so far against what a restart costs, and whether the fleet can bear a rollout.

A restart loses drain / 2 + start-up of one replica for every replica. How long the state that asks for it will last is
unknown, so the ski-rental rule decides: wait until the loss of not having switched equals the cost of switching. That is
never worse than twice the best decision in hindsight (docs/design/0045).
"""

from __future__ import annotations

from dataclasses import replace

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import SpeculationIntent
from crossover.decide.demand import DEFAULT_STARTUP_SECONDS
from crossover.decide.guard import Hold

REGRET, REGRET_FOR, REGRET_AT, WANTED_SINCE = (
    "regret_seconds",
    "regret_for",
    "regret_at_seconds",
    "rescue_wanted_since_seconds",
)
LONGEST_STEP_SECONDS = 60.0
COMFORT = 4.0
FORGETS_SECONDS = 1800.0
"""Regret fades over this time while the present state is best."""


def note_regret(memory: Memory, now: float, wanted: float | None, gain: float, rescue: bool) -> Memory:
    """Accumulate gain x time for the state that is ``wanted`` (a number that names it), None = the present one is best.

    Another wanted state inherits nothing. Time in which nobody looked counts for at most a minute.
    """
    seen = dict(memory.observations)
    seconds = min(LONGEST_STEP_SECONDS, max(0.0, now - seen.get(REGRET_AT, now)))
    before = seen.get(REGRET, 0.0)
    if wanted is None:
        seen[REGRET] = max(0.0, before * (1 - seconds / FORGETS_SECONDS))
    elif seen.get(REGRET_FOR) != wanted:
        seen[REGRET], seen[REGRET_FOR] = 0.0, wanted
    else:
        seen[REGRET] = before + gain * seconds
    seen[REGRET_AT] = now
    if rescue and wanted is not None:
        seen.setdefault(WANTED_SINCE, now)
    else:
        seen.pop(WANTED_SINCE, None)
    return replace(memory, observations=seen)


def restart_cost_seconds(snapshot: FleetSnapshot, intent: SpeculationIntent) -> float:
    """Seconds of one replica that a restart of it loses."""
    startup = snapshot.startup_seconds if snapshot.startup_seconds is not None else DEFAULT_STARTUP_SECONDS
    return intent.drain_seconds / 2 + startup


def not_paid_back(
    memory: Memory,
    snapshot: FleetSnapshot,
    intent: SpeculationIntent,
    gain: float,
    *,
    rescue: bool = False,
    comfort: bool = False,
    measured: bool = True,
) -> Hold | None:
    """A rescue (the target is broken now) only has to last for the stabilization window. Mere comfort (the target is met
    anyway) must pay `COMFORT` times, and so must leaving a state that was never measured."""
    if rescue:
        since = snapshot.at_seconds - memory.observations.get(WANTED_SINCE, snapshot.at_seconds)
        if since >= intent.stabilization_window_seconds:
            return None
        window = intent.stabilization_window_seconds
        return Hold(DecisionReason.STABILIZING, f"needed for {since:.0f} s, changes after {window:.0f} s")
    cost, regret = restart_cost_seconds(snapshot, intent), memory.observations.get(REGRET, 0.0)
    cost *= COMFORT if comfort or not measured else 1.0
    if regret >= cost:
        return None
    left = (cost - regret) / gain if gain > 0 else float("inf")
    more = f", {left:.0f} s more at this gain" if left < 1e6 else ""
    return Hold(
        DecisionReason.DOES_NOT_PAY_BACK,
        f"{regret:.0f} s lost so far by not changing, a restart must save {cost:.0f} s of each replica{more}",
    )


def would_overload(utilization: float, replicas: int, max_surge: int) -> Hold | None:
    """One replica less during the rollout must still carry the load, unless a surge replica takes its place."""
    if max_surge > 0 or replicas <= 0 or utilization <= (replicas - 1) / replicas:
        return None
    return Hold(
        DecisionReason.ROLLOUT_WOULD_OVERLOAD,
        f"at {utilization:.0%} of capacity {replicas - 1} of {replicas} replicas cannot carry the load while one restarts "
        "and no surge is allowed",
    )
