"""Calibrated mode looks at a fleet: what runs, what the lever can reach, how fast each of them would be now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from crossover.api.decision import Lever, Memory
from crossover.api.fleet import Capability, FleetSnapshot, PodObservation, SpeculationSettings
from crossover.api.intent import Intent, SpeculationIntent, SpeculationPolicy
from crossover.decide.demand import Demand, observe_demand
from crossover.decide.draft import capabilities_of, note_in_force
from crossover.decide.floor import BROKE, note_missed
from crossover.decide.learning import is_settled, learn
from crossover.decide.lever import choose_lever, full_length, zero_is_safe
from crossover.decide.live import conditions, look
from crossover.decide.load import FleetLoad
from crossover.decide.numbers import demand_per_scheduler
from crossover.decide.operating import Conditions, Rates, all_rates, best_schedule, nearest
from crossover.decide.profile import Profile
from crossover.decide.recognition import note_outcome
from crossover.decide.schedule import Schedule
from crossover.decide.variant import OFF, Variant

MISSED = 1.02
"""A measured TPOT this far over the target is no noise."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One fleet, one moment, everything the rules below look at."""

    snapshot: FleetSnapshot
    load: FleetLoad
    intent: Intent
    profile: Profile
    settings: SpeculationSettings | None
    capabilities: tuple[Capability, ...]
    lever: Lever
    no_lever: str
    in_force: Variant | None
    """What the fleet runs as now; None = unknown or mixed."""
    conditions: Conditions
    demand: Demand | None
    reachable: Mapping[Variant, Rates] = field(default_factory=dict)
    """With a schedule: the variants it may name. Else: what the fleet can be restarted as."""
    present: Rates | None = None
    """As the fleet is set up now (its schedule, its variant)."""
    best: Rates | None = None
    """As it could be: the best schedule, or the reachable variant of the largest capacity."""
    wanted_schedule: Schedule = ()
    seen_capacity: float | None = None
    """Output tokens/s of one replica that a settled fleet was seen to manage while it missed its TPOT target."""

    @property
    def now(self) -> float:
        return self.snapshot.at_seconds

    @property
    def schedulers_per_replica(self) -> float:
        return self.load.schedulers / self.load.known if self.load.known else 1.0

    @property
    def ready_replicas(self) -> int:
        """At least 1: what the demand is divided by."""
        return max(self.load.known + self.load.unknown, 1)

    def demand_per_scheduler(self, replicas: int) -> float:
        """Output tokens/s; 0 where the demand is unknown."""
        now = self.demand.now if self.demand is not None else 0.0
        return now / (replicas * self.schedulers_per_replica)

    @property
    def tpot_target(self) -> float | None:
        return self.intent.objectives.time_per_output_token_seconds


def observe(
    snapshot: FleetSnapshot, load: FleetLoad, intent: Intent, profile: Profile, memory: Memory
) -> tuple[Situation, Memory]:
    """Look at everything once; learn from it."""
    memory = note_in_force(load, memory, snapshot.at_seconds)
    settings, capabilities = snapshot.settings, capabilities_of(snapshot)
    lever, why = _lever(intent.speculation, settings, capabilities, memory)
    in_force = _in_force(load, settings, lever, profile)
    live, memory = conditions(
        look(snapshot, load),
        profile,
        memory,
        snapshot.at_seconds,
        None if snapshot.rollout_in_progress or len(load.drafts) > 1 else in_force,
        intent.objectives.time_per_output_token_seconds,
    )
    rates = all_rates(profile, profile.curves, live)
    measured = rates.get(in_force) if in_force is not None else None
    demand, memory = observe_demand(
        snapshot,
        load,
        memory,
        served_by=partial(_by_profile, rates=measured) if measured is not None else None,
        output_tokens=profile.output_tokens_per_request,
    )
    memory = note_outcome(snapshot, load, demand_per_scheduler(load, demand), memory)
    served = load.output_tokens_per_second
    memory = learn(snapshot, load, memory, measured, in_force, live, served)
    target = intent.objectives.time_per_output_token_seconds
    memory = note_missed(memory, snapshot.at_seconds, _missed(snapshot, load, memory, target))
    base = Situation(
        snapshot,
        load,
        intent,
        profile,
        settings,
        capabilities,
        lever,
        why,
        in_force,
        live,
        demand,
        seen_capacity=memory.observations.get(BROKE),
    )
    return _reach(base, rates), memory


