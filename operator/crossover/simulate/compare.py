"""Several policies side by side: the same search tunes each on the first part of the trace, the rest is the contest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

from crossover.api.points import CalibrationPoint
from crossover.decide.profile import Profile, fit_profile
from crossover.simulate.catalog import CATALOG, CLAIRVOYANT, Choice, Setting, table_for
from crossover.simulate.fleet import Physics
from crossover.simulate.plant import Plant
from crossover.simulate.policies.own import best_table, most_requests
from crossover.simulate.run import Bounds, Outcome, run
from crossover.simulate.traces import Trace

TUNING_SHARE = 0.25
START_SHARE = 0.7
NEARLY = 0.01
"""Where nobody attains what is asked, this much below the best attainment is as good."""


@dataclass(frozen=True, slots=True)
class Try:
    """One choice of one policy over the whole contest."""

    policy: str
    choice: Choice
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outcomes, what the search chose for each policy, and (asked for) what every choice would have come to."""

    trace: str
    outcomes: tuple[Outcome, ...]
    chosen: dict[str, Choice]
    frontier: tuple[Try, ...] = ()
    belief: Profile | None = None
    """What the controller went by."""

    def summary(self) -> list[dict[str, Any]]:
        """One record per (trace, policy, seed)."""
        limit = {item.seed: item.gpu_hours for item in self.outcomes if item.policy == CLAIRVOYANT}
        records = []
        for item in self.outcomes:
            record = asdict(item)
            del record["series"]
            base = limit.get(item.seed)
            record["ratio_to_clairvoyant"] = item.gpu_hours / base if base else None
            records.append({"trace": self.trace, **record, "tuned": str(self.chosen[item.policy])})
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
    for draft in sorted({0, 1, (longest + 1) // 2, longest}):
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
    return fit_profile(points, source="a calibration of the plant with 2 % of noise")


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every policy of a comparison."""

    seeds: Sequence[int]
    attainment: float = 0.99
    """The search takes the cheapest choice that attains this on the tuning part."""
    metric_loss: float = 0.0
    metric_delay_seconds: float = 5.0
    frontier: bool = False
    """Run every choice over the contest too."""


def compare(
    trace: Trace,
    physics: Physics,
    bounds: Bounds,
    rules: Rules,
    *,
    policies: Sequence[str],
    max_draft_tokens: int,
    profile: Profile | None = None,
    progress: Progress = lambda text: None,
    jobs: int | None = 1,
) -> Comparison:
    """``progress`` is called once for every run. ``jobs``: processes, None = as many as there are cores."""
    context = trace.mean_input_tokens + trace.mean_output_tokens / 2
    belief = profile or believed_profile(physics.plant, physics, max_draft_tokens, trace, rules.seeds[0])
    best = best_table(physics.plant, physics, max_draft_tokens, context)
    first = trace.window(0.0, trace.seconds * TUNING_SHARE)
    rest = trace.window(trace.seconds * TUNING_SHARE, None)
    tuning = Setting(first, physics, bounds, max_draft_tokens, belief, best)
    contest = replace(tuning, trace=rest)
    tasks = [(name, tuning, contest, rules) for name in policies]
    entries = list(_all_here(tasks, progress) if jobs == 1 else _side_by_side(tasks, progress, jobs))
    entries.sort(key=lambda item: policies.index(item.policy))
    return Comparison(
        trace.name,
        tuple(outcome for entry in entries for outcome in entry.outcomes),
        {entry.policy: entry.chosen for entry in entries},
        tuple(tried for entry in entries for tried in entry.frontier),
        belief,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's part of a comparison."""

    policy: str
    chosen: Choice
    outcomes: tuple[Outcome, ...]
    frontier: tuple[Try, ...]


Task = tuple[str, Setting, Setting, Rules]


def _all_here(tasks: Sequence[Task], progress: Progress) -> Iterator[Result]:
    for task in tasks:
        yield _result(task, progress)


def _side_by_side(tasks: Sequence[Task], progress: Progress, jobs: int | None) -> Iterator[Result]:
    """A policy a process; ``progress`` hears of a policy's runs when it is done."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_result, task) for task in tasks]):
            result = done.result()
            for _ in range(runs([result.policy], tasks[0][3])):
                progress(f"{result.policy} is done")
            yield result


def _result(task: Task, progress: Progress = lambda text: None) -> Result:
    name, tuning, contest, rules = task
    chosen = _tuned(name, contest if CATALOG[name].hindsight else tuning, rules, progress)
    outcomes, frontier = [], []
    for seed in rules.seeds:
        progress(f"{name} seed {seed}")
        outcomes.append(_one(name, contest, chosen, seed, rules, rules.metric_loss))
    for choice in CATALOG[name].choices if rules.frontier else ():
        progress(f"{name} with {choice}")
        frontier.append(Try(name, choice, _one(name, contest, choice, rules.seeds[0], rules, rules.metric_loss)))
    return Result(name, chosen, tuple(outcomes), tuple(frontier))


def runs(policies: Sequence[str], rules: Rules) -> int:
    """How often `compare` calls ``progress``."""
    total = 0
    for name in policies:
        entry = CATALOG[name]
        search = len(entry.targets) + max(len(entry.tables) - 1, 0)
        total += len(rules.seeds) + (search if search > 1 else 0) + (len(entry.choices) if rules.frontier else 0)
    return total


def _tuned(name: str, setting: Setting, rules: Rules, progress: Progress) -> Choice:
    """The stock table with every target, then every other table with the target found."""
    entry = CATALOG[name]
    stock = entry.choices[: len(entry.targets)]
    others = entry.tables[1:]
    if len(stock) + len(others) == 1:
        return stock[0]

    def outcome(choice: Choice) -> tuple[Choice, Outcome]:
        progress(f"{name} tuning with {choice}")
        return choice, _one(name, setting, choice, rules.seeds[0], rules, 0.0)

    tried = [outcome(choice) for choice in stock]
    found = cheapest(tried, rules.attainment)
    if not others:
        return found
    tried = [item for item in tried if item[0] == found] + [outcome(replace(found, table=table)) for table in others]
    return cheapest(tried, rules.attainment)


def cheapest(tried: Sequence[tuple[Choice, Outcome]], attainment: float) -> Choice:
    """The cheapest that attains enough, or nearly as much as the best where none does. The first of equals."""
    enough = min(attainment, max(outcome.attainment for _, outcome in tried) - NEARLY)
    return min((item for item in tried if item[1].attainment >= enough), key=lambda item: item[1].gpu_hours)[0]


def _one(name: str, setting: Setting, choice: Choice, seed: int, rules: Rules, metric_loss: float) -> Outcome:
    entry = CATALOG[name]
    return run(
        name,
        setting.trace,
        setting.physics,
        setting.bounds,
        table_for(name, entry, choice, setting),
        lambda fleet: entry.make(setting, choice, fleet),
        seed=seed,
        metric_loss=metric_loss,
        metric_delay_seconds=rules.metric_delay_seconds,
        start=_start(setting),
    )


def _start(setting: Setting) -> int:
    """Replicas that serve the first five minutes within the targets with something to spare, the same for everybody."""
    trace = setting.trace
    part = trace.bins[: max(1, int(300 / trace.bin_seconds))]
    rate = sum(item.requests for item in part) / (len(part) * trace.bin_seconds)
    wanted = math.ceil(rate / (START_SHARE * most_requests(trace, setting.physics, list(setting.best))))
    return min(max(wanted, setting.bounds.min), setting.bounds.max)
