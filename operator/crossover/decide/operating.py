"""What a replica does under a demand: operating points, capacity, and the best draft length at each batch.

Everything is per scheduler. Occupancy is not an input: by Little's law b = demand x TPOT(b, K), so the batch at a demand
is the least b with S(b, K) = demand, and it differs by K (docs/design/0043).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from crossover.decide.acceptance import shifted
from crossover.decide.profile import Profile
from crossover.decide.schedule import Schedule, draft_at
from crossover.decide.variant import Variant

KV_SHARE = 0.9
"""Share of the KV pool to plan for: beyond it engines start to retract requests."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is true now and was not part of the calibration."""

    context_tokens: float
    """Mean KV tokens per running request."""
    acceptance_shift: float = 0.0
    """See `crossover.decide.acceptance.shift_between`."""
    lengths: Mapping[Variant, float] = field(default_factory=dict)
    """Live AL where it is known directly; wins over the shift."""
    correction: Mapping[str, float] = field(default_factory=dict)
    """Measured step time as a share of the calibrated one, by variant name."""
    max_running_requests: float | None = None
    """The engine's limit now."""
    kv_capacity_tokens: float | None = None
    tpot_seconds: float | None = None
    """The target for time per output token."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One variant at one demand. Rates are output tokens/s of one scheduler."""

    variant: Variant
    demand: float
    running: float
    tpot_seconds: float
    capacity: float
    """Most output tokens/s within TPOT target, engine limit and KV."""
    highest: float
    """Most output tokens/s within engine limit and KV, whatever the TPOT."""
    saturated: bool
    """The demand exceeds ``highest``: requests queue."""
    meets_target: bool
    extrapolated: bool
    """The batch lies outside of what was measured."""

    @property
    def feasible(self) -> bool:
        return self.meets_target and not self.saturated


class Rates:
    """TPOT and S over a grid of batches, for one variant or one schedule under some conditions: computed once, asked
    often."""

    __slots__ = ("capacity", "highest", "limit", "measured", "running", "seconds_per_token", "values", "variant")

    def __init__(
        self,
        variant: Variant,
        running: Sequence[float],
        seconds_per_token: Sequence[float],
        measured: tuple[float, float],
        limit: float,
        tpot_target: float | None,
    ) -> None:
        self.variant, self.running, self.seconds_per_token = variant, running, seconds_per_token
        self.measured, self.limit = measured, limit
        self.values = [batch / tpot for batch, tpot in zip(running, seconds_per_token, strict=True)]
        self.highest = self._highest(limit)
        within = limit if tpot_target is None else min(limit, self.batch_at_tpot(tpot_target))
        self.capacity = self._highest(within)

    @classmethod
    def of(cls, profile: Profile, variant: Variant, conditions: Conditions) -> Rates:
        """One variant."""
        curve = profile.curves[variant]
        scale = correction_of(conditions.correction, variant) / acceptance_under(profile, variant, conditions)
        slope = curve.kv_seconds_per_token * conditions.context_tokens
        seconds = [
            scale * (base + slope * running) for base, running in zip(curve.base_seconds, curve.running, strict=True)
        ]
        limit = _limit(profile, variant, conditions)
        return cls(variant, curve.running, seconds, curve.measured, limit, conditions.tpot_seconds)

    @classmethod
    def following(cls, schedule: Schedule, rates: Mapping[Variant, Rates], tpot_target: float | None) -> Rates:
        """An engine that looks its draft length up in ``schedule`` by the batch; a length that was not measured counts
        as the nearest one that was. ``rates`` is not empty."""
        longest = max(rates)
        any_rates = rates[longest]
        by_draft = {draft: rates[nearest(draft, rates)] for _, draft in schedule}
        seconds = [by_draft[draft_at(schedule, max(1.0, batch)) or 0].tpot(batch) for batch in any_rates.running]
        limit = max(item.limit for item in by_draft.values())
        return cls(longest, any_rates.running, seconds, any_rates.measured, limit, tpot_target)

    def tpot(self, running: float) -> float:
        """Time per output token at a batch; below one request as at one."""
        grid, values = self.running, self.seconds_per_token
        if running <= grid[0]:
            return values[0]
        right = min(bisect_right(grid, running), len(grid) - 1)
        left = right - 1
        return values[left] + (values[right] - values[left]) * (running - grid[left]) / (grid[right] - grid[left])

    def rate(self, running: float) -> float:
        return running / self.tpot(running) if running > 0 else 0.0

    def batch_at(self, demand: float) -> float | None:
        """Least batch that serves ``demand``; None when none within the limit does."""
        if demand <= 0:
            return 0.0
        if demand > self.highest * (1 + 1e-9):
            return None
        previous, before = 0.0, 0.0
        for running, value in zip(self.running, self.values, strict=True):
            if value >= demand:
                found = previous + (running - previous) * (demand - before) / (value - before)
                return min(found, self.limit)
            previous, before = running, value
        return self.limit

    def batch_at_tpot(self, tpot_seconds: float) -> float:
        """Largest batch whose TPOT is within the target; 0 when even one request is slower."""
        grid, values = self.running, self.seconds_per_token
        if values[0] > tpot_seconds:
            return 0.0
        right = bisect_right(values, tpot_seconds)
        if right >= len(values):
            return grid[-1]
        left = right - 1
        return grid[left] + (grid[right] - grid[left]) * (tpot_seconds - values[left]) / (values[right] - values[left])

    def _highest(self, within: float) -> float:
        """Largest S at a batch up to ``within``."""
        if within <= 0:
            return 0.0
        best = self.rate(within)
        for running, value in zip(self.running, self.values, strict=True):
            if running > within:
                break
            best = max(best, value)
        return best

    def at(self, demand: float, tpot_target: float | None) -> OperatingPoint:
        batch = self.batch_at(demand)
        running = self.limit if batch is None else batch
        tpot = self.tpot(running)
        low, high = self.measured
        return OperatingPoint(
            self.variant,
            demand,
            running,
            tpot,
            self.capacity,
            self.highest,
            batch is None,
            tpot_target is None or tpot <= tpot_target * (1 + 1e-9),
            running > high * 1.05 or (running < low * 0.95 and running > 1),
        )