def _missed(snapshot: FleetSnapshot, load: FleetLoad, memory: Memory, target: float | None) -> float | None:
    """Served tokens/s of one replica, scaled down to the target; None unless a settled fleet measurably misses it. TPOT is
    measured as batch over served rate."""
    served = load.output_tokens_per_second
    if target is None or not served or load.running is None or not is_settled(memory, snapshot.at_seconds):
        return None
    tpot = load.running / served
    return served / load.known * target / tpot if tpot > MISSED * target else None


def _by_profile(pod: PodObservation, rates: Rates) -> float | None:
    """Served rate of a pod whose engine tells none, from its batch and the curve."""
    if pod.reading is None:
        return None
    batches = [item.running_requests for item in pod.reading.schedulers if item.running_requests is not None]
    return sum(rates.rate(batch) for batch in batches) if batches else None


def _lever(
    intent: SpeculationIntent | None,
    settings: SpeculationSettings | None,
    capabilities: tuple[Capability, ...],
    memory: Memory,
) -> tuple[Lever, str]:
    if intent is None:
        return Lever.NONE, "spec.speculation is not set: speculation is left as it is"
    if intent.policy is SpeculationPolicy.HOLD:
        return Lever.NONE, "spec.speculation.policy is Hold: speculation is left as it is"
    if settings is None:
        return Lever.NONE, "the speculation settings of the pod template cannot be read"
    if not capabilities:
        return Lever.NONE, "no server has described itself yet"
    return choose_lever(capabilities, settings, intent, memory)


def _in_force(load: FleetLoad, settings: SpeculationSettings | None, lever: Lever, profile: Profile) -> Variant | None:
    """What runs now, as the nearest variant that has a curve."""
    drafting = sum(count for length, count in load.drafts.items() if length)
    if settings is not None and not settings.enabled and 2 * drafting <= load.schedulers:
        return OFF if OFF in profile.curves else nearest(0, profile.curves)
    # In the middle of a rollout the template tells what is wanted; what is in force is what most schedulers run.
    draft = max(load.drafts, key=lambda length: load.drafts[length], default=None)
    if draft is None and settings is not None and not settings.schedule:
        draft = settings.draft_tokens
    if draft is None:
        return None
    speculating = [variant for variant in profile.curves if not variant.off]
    return nearest(draft, speculating) if speculating else None


def _reach(here: Situation, rates: Mapping[Variant, Rates]) -> Situation:
    """What the lever can reach, how the fleet is set up now, and how it would be set up best."""
    present = _present(here, rates)
    speculation, settings = here.intent.speculation, here.settings
    if here.lever is Lever.NONE or speculation is None or settings is None:
        only = {here.in_force: rates[here.in_force]} if here.in_force is not None else {}
        return replace(here, reachable=only, present=present, best=present)
    longest = full_length(here.capabilities, settings, speculation)
    allowed = {v: r for v, r in rates.items() if longest is None or v.draft_tokens <= longest}
    if here.lever is Lever.ENGINE_SCHEDULE:
        safe = zero_is_safe(here.capabilities)
        inside = {v: r for v, r in allowed.items() if not v.off and (v.draft_tokens or safe)}
        if not inside:
            return replace(here, reachable={}, present=present, best=present)
        schedule = best_schedule(inside)
        if any(draft for _, draft in schedule):
            followed = Rates.following(schedule, inside, here.tpot_target)
            return replace(here, reachable=inside, present=present, best=followed, wanted_schedule=schedule)
    return _by_restart(here, allowed, present)


def _by_restart(here: Situation, allowed: Mapping[Variant, Rates], present: Rates | None) -> Situation:
    """Off or any measured length. Also where an engine could follow a schedule that would say 0 at every batch: a process
    without speculation is cheaper than a gated one."""
    startable = {v: r for v, r in allowed.items() if v.off or v.draft_tokens}
    best = max(startable.values(), key=lambda item: (item.capacity, item.highest), default=present)
    return replace(here, lever=Lever.RESTART, reachable=startable, present=present, best=best)


def _present(here: Situation, rates: Mapping[Variant, Rates]) -> Rates | None:
    settings = here.settings
    if settings is not None and settings.enabled and settings.schedule:
        inside = {v: r for v, r in rates.items() if not v.off}
        return Rates.following(settings.schedule, inside, here.tpot_target) if inside else None
    return rates.get(here.in_force) if here.in_force is not None else None


def tokens(value: float) -> str:
    """``"940"``, ``"5.2k"``."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}k"
