"""What a calibration under way remembers between ticks. Points, skips and the start are in status; the rest is a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crossover.api.points import CalibrationPoint
from crossover.api.resources import CalibrationSpec
from crossover.calibrate.contract import Ask, Described, Measured
from crossover.calibrate.environment import Environment
from crossover.controller.calibration.environment import from_status
from crossover.controller.calibration.store import points_of
from crossover.decide.variant import GATED, OFF, Variant

MOST_LINES = 16


@dataclass(slots=True)
class Run:
    """One calibration from its start to its end, over any number of operator processes."""

    generation: int
    started_at_seconds: float
    finished_at_seconds: float | None = None
    points: list[CalibrationPoint] = field(default_factory=list)
    skipped: dict[Ask, str] = field(default_factory=dict)
    """Loads that could not be measured, and why."""
    lost: dict[Variant, str] = field(default_factory=dict)
    """Variants whose pods cannot be had."""
    crashes: dict[Variant, int] = field(default_factory=dict)
    tries: dict[Ask, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    described: dict[str, Described] = field(default_factory=dict)
    """By pod uid."""
    environment: Environment | None = None

    def note(self, measured: Measured, ask: Ask) -> None:
        """Keep what can be used; never ask again for what cannot."""
        seen = Variant(measured.point.draft_tokens, measured.point.off)
        if measured.is_usable:
            self.points.append(measured.point)
        if not measured.is_usable or seen != ask.variant:
            self.skipped[ask] = measured.caveats[0].code if measured.caveats else f"ran as {seen.shown}"
        for caveat in measured.caveats:
            line = f"{ask.variant.shown} at {ask.running_requests}: {caveat.message}"
            self.caveats = [*self.caveats, line][-MOST_LINES:]

    def to_status(self) -> dict[str, Any]:
        """`status.skipped`: ``"draft-3 64 NoProgress"``."""
        lines = [f"{ask.variant.name} {ask.running_requests} {why}"[:512] for ask, why in self.skipped.items()]
        return {"skipped": lines[-256:]} if lines else {}


def restore(spec: CalibrationSpec, status: Mapping[str, Any], generation: int, now_seconds: float) -> Run:
    """From status, where an earlier process left off; afresh for a spec that asks for something else."""
    started = status.get("startedAt")
    if not started:
        return Run(generation, now_seconds)
    finished = status.get("finishedAt")
    same = status.get("observedGeneration") == generation
    run = Run(
        generation,
        datetime.fromisoformat(started).timestamp() if same or not finished else now_seconds,
        datetime.fromisoformat(finished).timestamp() if finished and same else None,
        points=list(points_of(spec.model_copy(update={"points": None}), status)),
        environment=from_status(status["environment"]) if status.get("environment") else None,
        caveats=list(status.get("caveats") or []),
    )
    for line in status.get("skipped") or []:
        name, _, rest = line.partition(" ")
        running, _, why = rest.partition(" ")
        variant = variant_of(name)
        if variant is not None and running.isdigit() and same:
            run.skipped[Ask(variant, int(running))] = why
    return run


def variant_of(name: str) -> Variant | None:
    """The way back from `Variant.name`."""
    if name == "off":
        return OFF
    if name == "gated":
        return GATED
    digits = name.removeprefix("draft-")
    return Variant(int(digits)) if digits.isdigit() else None