def acceptance_under(profile: Profile, variant: Variant, conditions: Conditions) -> float:
    """AL of a variant under the live workload."""
    curve = profile.curves[variant]
    if not curve.acceptance_known or variant.draft_tokens == 0:
        return curve.acceptance_length
    told = conditions.lengths.get(variant)
    if told is not None:
        return told
    return shifted(curve.acceptance_length, variant.draft_tokens, conditions.acceptance_shift)


def correction_of(correction: Mapping[str, float], variant: Variant) -> float:
    """A variant's own factor. One that never ran shares what the others taught, because the machine is the same: all of it
    when they agree, nothing when they contradict each other."""
    own = correction.get(variant.name)
    if own is not None:
        return own
    logs = [math.log(factor) for factor in correction.values()]
    mean = sum(logs) / len(logs) if logs else 0.0
    if abs(mean) < 1e-9:
        return 1.0
    disagreement = max(abs(value - mean) for value in logs) / abs(mean)
    return math.exp(max(0.0, 1.0 - disagreement) * mean)


def _limit(profile: Profile, variant: Variant, conditions: Conditions) -> float:
    """Largest batch: the grid's end, the engine's own limit, the KV pool."""
    limit = profile.curves[variant].running[-1]
    told = profile.limits.get(variant, conditions.max_running_requests)
    if told is not None and told > 0:
        limit = min(limit, told)
    if conditions.kv_capacity_tokens and conditions.context_tokens > 0:
        limit = min(limit, max(1.0, KV_SHARE * conditions.kv_capacity_tokens / conditions.context_tokens))
    return limit


def nearest(draft_tokens: int, variants: Iterable[Variant]) -> Variant:
    """The measured variant whose draft length is nearest, the shorter one of two; a zero only for 0."""
    choices = list(variants)
    alike = [item for item in choices if (item.draft_tokens == 0) == (draft_tokens == 0)] or choices
    return min(alike, key=lambda item: (abs(item.draft_tokens - draft_tokens), item.draft_tokens))


def all_rates(profile: Profile, variants: Iterable[Variant], conditions: Conditions) -> dict[Variant, Rates]:
    return {variant: Rates.of(profile, variant, conditions) for variant in variants}


def best_schedule(rates: Mapping[Variant, Rates], *, margin: float = 0.02, most_entries: int = 8) -> Schedule:
    """The draft length with the lowest TPOT (which is also the highest S) at every batch, as a schedule.

    A change is worth an entry when somewhere it gains more than ``margin`` over what is in force, so that noise makes no
    entries; the entry then begins where the two curves cross. All ``rates`` share one grid.
    """
    order = sorted(rates.values(), key=lambda item: item.variant)
    limit = max(item.limit for item in order)
    grid = order[0].running
    held = min(order, key=lambda item: item.seconds_per_token[0])
    entries = [(1, held.variant.draft_tokens)]
    for place, batch in enumerate(grid):
        if batch > limit:
            break
        lowest = min(item.seconds_per_token[place] for item in order)
        if held.seconds_per_token[place] <= lowest * (1 + margin):
            continue
        best = next(item for item in order if item.seconds_per_token[place] == lowest)
        start = max(entries[-1][0] + 1, math.ceil(_meeting(held, best, place)))
        entries.append((start, best.variant.draft_tokens))
        held = best
    return _at_most(tuple(entries), most_entries)


def _meeting(held: Rates, best: Rates, place: int) -> float:
    """The batch before ``place`` from which ``best`` is faster than ``held``."""
    grid, one, two = held.running, held.seconds_per_token, best.seconds_per_token
    while place > 0 and one[place - 1] > two[place - 1]:
        place -= 1
    if place == 0:
        return grid[0]
    before, after = two[place - 1] - one[place - 1], one[place] - two[place]
    share = before / (before + after) if before + after > 0 else 1.0
    return grid[place - 1] + share * (grid[place] - grid[place - 1])


def _at_most(schedule: Schedule, count: int) -> Schedule:
    """Drop the entries with the narrowest range (as a ratio) until few enough are left; the first and last stay."""
    entries = list(schedule)
    while len(entries) > count:
        narrowest = min(range(1, len(entries) - 1), key=lambda i: entries[i + 1][0] / entries[i][0])
        del entries[narrowest]
    return tuple(entries)
