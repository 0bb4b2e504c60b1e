"""A whole sweep against a hidden truth, without servers: what is asked for is drawn from the step model with noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import Done, SweepPlan
from crossover.calibrate.sweep import next_ask
from crossover.decide.crossings import Crossover, crossovers
from crossover.decide.profile import fit_profile
from crossover.decide.step_model import PRESETS, UNVALIDATED, StepModel, acceptance_length
from crossover.decide.variant import GATED, OFF, Variant

CONTEXT = 512.0


def flat(variant: Variant, running: float) -> float:
    return 1.0


@dataclass(frozen=True)
class Scene:
    """A truth, and what is asked of the sweep."""

    model: StepModel
    variants: tuple[Variant, ...]
    acceptance: float = 0.67
    largest: int = 256
    factor: Callable[[Variant, float], float] = flat
    tree: tuple[int, int, float] | None = None
    """(steps, verified tokens, acceptance length) of the drafting variant."""

    def length(self, variant: Variant) -> float:
        if not variant.draft_tokens:
            return 1.0
        return self.tree[2] if self.tree else acceptance_length(self.acceptance, variant.draft_tokens)

    def seconds(self, variant: Variant, running: float) -> float:
        drafts = variant.draft_tokens > 0
        steps, verified = (self.tree[0], self.tree[1]) if self.tree and drafts else (variant.draft_tokens, None)
        time = self.model.step_seconds(running, steps, running * CONTEXT, off=variant.off, verified_tokens=verified)
        return time * self.factor(variant, running)

    def crossings(self, variant: Variant, zero: Variant) -> list[float]:
        """By brute force over a fine grid."""
        found, running, before = [], 1.0, None
        while running <= self.largest:
            pays = self.length(variant) * self.seconds(zero, running) > self.seconds(variant, running)
            if before is not None and pays != before:
                found.append(running)
            before, running = pays, running * 1.0005
        return found


@dataclass(frozen=True)
class Outcome:
    points: list[CalibrationPoint]
    crossovers: tuple[Crossover, ...]
    done: Done
    switches: int
    """How often the variant changed from one point to the next."""


def sweep(
    scene: Scene, *, noise: float, seed: int = 1, one_server: bool = False, plan: SweepPlan | None = None
) -> Outcome:
    draw = random.Random(seed)
    points: list[CalibrationPoint] = []
    plan = plan or SweepPlan(scene.variants, largest_running_requests=scene.largest)
    up: Variant | None = None
    switches = 0
    while True:
        ask = next_ask(points, plan, available={up} if one_server and up is not None else None)
        if isinstance(ask, Done):
            return Outcome(points, crossovers(fit_profile(points)), ask, switches)
        switches += up is not None and ask.variant != up
        up = ask.variant
        points.append(measured(scene, ask.variant, ask.running_requests, noise, draw))


def measured(scene: Scene, variant: Variant, running: int, noise: float, draw: random.Random) -> CalibrationPoint:
    """One point as a measurement gives it: the step time within its error, the acceptance length a little off too."""
    seconds = scene.seconds(variant, running) * math.exp(draw.gauss(0, noise))
    length = scene.length(variant)
    if variant.draft_tokens:
        length = min(variant.draft_tokens + 1.0, max(1.0, length * math.exp(draw.gauss(0, noise / 3))))
    return CalibrationPoint(
        running,
        variant.draft_tokens,
        variant.off,
        CONTEXT,
        seconds,
        acceptance_length=length,
        relative_error=noise or None,
        asked_running_requests=running,
    )


def errors(scene: Scene, outcome: Outcome) -> list[float]:
    """Relative error of every crossing. Raises AssertionError when their number or direction is wrong."""
    found: list[float] = []
    for crossover in outcome.crossovers:
        truth = scene.crossings(crossover.variant, crossover.against)
        got = [crossing.running_requests for crossing in crossover.crossings]
        assert len(got) == len(truth), f"{crossover.variant.shown}: found {got}, truth {truth}"
        found += [abs(b / a - 1) for a, b in zip(truth, got, strict=True)]
    return found


A100, H100 = PRESETS["70b-a100-tp4"], PRESETS["8b-h100"]
MOE = UNVALIDATED["57b-moe-h100-tp4"]
V1, V3, V7 = Variant(1), Variant(3), Variant(7)


def _cliff(above: float, factor: float, *, off: bool = False) -> Callable[[Variant, float], float]:
    return lambda variant, running: factor if variant.off == off and running > above else 1.0


SCENES: dict[str, Scene] = {
    "chain of 3, 70B on A100": Scene(A100, (OFF, V3)),
    "chain of 3, 8B on H100": Scene(H100, (OFF, V3)),
    "chain of 7, 8B on H100": Scene(H100, (OFF, V7)),
    "chain of 1, 70B on A100": Scene(A100, (OFF, V1)),
    "tree of 32 tokens": Scene(H100, (OFF, Variant(31)), tree=(5, 32, 3.6)),
    "cliff of the drafting server": Scene(H100, (OFF, V3), factor=_cliff(40, 2.0)),
    "small cliff": Scene(H100, (OFF, V3), factor=_cliff(100, 1.3)),
    "twice: mixture of experts, chain of 7": Scene(MOE, (OFF, V7), 0.4),
    "twice: mixture of experts, better draft": Scene(MOE, (OFF, V7), 0.5),
    "gated and off": Scene(PRESETS["70b-h100-tp4"], (OFF, GATED, V3)),
    "five variants": Scene(A100, (OFF, GATED, V1, V3, V7)),
}
HARD: dict[str, Scene] = {
    "three times: off jumps": Scene(A100, (OFF, V3), factor=_cliff(110, 1.35, off=True)),
    "stairs of 64 tokens": Scene(replace(H100, padding_tokens=64), (OFF, V7)),
    "twice: mixture of experts, chain of 3": Scene(MOE, (OFF, V3), 0.4),
}
NONE: dict[str, tuple[Scene, bool]] = {
    "never pays": (Scene(H100, (OFF, V3), 0.2), False),
    "always pays": (Scene(H100, (OFF, V1), 0.9, largest=64), True),
}
