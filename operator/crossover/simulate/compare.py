"""Several policies side by side: the same search tunes each on the first part of the trace, the rest is the contest."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from crossover.api.points import CalibrationPoint
from crossover.decide.profile import Profile, fit_profile
from crossover.simulate.catalog import CATALOG, Entry, Setting, table_for
from crossover.simulate.fleet import Physics
from crossover.simulate.plant import Plant
from crossover.simulate.policies.own import best_table, capacity
from crossover.simulate.run import Bounds, Outcome, run
from crossover.simulate.traces import Trace

TUNING_SHARE = 0.25
ENOUGH = 0.95
"""Attainment at which the search prefers the cheaper target."""
CLAIRVOYANT = "clairvoyant"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outcomes, and the target that the search chose for each policy."""

    trace: str
    outcomes: tuple[Outcome, ...]
    targets: dict[str, float]

    def summary(self) -> list[dict[str, Any]]:
        """One record per (trace, policy, seed)."""
        limit = {item.seed: item.gpu_hours for item in self.outcomes if item.policy == CLAIRVOYANT}
        records = []
        for item in self.outcomes:
            record = asdict(item)
            del record["series"]
            base = limit.get(item.seed)
            record["ratio_to_clairvoyant"] = item.gpu_hours / base if base else None
            records.append({"trace": self.trace, **record, "target": self.targets.get(item.policy)})
        return records


def believed_profile(plant: Plant, physics: Physics, longest: int, trace: Trace, seed: int) -> Profile:
    """What a calibration of this plant with this workload would have measured: 24 points with 2 % of noise.

    A closed loop at b running requests starts S / L requests a second, whose prefills take their share of the time: the
    measured step is longer by it, t (1 + S0 p / L) with S0 = b AL / t and prefill time p.
    """
    chance = random.Random(seed)
    context = trace.mean_input_tokens + trace.mean_output_tokens / 2
    prefill = plant.prefill_seconds(trace.mean_input_tokens) / trace.mean_output_tokens
    points = []
    for draft in sorted({0, 1, max(1, longest // 2), longest}):
        for running in (1, 4, 16, 48, 128, physics.max_running_requests):
            alone = plant.step_seconds(running, draft, running * context, False)
            time = (alone + running * plant.acceptance_length(draft) * prefill) * chance.gauss(1.0, 0.02)
            points.append(
                CalibrationPoint(
                    running,
                    draft,
                    context_tokens=context,
                    step_seconds=time,
                    acceptance_length=plant.acceptance_length(draft),
                    relative_error=0.02,
                )
            )
    return fit_profile(points)


def compare(
    trace: Trace,
    physics: Physics,
    bounds: Bounds,
    *,
    policies: Sequence[str],
    seeds: Sequence[int],
    max_draft_tokens: int,
    threshold: int,
    profile: Profile | None = None,
    metric_loss: float = 0.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """``progress`` is called before every run."""
    context = trace.mean_input_tokens + trace.mean_output_tokens / 2
    belief = profile or believed_profile(physics.plant, physics, max_draft_tokens, trace, seeds[0])
    best = best_table(physics.plant, physics, max_draft_tokens, context)
    first = trace.window(0.0, trace.seconds * TUNING_SHARE)
    rest = trace.window(trace.seconds * TUNING_SHARE, None)
    outcomes, targets = [], {}
    for name in policies:
        entry = CATALOG[name]
        setting = Setting(first, physics, bounds, max_draft_tokens, threshold, belief, best)
        target = _tuned(name, entry, setting, seeds[0], progress)
        if len(entry.targets) > 1:
            targets[name] = target
        contest = Setting(rest, physics, bounds, max_draft_tokens, threshold, belief, best)
        for seed in seeds:
            progress(f"{name} seed {seed}")
            outcomes.append(_one(name, entry, contest, target, seed, metric_loss))
    return Comparison(trace.name, tuple(outcomes), targets)


def _tuned(name: str, entry: Entry, setting: Setting, seed: int, progress: Callable[[str], None]) -> float:
    """Cheapest target that attains enough on the tuning part; the best attainment where none does."""
    if len(entry.targets) == 1:
        return entry.targets[0]
    tried = []
    for target in entry.targets:
        progress(f"{name} tuning, target {target:g}")
        tried.append((target, _one(name, entry, setting, target, seed, 0.0)))
    enough = [item for item in tried if item[1].attainment >= ENOUGH]
    if enough:
        return min(enough, key=lambda item: item[1].gpu_hours)[0]
    return max(tried, key=lambda item: (item[1].attainment, -item[1].gpu_hours))[0]


def _one(name: str, entry: Entry, setting: Setting, target: float, seed: int, metric_loss: float) -> Outcome:
    return run(
        name,
        setting.trace,
        setting.physics,
        setting.bounds,
        table_for(entry, setting),
        lambda fleet: entry.make(setting, target, fleet),
        seed=seed,
        metric_loss=metric_loss,
        start=_start(setting),
    )


def _start(setting: Setting) -> int:
    """Replicas that the first five minutes need, the same for everybody."""
    trace, physics = setting.trace, setting.physics
    context = trace.mean_input_tokens + trace.mean_output_tokens / 2
    per_replica = capacity(physics.plant, physics, list(setting.best), context)
    part = trace.bins[: max(1, int(300 / trace.bin_seconds))]
    demand = fmean(item.requests * item.output_tokens / trace.bin_seconds for item in part)
    wanted = int(demand / max(per_replica * 0.7, 1.0)) + 1
    return min(max(wanted, setting.bounds.min), setting.bounds.max)
