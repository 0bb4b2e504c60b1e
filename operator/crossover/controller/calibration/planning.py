"""What a run is to measure, and on which pod."""

from __future__ import annotations

from crossover.api.resources import CalibrationSpec
from crossover.calibrate.contract import SweepPlan
from crossover.controller.calibration.run import Run
from crossover.controller.calibration.subject import Subject
from crossover.decide.variant import GATED, Variant


def asked_first(variant: Variant, plan: SweepPlan, subject: Subject, run: Run) -> Variant:
    """Which pod is needed now. Only a running server tells whether it takes a schedule, which "gated" needs."""
    if variant != GATED or run.capability is not None or subject.capability.schedule_dialect is not None:
        return variant
    return next((item for item in plan.variants if item.draft_tokens), variant)


def plan_of(spec: CalibrationSpec, subject: Subject, run: Run, *, every_length: bool = False) -> SweepPlan:
    left_out = subject.forcing.missing(run.points) if subject.forcing is not None and not every_length else ()
    return SweepPlan(
        variants=tuple(
            variant for variant in subject.variants if variant not in run.lost and variant.draft_tokens not in left_out
        ),
        largest_running_requests=spec.max_running_requests,
        ladder=tuple(sorted(set(spec.running_requests or ()))),
        most_points=spec.max_points,
        limits=run.limits,
    )
