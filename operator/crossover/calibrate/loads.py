"""Which loads have been measured, which can be, and how many requests in flight make a wanted batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import Ask, SweepPlan
from crossover.decide.variant import Variant

SAME = 1.1
"""Loads closer than this factor are one load of a coarse ladder."""
LIMITED = 0.7
"""A batch that falls this far behind the requests in flight, compared with smaller loads, has met a limit."""


class Loads:
    """An index over points, plan and failed asks. Loads are requests in flight unless they are called running."""

    def __init__(self, points: Sequence[CalibrationPoint], plan: SweepPlan, skip: Collection[Ask]) -> None:
        self._plan, self._skip = plan, frozenset(skip)
        self.points: dict[Variant, list[CalibrationPoint]] = {}
        for point in points:
            self.points.setdefault(Variant(point.draft_tokens, point.off), []).append(point)
        for items in self.points.values():
            items.sort(key=lambda point: point.running_requests)
        self._asked = {
            Ask(variant, asked_of(point)) for variant, items in self.points.items() for point in items
        } | self._skip
        self.spent = len(points) + len(self._skip)

    def is_open(self, ask: Ask) -> bool:
        """Not measured and not failed yet."""
        return ask not in self._asked

    def has_near(self, ask: Ask) -> bool:
        """A measured or failed load so near that a coarse ladder needs no other."""
        return any(
            other.variant == ask.variant
            and abs(math.log(other.running_requests / ask.running_requests)) < math.log(SAME)
            for other in self._asked
        )

    def largest(self, variant: Variant) -> int:
        """Most requests in flight that tell anything: the plan's, the server's limit, or where the batch stopped to grow."""
        largest = min(self._plan.largest_running_requests, self._plan.limits.get(variant, 1 << 30))
        shares = [(asked_of(point), point.running_requests / asked_of(point)) for point in self.points.get(variant, ())]
        best = max((share for _, share in shares), default=1.0)
        limited = [asked * share for asked, share in shares if share < LIMITED * best]
        return max(1, min([largest, *(math.ceil(batch / best) for batch in limited)]))

    def running(self, variant: Variant) -> list[float]:
        """Measured batches, ascending."""
        return [point.running_requests for point in self.points.get(variant, ())]

    def ask(self, variant: Variant, running: float) -> Ask:
        """Requests in flight for a wanted batch, within what can be measured."""
        near = sorted(self.points.get(variant, ()), key=lambda point: abs(math.log(point.running_requests / running)))[
            :3
        ]
        share = median(point.running_requests / asked_of(point) for point in near) if near else 1.0
        wanted = round(running / share)
        return Ask(variant, min(max(wanted, self._plan.smallest_running_requests), self.largest(variant)))


def asked_of(point: CalibrationPoint) -> int:
    return point.asked_running_requests or max(1, round(point.running_requests))
