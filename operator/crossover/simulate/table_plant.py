"""A plant, or a profile, from a CSV of calibration points.

Columns: running_requests, draft_tokens, and step_ms or tokens_per_second; optional context_tokens, acceptance_length, off
(true where the process was started without speculation).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from crossover.api.points import CalibrationPoint
from crossover.decide.profile import Profile
from crossover.decide.step_model import acceptance_length
from crossover.decide.variant import Variant

KV_CAPACITY_TOKENS = 400_000.0
PREFILL_SECONDS_PER_TOKEN = 2.0e-5
"""Where a table of decode steps says nothing of prefill: 50,000 tokens a second."""


def read_points(path: Path) -> list[CalibrationPoint]:
    """Raises ValueError naming the line and column, OSError."""
    points = []
    with path.open(newline="") as handle:
        for number, row in enumerate(csv.DictReader(handle), 2):
            try:
                points.append(_point(row))
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{path} line {number}: {error}: see `crossover simulate --help` for the columns"
                ) from None
    if not points:
        raise ValueError(f"{path}: no points")
    return points


def _point(row: dict[str, str]) -> CalibrationPoint:
    step, rate = row.get("step_ms"), row.get("tokens_per_second")
    return CalibrationPoint(
        running_requests=float(row["running_requests"]),
        draft_tokens=int(row["draft_tokens"]),
        off=(row.get("off") or "").strip().lower() in ("1", "true", "yes"),
        context_tokens=_number(row.get("context_tokens")),
        step_seconds=float(step) / 1000 if step else None,
        output_tokens_per_second=float(rate) if rate else None,
        acceptance_length=_number(row.get("acceptance_length")),
    )


def _number(text: str | None) -> float | None:
    return float(text) if text else None


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
