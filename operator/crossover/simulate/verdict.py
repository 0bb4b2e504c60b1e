"""GPU-hours at equal or better attainment: what is left of a comparison when nobody may pay with missed targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crossover.simulate.catalog import CLAIRVOYANT, OWN, PEERS
from crossover.simulate.compare import Comparison, Try
from crossover.simulate.run import Outcome

AUTOSCALERS = ("keda+table", "hpa+table")
"""The usual answer: an HPA, direct or through KEDA, in front of engines that follow their own table."""
BOUNDS = ("static", "static+table")
"""A fixed count found in hindsight knows the peak: a bound, not an autoscaler."""


@dataclass(frozen=True, slots=True)
class Rival:
    """The cheapest of a group that attains at least as much as ours."""

    group: str
    best: Try | None
    """None = nobody does."""
    saving: float | None
    """1 - our GPU-hours / theirs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    ours: Outcome
    rivals: tuple[Rival, ...]


def verdicts(comparison: Comparison) -> tuple[Verdict, ...]:
    """For each of our policies, first seed, as its search chose it; the rivals with every choice where a frontier was
    asked for (so with hindsight), else as their search chose them."""
    seed = comparison.outcomes[0].seed
    tries = list(comparison.frontier) or [
        Try(item.policy, comparison.chosen[item.policy], item) for item in comparison.outcomes if item.seed == seed
    ]
    mine = [item for item in comparison.outcomes if item.policy in OWN and item.seed == seed]
    return tuple(Verdict(item, _rivals(item, tries)) for item in mine)


def _rivals(ours: Outcome, tries: Sequence[Try]) -> tuple[Rival, ...]:
    peers = [item for item in tries if item.policy.removesuffix("+table") in PEERS]
    groups = {
        "HPA or KEDA with the engine's table": [item for item in peers if item.policy in AUTOSCALERS],
        "any autoscaler": [item for item in peers if item.policy not in BOUNDS],
        "best fixed count in hindsight": [item for item in peers if item.policy in BOUNDS],
        CLAIRVOYANT: [item for item in tries if item.policy == CLAIRVOYANT],
    }
    return tuple(_rival(name, group, ours) for name, group in groups.items() if group)


def _rival(name: str, group: Sequence[Try], ours: Outcome) -> Rival:
    enough = [item for item in group if item.outcome.attainment >= ours.attainment]
    best = min(enough, key=lambda item: item.outcome.gpu_hours, default=None)
    return Rival(name, best, None if best is None else 1 - ours.gpu_hours / best.outcome.gpu_hours)


def sentences(verdict: Verdict) -> list[str]:
    """One line a rival, for the terminal and the report."""
    ours = verdict.ours
    lines = [f"{ours.policy}: {ours.gpu_hours:.2f} GPU-hours at {ours.attainment:.1%} within both targets."]
    for item in verdict.rivals:
        if item.best is None:
            lines.append(f"  {item.group}: none attains as much.")
            continue
        theirs = item.best.outcome
        what = f"{item.best.policy} {item.best.choice}".strip()
        change = f"{abs(item.saving or 0.0):.0%} {'fewer' if (item.saving or 0.0) >= 0 else 'more'}"
        lines.append(
            f"  {item.group}: {what} needs {theirs.gpu_hours:.2f} at {theirs.attainment:.1%}; ours are {change} GPU-hours."
        )
    return lines
