"""Acceptance: from one draft length to another, and from the calibration's workload to the live one.

AL is the number of tokens a request gets per step, the bonus token included. With independent positions of acceptance a
it is (1 - a^(K+1)) / (1 - a) (arXiv:2211.17192); with measured marginals p_i it is 1 + sum p_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossover.decide.step_model import acceptance_length

LOWEST, HIGHEST = 1e-4, 1 - 1e-4


def equivalent_rate(length: float, draft_tokens: int) -> float:
    """The single acceptance rate a with (1 - a^(K+1)) / (1 - a) = ``length``, by bisection."""
    low, high = LOWEST, HIGHEST
    if draft_tokens <= 0 or length <= acceptance_length(low, draft_tokens):
        return low
    if length >= acceptance_length(high, draft_tokens):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if acceptance_length(middle, draft_tokens) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def shift_between(calibrated: float, live: float, draft_tokens: int) -> float:
    """How far the live workload is from the calibrated one, as a difference of log-odds of the equivalent rate: one
    number that carries over to other draft lengths. 0 where there is no draft."""
    if draft_tokens <= 0:
        return 0.0
    return _log_odds(equivalent_rate(live, draft_tokens)) - _log_odds(equivalent_rate(calibrated, draft_tokens))


def shifted(calibrated: float, draft_tokens: int, shift: float) -> float:
    """The calibrated AL of this draft length under the live workload."""
    if draft_tokens <= 0 or shift == 0.0:
        return calibrated
    odds = _log_odds(equivalent_rate(calibrated, draft_tokens)) + shift
    return acceptance_length(1 / (1 + math.exp(-odds)), draft_tokens)


def truncated(length: float, by_position: Sequence[float], draft_tokens: int) -> float | None:
    """AL of a shorter draft from per-position marginals of a longer one, scaled to the live ``length`` of the longer;
    None when the marginals do not reach that far."""
    total = sum(by_position)
    if draft_tokens > len(by_position) or total <= 0:
        return None
    return 1 + (length - 1) * sum(by_position[:draft_tokens]) / total


def _log_odds(rate: float) -> float:
    rate = min(HIGHEST, max(LOWEST, rate))
    return math.log(rate / (1 - rate))
