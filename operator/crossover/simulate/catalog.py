"""The policies by name: how each is made for a run, and what the common search may tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crossover.decide.profile import Profile
from crossover.decide.schedule import Schedule, draft_at
from crossover.simulate.fleet import DraftTable, Fleet, Physics
from crossover.simulate.policies import dynamo, own, peers, wva
from crossover.simulate.policies.base import ReplicaPolicy
from crossover.simulate.run import Bounds
from crossover.simulate.traces import Trace

TARGETS = (4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)
UTILIZATION = (0.85, 0.8, 0.7, 0.6, 0.5)
"""Of the profile's capacity: the API's default, and more reserve than that."""
MARGINS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35)
NO_TUNING = (0.0,)
THRESHOLDS = (16, 32, 64, 128)
TIERS = "sglang-tiers"
TABLES = (TIERS, *map(str, THRESHOLDS))
"""A table typed by hand drafts at full length up to a threshold and not at all above it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every policy of a comparison shares."""

    trace: Trace
    physics: Physics
    bounds: Bounds
    max_draft_tokens: int
    profile: Profile
    best: Sequence[int]
    """Best draft length by running requests on the plant (for the clairvoyant plan)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the common search chooses for a policy: its target and, where it has one, its draft table."""

    target: float = 0.0
    table: str = ""

    def __str__(self) -> str:
        return " / ".join(text for text in (f"{self.target:g}" if self.target else "", self.table) if text)


Make = Callable[[Setting, Choice, Fleet], ReplicaPolicy]


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy. ``tables``: draft tables to choose from, empty = always the longest draft."""

    make: Make
    targets: Sequence[float]
    tables: Sequence[str] = ()
    hindsight: bool = False
    """Tuned on the contest itself: the limit, not a rival."""

    @property
    def choices(self) -> list[Choice]:
        """Every combination; the first is the stock one."""
        return [Choice(target, table) for table in self.tables or ("",) for target in self.targets]


def _peer(kind: Callable[[float], ReplicaPolicy], targets: Sequence[float] = TARGETS) -> Entry:
    return Entry(lambda setting, choice, fleet: kind(choice.target), targets)


def _informed(kind: Callable[[Physics, Trace], ReplicaPolicy]) -> Entry:
    """A policy that is given a profile of the server instead of a target."""
    return Entry(lambda setting, choice, fleet: kind(setting.physics, setting.trace), NO_TUNING)


PEERS: dict[str, Entry] = {
    "hpa": _peer(peers.HPA),
    "keda": _peer(peers.KEDA),
    "kpa": _peer(peers.KPA),
    "aibrix-apa": _peer(lambda target: peers.APA(target, down_takes_min=True)),
    "aibrix-apa-max": _peer(lambda target: peers.APA(target, down_takes_min=False)),
    "wva-v1": _peer(wva.Saturation, NO_TUNING),
    "wva-v2": _peer(wva.Tokens, NO_TUNING),
    "wva-queueing": _informed(wva.Queueing),
    "dynamo-load": _peer(dynamo.Load, NO_TUNING),
    "dynamo-sla": _informed(dynamo.SLA),
    "keda-only": _peer(peers.KEDAOnly, NO_TUNING),
    "ray": _peer(peers.Ray),
    "static": _peer(peers.Static, (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)),
}


def _own(setting: Setting, fleet: Fleet, *, calibrated: bool, **how: Any) -> ReplicaPolicy:
    bounds = own.Bounds(setting.bounds.min, setting.bounds.max, setting.max_draft_tokens)
    profile = setting.profile if calibrated else None
    return own.Crossover(
        bounds, setting.physics, lambda schedule: fleet.roll(by_schedule(schedule)), profile=profile, **how
    )


def _simple(setting: Setting, choice: Choice, fleet: Fleet) -> ReplicaPolicy:
    return _own(setting, fleet, calibrated=False, target=choice.target, threshold=int(choice.table))


def _calibrated(setting: Setting, choice: Choice, fleet: Fleet) -> ReplicaPolicy:
    return _own(setting, fleet, calibrated=True, utilization=choice.target)


def _clairvoyant(setting: Setting, choice: Choice, fleet: Fleet) -> ReplicaPolicy:
    return own.Clairvoyant(setting.trace, setting.physics, list(setting.best), choice.target)


OWN = {
    "crossover-simple": Entry(_simple, TARGETS, ("32", *(str(item) for item in THRESHOLDS if item != 32))),
    "crossover": Entry(_calibrated, UTILIZATION),
}
CLAIRVOYANT = "clairvoyant"
CATALOG: dict[str, Entry] = {
    **PEERS,
    **{f"{name}+table": Entry(entry.make, entry.targets, TABLES) for name, entry in PEERS.items()},
    **OWN,
    CLAIRVOYANT: Entry(_clairvoyant, MARGINS, ("best",), hindsight=True),
}
DEFAULT = (
    "hpa",
    "hpa+table",
    "keda",
    "keda+table",
    "kpa+table",
    "aibrix-apa+table",
    "wva-v2+table",
    "dynamo-sla+table",
    "static+table",
    "crossover-simple",
    "crossover",
    "clairvoyant",
)


def by_schedule(schedule: Schedule) -> DraftTable:
    """The engine's own schedule: gated zero where it says 0."""

    def lookup(running: float) -> tuple[int, bool]:
        return draft_at(schedule, max(running, 1.0)) or 0, False

    return lookup


def table_for(name: str, entry: Entry, choice: Choice, setting: Setting) -> DraftTable:
    """Draft lengths at the beginning of a run. Crossover starts as anybody does and writes its own."""
    longest = setting.max_draft_tokens
    if entry.hindsight:
        best = setting.best
        return lambda running: (best[min(len(best) - 1, max(1, round(running)))], False)
    if name in OWN or not choice.table:
        return lambda running: (longest, False)
    if choice.table == TIERS:
        # SGLang's default adaptive tiers, at the candidate where the average of accepted tokens settles for chat.
        return by_schedule(((1, min(3, longest)), (64, min(2, longest))))
    return by_schedule(((1, longest), (int(choice.table) + 1, 0)))
