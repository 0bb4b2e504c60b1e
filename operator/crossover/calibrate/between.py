"""Draft lengths that need not be measured, because those on both sides tell enough of them.

With forced acceptance only the step time is unknown. Between two measured draft lengths it is taken as the fitted shape of
step times (`crossover.decide.shape_of_steps`), corrected by what the measured curves on both sides stray from that shape.
How good that is on this hardware is measured, not assumed: the middle one of the measured lengths is predicted from the
others in the same way, and the error found there is the error told of what is interpolated. Where it is too large,
everything is measured after all (docs/design/0074).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from crossover.api.points import CalibrationPoint
from crossover.calibrate.forced import ForcedAcceptance, ignored
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.decide.variant import Variant

FEWEST_LENGTHS = 4
"""Both ends and the middle are measured in any case."""
FEWEST_POINTS = 3
"""Points of the middle length, before anything is said of how well it is predicted."""
MOST_ERROR = 0.04
"""Root mean square of the relative error at the middle length. A crossover moves by about as much."""
LEAST_ERROR = 0.01
"""What is interpolated is never told to be better than this."""


@dataclass(frozen=True, slots=True)
class Forcing:
    """Which draft lengths are wanted, and the acceptance forced on all of them."""

    draft_tokens: tuple[int, ...]
    acceptance: ForcedAcceptance

    def measured(self, points: Sequence[CalibrationPoint]) -> tuple[int, ...]:
        """The draft lengths to measure, given what was measured so far."""
        few = ends_and_middle(self.draft_tokens)
        there = {point.draft_tokens for point in points if point.draft_tokens}
        if not there <= set(few) or ignored(self.acceptance, points) or any(_is_tree(point) for point in points):
            return self.draft_tokens
        error = error_at_middle(points, few)
        return few if error is None or error <= MOST_ERROR else self.draft_tokens

    def missing(self, points: Sequence[CalibrationPoint]) -> tuple[int, ...]:
        """The draft lengths that need not be measured."""
        few = self.measured(points)
        return tuple(draft for draft in self.draft_tokens if draft not in few)

    def interpolated(self, points: Sequence[CalibrationPoint]) -> tuple[CalibrationPoint, ...]:
        """Points of the draft lengths that were not measured, at the loads of their neighbours; empty where that cannot
        be said, or not well enough."""
        missing = self.missing(points)
        error = error_at_middle(points, self.measured(points)) if missing else None
        if error is None:
            return ()
        profile = fit_profile(points)
        return tuple(point for draft in missing for point in self._made(profile, points, draft, error))

    def tells_too_little(self, points: Sequence[CalibrationPoint]) -> bool:
        """Of the few lengths nothing more can be measured, and the others do not follow from them: some of their loads
        failed. Then the others are measured as well."""
        return bool(self.missing(points)) and not self.interpolated(points)

    def sentence(self, points: Sequence[CalibrationPoint]) -> str:
        """What was not measured, and how well it is known; empty = everything was."""
        missing = self.missing(points)
        if not missing:
            return ""
        few, names = self.measured(points), ", ".join(map(str, missing))
        error = error_at_middle(points, few)
        if error is None:
            return (
                f"draft {names}: neither measured nor interpolated, too few of {', '.join(map(str, few))} are measured"
            )
        return (
            f"draft {names}: interpolated between {few[0]}, {few[1]} and {few[2]}; in the same way the step times of draft "
            f"{few[1]} come out of the others within {error:.1%}"
        )

    def _made(
        self, profile: Profile, points: Sequence[CalibrationPoint], draft: int, error: float
    ) -> list[CalibrationPoint]:
        low, high = _neighbours(draft, [one.draft_tokens for one in profile.measured if one.draft_tokens])
        loads = sorted({point.running_requests for point in points if point.draft_tokens in (low, high)})
        spans = [profile.curves[Variant(one)].measured for one in (low, high)]
        within = [load for load in loads if all(first <= load <= last for first, last in spans)]
        # They share one error: as many as they are, they weigh like one point that has it.
        each = max(error, LEAST_ERROR) * math.sqrt(max(1, len(within)))
        return [
            CalibrationPoint(
                running_requests=load,
                draft_tokens=draft,
                context_tokens=profile.context_tokens or None,
                step_seconds=step_seconds(profile, draft, load),
                acceptance_length=self.acceptance.length(draft),
                relative_error=each,
                interpolated=True,
            )
            for load in within
        ]


def is_of_forcing(line: str) -> bool:
    """Whether it is a `Forcing.sentence`."""
    return any(mark in line for mark in (": interpolated between ", ": neither measured nor interpolated"))


def ends_and_middle(draft_tokens: Sequence[int]) -> tuple[int, ...]:
    """Of four or more: the shortest, the one nearest to the middle, the longest. ``draft_tokens`` ascends."""
    if len(draft_tokens) < FEWEST_LENGTHS:
        return tuple(draft_tokens)
    first, last = draft_tokens[0], draft_tokens[-1]
    middle = min(draft_tokens[1:-1], key=lambda draft: (abs(draft - (first + last) / 2), draft))
    return first, middle, last


def error_at_middle(points: Sequence[CalibrationPoint], measured: Sequence[int]) -> float | None:
    """Root mean square of the relative error of the step time with which the other points predict those of the middle
    one of three draft lengths; None = not enough points to say."""
    if len(measured) != FEWEST_LENGTHS - 1:
        return None
    here = [point for point in points if point.draft_tokens == measured[1]]
    rest = [point for point in points if point.draft_tokens != measured[1]]
    try:
        profile = fit_profile(rest)
    except ProfileError:
        return None
    if profile.shape is None or not {Variant(measured[0]), Variant(measured[2])} <= set(profile.measured):
        return None
    errors = [
        step_seconds(profile, measured[1], point.running_requests, point.context_tokens) / seconds - 1
        for point in here
        if (seconds := _seconds(point)) is not None
    ]
    return math.sqrt(fmean(error * error for error in errors)) if len(errors) >= FEWEST_POINTS else None


def step_seconds(profile: Profile, draft: int, running: float, context_tokens: float | None = None) -> float:
    """Between the measured draft lengths on both sides; ``profile.shape`` is known. The logarithm of curve / shape is
    interpolated linearly in the draft length."""
    assert profile.shape is not None
    context = profile.context_tokens if context_tokens is None else context_tokens
    low, high = _neighbours(draft, [one.draft_tokens for one in profile.measured if one.draft_tokens])

    def shape(length: int) -> float:
        assert profile.shape is not None
        return profile.shape.seconds(running, length + 1, context * running, length)

    def strays(length: int) -> float:
        return math.log(profile.step_seconds(Variant(length), running, context) / shape(length))

    share = 0.0 if high == low else (draft - low) / (high - low)
    return shape(draft) * math.exp((1 - share) * strays(low) + share * strays(high))


def _seconds(point: CalibrationPoint) -> float | None:
    """Step time as measured, else t = b AL / S."""
    if point.step_seconds is not None or not point.acceptance_length or not point.output_tokens_per_second:
        return point.step_seconds
    return point.running_requests * point.acceptance_length / point.output_tokens_per_second


def _neighbours(draft: int, measured: Sequence[int]) -> tuple[int, int]:
    """The measured draft lengths on both sides; ``draft`` lies within them."""
    return max(one for one in measured if one <= draft), min(one for one in measured if one >= draft)


def _is_tree(point: CalibrationPoint) -> bool:
    return point.verified_tokens not in (None, 1) and point.verified_tokens != point.draft_tokens + 1
