"""autoscaling/v2 `behavior`: stabilization windows and scaling policies, as the HPA applies them.

Recommendations are kept as runs: each entry holds until the next one begins. A window that is not covered by the
record (after a restart of the operator) counts as if the current replica count had been recommended all along, so a
restart can delay a shrink by one window and can never cause one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from crossover.api.decision import Change, Memory, Recommendation
from crossover.api.intent import PolicyType, ReplicaIntent, ScalingRules, SelectPolicy

MAX_RUNS = 256
ROUNDING = 1e-9
"""10 pods plus 10 % are 11, not the 12 that binary fractions make of it."""


def remember(
    runs: tuple[Recommendation, ...], at_seconds: float, replicas: int, keep_seconds: float
) -> tuple[Recommendation, ...]:
    """Append a recommendation; drop runs that ended before the longest window began."""
    if not runs or runs[-1].replicas != replicas:
        runs = (*runs, Recommendation(at_seconds, replicas))
    first = 0
    while first + 1 < len(runs) and runs[first + 1].at_seconds <= at_seconds - keep_seconds:
        first += 1
    return runs[max(first, len(runs) - MAX_RUNS) :]


def stabilize(runs: tuple[Recommendation, ...], now_seconds: float, current: int, replicas: ReplicaIntent) -> int:
    """The recommendation that all recommendations in the window allow (HPA: `stabilizeRecommendation...`).

    Up by the smallest of the up-window, down by the largest of the down-window; in between nothing moves.
    """
    newest = runs[-1].replicas
    up = min(_in_window(runs, now_seconds, replicas.scale_up.stabilization_window_seconds, current), default=newest)
    down = max(_in_window(runs, now_seconds, replicas.scale_down.stabilization_window_seconds, current), default=newest)
    if current < up:
        return up
    return down if current > down else current


def _in_window(runs: tuple[Recommendation, ...], now_seconds: float, window: float, current: int) -> list[int]:
    begin = now_seconds - window
    values = [
        run.replicas
        for position, run in enumerate(runs)
        if position + 1 == len(runs) or runs[position + 1].at_seconds > begin
    ]
    if runs[0].at_seconds > begin:
        values.append(current)
    return values


def bounded(memory: Memory, now_seconds: float, current: int, wanted: int, replicas: ReplicaIntent) -> int:
    """``wanted`` as far as the policies let it go from ``current`` now. Never the other direction."""
    if wanted > current:
        return min(wanted, max(current, _scale_up_limit(memory, now_seconds, current, replicas.scale_up)))
    if wanted < current:
        return max(wanted, min(current, _scale_down_limit(memory, now_seconds, current, replicas.scale_down)))
    return current


def _moved(changes: Iterable[Change], since_seconds: float) -> int:
    """Replicas added less replicas removed since then."""
    return sum(
        (change.to_value or 0) - (change.from_value or 0)
        for change in changes
        if change.kind == "replicas" and change.at_seconds > since_seconds
    )


def _scale_up_limit(memory: Memory, now_seconds: float, current: int, rules: ScalingRules) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return current
    limits = []
    for policy in rules.policies:
        start = current - _moved(memory.changes, now_seconds - policy.period_seconds)
        if policy.type is PolicyType.PODS:
            limits.append(start + policy.value)
        else:
            limits.append(math.ceil(start * (100 + policy.value) / 100 - ROUNDING))
    return _selected(limits, rules.select_policy, max, min, current)


def _scale_down_limit(memory: Memory, now_seconds: float, current: int, rules: ScalingRules) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return current
    limits = []
    for policy in rules.policies:
        start = current - _moved(memory.changes, now_seconds - policy.period_seconds)
        if policy.type is PolicyType.PODS:
            limits.append(start - policy.value)
        else:
            limits.append(int(start * (100 - policy.value) / 100 + ROUNDING))
    return _selected(limits, rules.select_policy, min, max, current)


def _selected(
    limits: list[int],
    select: SelectPolicy,
    most_change: Callable[[list[int]], int],
    least_change: Callable[[list[int]], int],
    current: int,
) -> int:
    if not limits:
        return current
    return most_change(limits) if select is SelectPolicy.MAX else least_change(limits)
