"""The policies by name: how each is made for a run, and what the common search may tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossover.decide.profile import Profile
from crossover.simulate.fleet import DraftTable, Fleet, Physics
from crossover.simulate.policies import own, peers
from crossover.simulate.policies.base import ReplicaPolicy
from crossover.simulate.run import Bounds
from crossover.simulate.traces import Trace

TARGETS = (4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)
NO_TUNING = (0.0,)
ALWAYS = "always-on"
OFF = "off"
TABLE = "table"


@dataclass(frozen=True, slots=True)
class Setting:
    """What every policy of a comparison shares."""

    trace: Trace
    physics: Physics
    bounds: Bounds
    max_draft_tokens: int
    threshold: int
    profile: Profile
    best: Sequence[int]
    """Best draft length by running requests on the plant (for the clairvoyant plan)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy. ``make(setting, target, fleet)``; ``drafts``: how draft lengths are chosen at the start."""

    make: Callable[[Setting, float, Fleet], ReplicaPolicy]
    targets: Sequence[float]
    drafts: str = ALWAYS


def _peer(kind: Callable[[float], ReplicaPolicy], targets: Sequence[float] = TARGETS) -> Entry:
    return Entry(lambda setting, target, fleet: kind(target), targets)


PEERS: dict[str, Entry] = {
    "hpa": _peer(peers.HPA),
    "keda": _peer(peers.KEDA),
    "kpa": _peer(peers.KPA),
    "aibrix-apa": _peer(lambda target: peers.APA(target, down_takes_min=True)),
    "aibrix-apa-max": _peer(lambda target: peers.APA(target, down_takes_min=False)),
    "wva-v1": _peer(peers.WVASaturation, NO_TUNING),
    "wva-v2": _peer(peers.WVATokens, NO_TUNING),
    "wva-queueing": _peer(peers.WVAQueueing, NO_TUNING),
    "dynamo-load": _peer(peers.DynamoLoad, NO_TUNING),
    "dynamo-sla": _peer(peers.DynamoSLA),
    "keda-only": _peer(peers.KEDAOnly, NO_TUNING),
    "ray": _peer(peers.Ray),
    "static": _peer(peers.Static, (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)),
}


def _own(setting: Setting, target: float | None, fleet: Fleet, profile: Profile | None) -> ReplicaPolicy:
    bounds = own.Bounds(setting.bounds.min, setting.bounds.max, setting.max_draft_tokens)
    return own.Crossover(
        bounds,
        setting.physics,
        lambda schedule: fleet.roll(by_schedule(schedule)),
        target=target,
        threshold=setting.threshold,
        profile=profile,
    )


def _simple(setting: Setting, target: float, fleet: Fleet) -> ReplicaPolicy:
    return _own(setting, target, fleet, None)


def _calibrated(setting: Setting, target: float, fleet: Fleet) -> ReplicaPolicy:
    return _own(setting, None, fleet, setting.profile)


def _clairvoyant(setting: Setting, target: float, fleet: Fleet) -> ReplicaPolicy:
    return own.Clairvoyant(setting.trace, setting.physics, list(setting.best))


CATALOG: dict[str, Entry] = {
    **PEERS,
    **{f"{name}+table": Entry(entry.make, entry.targets, TABLE) for name, entry in PEERS.items()},
    "crossover-simple": Entry(_simple, TARGETS),
    "crossover": Entry(_calibrated, NO_TUNING),
    "clairvoyant": Entry(_clairvoyant, NO_TUNING, "best"),
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


def by_schedule(schedule: Sequence[tuple[int, int]]) -> DraftTable:
    """The engine's own schedule: gated zero where it says 0."""

    def lookup(running: float) -> tuple[int, bool]:
        draft = schedule[0][1]
        for key, value in schedule:
            if running >= key:
                draft = value
        return draft, False

    return lookup


def table_for(entry: Entry, setting: Setting) -> DraftTable:
    """Draft lengths at the beginning of a run."""
    longest = setting.max_draft_tokens
    if entry.drafts == TABLE:  # typed by hand: full length up to the threshold, off above
        return by_schedule(((1, longest), (setting.threshold + 1, 0)))
    if entry.drafts == OFF:
        return lambda running: (0, True)
    if entry.drafts == "best":
        best = setting.best
        return lambda running: (best[min(len(best) - 1, max(1, round(running)))], False)
    return lambda running: (longest, False)
