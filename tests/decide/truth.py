"""Calibration points drawn from a known truth, and what that truth says about crossovers."""

from __future__ import annotations

import math
import random

from crossover.api.points import CalibrationPoint
from crossover.decide.step_model import PRESETS, StepModel, acceptance_length
from crossover.decide.variant import Variant

VARIANTS = (Variant(0, off=True), Variant(0), Variant(1), Variant(3), Variant(7))
LADDER = (1, 8, 32, 64, 128, 192)


def points(
    model: StepModel = PRESETS["70b-a100-tp4"],
    *,
    variants=VARIANTS,
    ladder=LADDER,
    context=512.0,
    acceptance=0.67,
    noise=0.0,
    seed=1,
    factor=None,
) -> list[CalibrationPoint]:
    """``factor(variant, running)`` bends the truth (a cliff, a second crossing)."""
    draw = random.Random(seed)
    result = []
    for variant in variants:
        for running in ladder:
            seconds = model.step_seconds(running, variant.draft_tokens, running * context, off=variant.off)
            seconds *= math.exp(draw.gauss(0, noise)) * (factor(variant, running) if factor else 1.0)
            result.append(
                CalibrationPoint(
                    running,
                    variant.draft_tokens,
                    variant.off,
                    context,
                    seconds,
                    acceptance_length=acceptance_length(acceptance, variant.draft_tokens),
                    relative_error=noise or None,
                )
            )
    return result


def gain(model: StepModel, draft_tokens: int, running: float, context: float, acceptance: float = 0.67) -> float:
    """S(K) / S(off) - 1 by the step model itself."""
    off = model.step_seconds(running, 0, running * context, off=True)
    return (
        acceptance_length(acceptance, draft_tokens) * off / model.step_seconds(running, draft_tokens, running * context)
        - 1
    )


def crossing(model: StepModel, draft_tokens: int, context: float, acceptance: float = 0.67) -> float | None:
    """By brute force: the first load at which the gain is gone."""
    running = 1.0
    while running < 1024:
        if gain(model, draft_tokens, running, context, acceptance) < 0:
            return running
        running *= 1.002
    return None
