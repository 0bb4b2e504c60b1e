"""Acceptance that a server is told to have, whatever its draft is worth (docs/design/0074)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import Caveat, CaveatCode
from crossover.decide.acceptance import equivalent_rate
from crossover.decide.step_model import acceptance_length

NEAR = 0.05
"""How far a measured acceptance length may be from the forced one: the last step of an answer is cut short."""


@dataclass(frozen=True, slots=True)
class ForcedAcceptance:
    """Acceptance by position, or one rate for all of them."""

    by_position: tuple[float, ...] = ()
    """Share of steps in which the draft token of position 1, 2, ... is accepted; never rising."""
    rate: float | None = None
    """Instead: share of tokens accepted where all before them were."""

    @classmethod
    def of_length(cls, length: float, draft_tokens: int) -> ForcedAcceptance:
        """From the tokens per step at one draft length (arXiv:2211.17192, equation 1)."""
        return cls(rate=equivalent_rate(length, draft_tokens))

    @property
    def longest(self) -> int | None:
        """The longest draft that it tells something of; None = any."""
        return len(self.by_position) if self.rate is None else None

    def length(self, draft_tokens: int) -> float:
        """Tokens per request and step, bonus token included. ``draft_tokens``: at most `longest`."""
        if self.rate is not None:
            return acceptance_length(self.rate, draft_tokens)
        return 1 + sum(self.by_position[:draft_tokens])

    def is_kept(self, point: CalibrationPoint) -> bool:
        """Whether the server did as it was told, as far as it tells."""
        if not point.draft_tokens or point.acceptance_length is None:
            return True
        return abs(point.acceptance_length / self.length(point.draft_tokens) - 1) <= NEAR


def not_forced(forced: ForcedAcceptance, point: CalibrationPoint) -> Caveat | None:
    """For a point of a server that went by its own draft all the same."""
    if forced.is_kept(point):
        return None
    return Caveat(
        CaveatCode.NOT_FORCED,
        f"{point.acceptance_length:.2f} tokens per step instead of the forced {forced.length(point.draft_tokens):.2f}: this "
        "server or this kind of draft cannot be forced, so every draft length is measured with its own acceptance",
    )


def ignored(forced: ForcedAcceptance, points: Iterable[CalibrationPoint]) -> Sequence[CalibrationPoint]:
    """Points of servers that went by their own draft all the same."""
    return [point for point in points if not forced.is_kept(point)]
