"""A plant, or a profile, from a CSV of calibration points, as `crossover fit` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crossover.api.points import CalibrationPoint
from crossover.decide import tables
from crossover.decide.profile import Profile
from crossover.decide.step_model import acceptance_length
from crossover.decide.variant import Variant

KV_CAPACITY_TOKENS = 400_000.0
PREFILL_SECONDS_PER_TOKEN = 2.0e-5
"""Where a table of decode steps says nothing of prefill: 50,000 tokens a second."""


def read_points(path: Path) -> list[CalibrationPoint]:
    """Raises ValueError naming the file, the line, the column and the fix, OSError."""
    try:
        return tables.read_points(tables.rows_of(path.read_text(encoding="utf-8")))
    except tables.TableError as error:
        raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True)
class TablePlant:
    """Step times between and beyond the points as `decide.profile` reads them."""

    profile: Profile
    acceptance: float
    kv_capacity_tokens: float = KV_CAPACITY_TOKENS

    def step_seconds(self, running: float, draft_tokens: int, kv_tokens: float, off: bool) -> float:
        return self.profile.step_seconds(self._variant(draft_tokens, off), running, kv_tokens / max(running, 1.0))

    def acceptance_length(self, draft_tokens: int) -> float:
        variant = self._variant(draft_tokens, False)
        curve = self.profile.curves[variant]
        if curve.acceptance_known and variant.draft_tokens == draft_tokens:
            return curve.acceptance_length
        return acceptance_length(self.acceptance, draft_tokens)

    def prefill_seconds(self, tokens: float) -> float:
        return tokens * PREFILL_SECONDS_PER_TOKEN

    def _variant(self, draft_tokens: int, off: bool) -> Variant:
        """The measured variant that is closest to what is asked for."""
        return min(
            self.profile.curves,
            key=lambda item: (abs(item.draft_tokens - draft_tokens), item.off != off, item.draft_tokens),
        )
