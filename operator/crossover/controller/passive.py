"""What a live fleet teaches about its calibration, between ticks and over restarts.

The curves are fitted anew at most once in ten minutes: decisions must not follow the noise of each scrape. What was seen is
kept in status and written along with whatever else is told, so that a steady fleet writes nothing (docs/design/0079).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossover.api.decision import DecisionReason, Notice
from crossover.api.fleet import FleetSnapshot
from crossover.api.points import CalibrationPoint
from crossover.calibrate.passive import Drift, PassiveState, from_json, observe, refine, to_json
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.report import texts

REFIT_SECONDS = 600.0


@dataclass(slots=True)
class Passive:
    """Of one fleet. ``basis``: digest of the points it is about; with others it begins afresh."""

    basis: str = ""
    state: PassiveState = field(default_factory=PassiveState)
    profile: Profile | None = None
    """Refined; None = nothing was learned yet."""
    drifts: tuple[Drift, ...] = ()
    fitted_at_seconds: float | None = None
    _points: Sequence[CalibrationPoint] = ()

    def look(
        self, points: Sequence[CalibrationPoint], measured: Profile, snapshot: FleetSnapshot
    ) -> tuple[Profile, Notice | None]:
        """(the profile to go by, what production has left)."""
        if points is not self._points:
            self._begin(points)
        self.state = observe(self.state, snapshot)
        if self._is_due(snapshot.at_seconds):
            self._refit(points, measured, snapshot.at_seconds)
        return self.profile or measured, self._notice()

    def _begin(self, points: Sequence[CalibrationPoint]) -> None:
        """Points that are another object may still be the same ones: after a restart they always are."""
        basis = digest(points)
        if basis != self.basis:
            self.basis, self.state, self.profile, self.drifts = basis, PassiveState(), None, ()
        self._points, self.fitted_at_seconds = points, None

    def _is_due(self, now_seconds: float) -> bool:
        if not self.state.cells:
            return False
        return self.fitted_at_seconds is None or now_seconds - self.fitted_at_seconds >= REFIT_SECONDS

    def _refit(self, points: Sequence[CalibrationPoint], measured: Profile, now_seconds: float) -> None:
        """Live points that make no curve leave the measured one in force."""
        self.fitted_at_seconds = now_seconds
        try:
            refined = refine(points, self.state)
            if len(refined.points) == len(points):
                self.profile, self.drifts = None, ()
                return
            self.profile = fit_profile(
                refined.points,
                limits=measured.limits,
                output_tokens_per_request=measured.output_tokens_per_request,
                source=measured.source,
            )
            self.drifts = refined.drifts
        except ProfileError:
            self.profile, self.drifts = None, ()

    def _notice(self) -> Notice | None:
        if not self.drifts:
            return None
        curves = "; ".join(f"{item.variant.shown} takes {item.factor:.2f} times as long" for item in self.drifts[:3])
        return Notice(DecisionReason.CALIBRATION_DRIFT, texts.calibration_left(curves))

    def to_status(self) -> dict[str, Any]:
        """`status.learned`; empty = nothing yet."""
        if not self.state.cells:
            return {}
        cells = [json.dumps(cell, separators=(",", ":")) for cell in to_json(self.state)]
        return {"basis": self.basis, "cells": cells}


def restore(status: Mapping[str, Any]) -> Passive:
    """From `status.learned`; afresh for what cannot be read."""
    learned = status.get("learned") or {}
    try:
        state = from_json([json.loads(line) for line in learned.get("cells") or []])
    except (ValueError, KeyError, TypeError):
        return Passive()
    return Passive(str(learned.get("basis", "")), state)


def digest(points: Sequence[CalibrationPoint]) -> str:
    return hashlib.sha256(repr(tuple(points)).encode()).hexdigest()[:16]
