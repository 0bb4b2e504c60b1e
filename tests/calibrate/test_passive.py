"""Passive recalibration: what a live fleet visits, and what it proves."""

import math
import random
from dataclasses import replace

import pytest

from crossover.api.fleet import (
    EngineType,
    FleetSnapshot,
    PodObservation,
    PodPhase,
    PodReading,
    SchedulerReading,
    SpeculationSettings,
)
from crossover.calibrate.passive import STEADY_SECONDS, PassiveState, from_json, observe, refine, to_json
from crossover.decide.crossings import crossovers
from crossover.decide.profile import fit_profile
from crossover.decide.step_model import PRESETS, acceptance_length
from crossover.decide.variant import OFF, Variant
from tests.decide.truth import points

MODEL = PRESETS["70b-a100-tp4"]
V3 = Variant(3)
CALIBRATED = points(MODEL, variants=(OFF, V3))
TICK, START = 5.0, 1_000.0


def pod(number, at, running, variant, *, factor=1.0, draw=None, age=1_000.0):
    """One pod that serves ``running`` requests of 512 tokens as the model does, times ``factor``."""
    length = acceptance_length(0.67, variant.draft_tokens)
    seconds = factor * MODEL.step_seconds(running, variant.draft_tokens, running * 512, off=variant.off)
    noise = math.exp(draw.gauss(0, 0.02)) if draw else 1.0
    scheduler = SchedulerReading(
        "0", running_requests=running, draft_tokens=float(variant.draft_tokens), kv_tokens=running * 512
    )
    return PodObservation(
        f"pod-{number}",
        f"uid-{number}",
        PodPhase.READY,
        "127.0.0.1",
        "hash",
        at - age,
        ready_at_seconds=at - age,
        reading=PodReading(EngineType.SGLANG, "0.5.23", "/metrics", at, (scheduler,)),
        reading_age_seconds=1.0,
        output_tokens_per_second=noise * running * length / seconds,
        acceptance_length=length,
    )


def snapshot(at, pods, *, enabled=True, rollout=False):
    settings = SpeculationSettings(EngineType.SGLANG, enabled)
    return FleetSnapshot(at, len(pods), tuple(pods), 30.0, rollout, settings)


def lived(loads, *, variant=V3, factor=1.0, seconds=1_800, state=None, wander=0.0, rollout=False, age=1_000.0):
    """A fleet at these loads for a while."""
    draw = random.Random(1)
    state = state or PassiveState()
    at = START
    while at < START + seconds:
        pods = [
            pod(number, at, load * math.exp(draw.gauss(0, wander)), variant, factor=factor, draw=draw, age=age)
            for number, load in enumerate(loads)
        ]
        state = observe(state, snapshot(at, pods, enabled=not variant.off, rollout=rollout))
        at += TICK
    return state


def test_steady_moments_become_points_of_the_truth():
    state = lived((20, 40, 80))
    refined = refine(CALIBRATED, state)
    assert refined.drifts == ()
    live = refined.points[len(CALIBRATED) :]
    assert len(live) == 3
    for point in live:
        truth = MODEL.step_seconds(point.running_requests, 3, point.running_requests * 512)
        assert point.step_seconds == pytest.approx(truth, rel=0.02)
        assert point.context_tokens == pytest.approx(512, rel=0.01)
        assert point.relative_error >= 0.02


def test_points_of_production_refine_a_coarse_calibration():
    """Calibrated at two loads far from the crossing; the fleet lives near it with and without drafts."""
    coarse = points(MODEL, variants=(OFF, V3), ladder=(1, 16, 192), noise=0.03, seed=3)
    state = lived((70, 90, 110), variant=OFF, state=lived((70, 90, 110)))
    truth = 87.2
    before = crossovers(fit_profile(coarse))[0].crossings[0].running_requests
    after = crossovers(fit_profile(refine(coarse, state).points))[0].crossings[0].running_requests
    assert abs(after / truth - 1) < abs(before / truth - 1)
    assert after == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize("factor", [0.75, 1.3])
def test_drift_is_seen_named_and_moves_the_whole_curve(factor):
    refined = refine(CALIBRATED, lived((20, 60), factor=factor))
    (drift,) = refined.drifts
    assert drift.variant == V3
    assert drift.factor == pytest.approx(factor, rel=0.03)
    moved = {(p.draft_tokens, p.running_requests): p for p in refined.points[: len(CALIBRATED)]}
    for point in CALIBRATED:
        now = moved[point.draft_tokens, point.running_requests]
        expected = factor if point.draft_tokens else 1.0
        assert now.step_seconds == pytest.approx(point.step_seconds * expected, rel=0.03)


def test_another_workload_is_no_drift():
    """Acceptance fell: steps take as long as before."""

    def served(at):
        healthy = pod(1, at, 40, V3)
        return replace(
            healthy, acceptance_length=1.6, output_tokens_per_second=healthy.output_tokens_per_second * 1.6 / 2.42
        )

    state = PassiveState()
    for tick in range(200):
        at = START + TICK * tick
        state = observe(state, snapshot(at, [served(at)]))
    assert refine(CALIBRATED, state).drifts == ()


def test_a_load_that_moves_teaches_nothing():
    assert lived((40,), wander=0.3, seconds=600).cells == ()


@pytest.mark.parametrize("why", ["rollout", "young", "unknown draft", "one request"])
def test_moments_that_do_not_count(why):
    if why == "rollout":
        assert lived((40,), rollout=True).cells == ()
    elif why == "young":
        assert lived((40,), age=30.0).cells == ()
    elif why == "one request":
        assert lived((1,)).cells == ()
    else:
        state = PassiveState()
        for tick in range(60):
            at = START + TICK * tick
            seen = pod(1, at, 40, V3)
            scheduler = replace(seen.reading.schedulers[0], draft_tokens=None)
            seen = replace(seen, reading=replace(seen.reading, schedulers=(scheduler,)))
            state = observe(state, snapshot(at, [seen]))
        assert state.cells == ()


def test_one_moment_needs_longer_than_the_window_of_the_rates():
    assert lived((40,), seconds=STEADY_SECONDS - TICK).cells == ()
    assert lived((40,), seconds=STEADY_SECONDS + 2 * TICK).cells


def test_few_moments_prove_nothing():
    state = lived((40,), factor=1.5, seconds=3 * STEADY_SECONDS)
    assert refine(CALIBRATED, state).drifts == ()


def test_the_state_is_bounded_and_survives_a_restart():
    state = PassiveState()
    for load in range(2, 250):
        state = lived((float(load),), seconds=60, state=state)
    assert len(state.cells) <= 60
    again = from_json(to_json(state))
    assert refine(CALIBRATED, again).drifts == refine(CALIBRATED, state).drifts
    assert len(again.cells) == len(state.cells)
