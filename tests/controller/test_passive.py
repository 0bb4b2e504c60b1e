"""What production teaches reaches the decision and the user, survives a restart, and costs no write of its own."""

import pytest
from tests.calibrate.test_passive import CALIBRATED, MODEL, START, TICK, V3, pod, snapshot
from tests.report.builders import decision, facts

from crossover.api.decision import DecisionReason
from crossover.controller.passive import REFIT_SECONDS, Passive, restore
from crossover.decide.profile import fit_profile
from crossover.report.conditions import compute
from crossover.report.events import of_tick
from crossover.report.status import build, worth_writing

MEASURED = fit_profile(CALIBRATED)
LOADS = (8.0, 24.0, 60.0)


def live(passive, *, factor=1.0, seconds=1_800, start=START):
    """A fleet of three pods at these loads; what the last look gave, and every profile that was in force."""
    at, seen = start, []
    while at < start + seconds:
        pods = [pod(number, at, running, V3, factor=factor) for number, running in enumerate(LOADS)]
        profile, notice = passive.look(CALIBRATED, MEASURED, snapshot(at, pods))
        if not seen or seen[-1] is not profile:
            seen.append(profile)
        at += TICK
    return profile, notice, seen


def test_a_fleet_that_does_as_measured_has_not_drifted_and_keeps_its_curves():
    profile, notice, _ = live(Passive())
    assert notice is None
    for running in LOADS:
        assert profile.step_seconds(V3, running, 512) == pytest.approx(
            MODEL.step_seconds(running, 3, running * 512), rel=0.03
        )


def test_slower_hardware_is_named_and_decisions_go_by_what_it_does():
    profile, notice, _ = live(Passive(), factor=1.3)
    assert notice is not None
    assert notice.reason is DecisionReason.CALIBRATION_DRIFT
    assert "draft 3 takes 1.3" in notice.message
    slow = 1.3 * MODEL.step_seconds(24.0, 3, 24 * 512)
    assert profile.step_seconds(V3, 24.0, 512) == pytest.approx(slow, rel=0.05)


def test_curves_are_not_fitted_anew_at_every_look():
    _, _, seen = live(Passive(), factor=1.3, seconds=3_600)
    assert len(seen) <= 1 + 3_600 / REFIT_SECONDS


def test_a_restart_knows_at_its_first_look_what_was_learned():
    before = Passive()
    learned, _, _ = live(before, factor=1.3)
    after = restore({"learned": before.to_status()})
    profile, notice, _ = live(after, factor=1.3, seconds=TICK, start=START + 1_800)
    assert notice is not None
    assert profile.step_seconds(V3, 24.0, 512) == pytest.approx(learned.step_seconds(V3, 24.0, 512), rel=0.02)


def test_another_calibration_begins_afresh():
    passive = Passive()
    live(passive, factor=1.3)
    profile, notice = passive.look(CALIBRATED[:-1], MEASURED, snapshot(START + 9_000, []))
    assert (profile, notice) == (MEASURED, None)
    assert passive.to_status() == {}


@pytest.mark.parametrize("cells", [["{}"], ["no json"], ['{"draftTokens":3}'], "text", [3]])
def test_a_status_that_somebody_else_wrote_is_not_believed(cells):
    assert restore({"learned": {"basis": "x", "cells": cells}}).state.cells == ()


def test_drift_is_a_condition_and_one_event_and_what_was_learned_is_written_only_along():
    passive = Passive()
    _, notice, _ = live(passive, factor=1.3)
    quiet = facts(calibrated=True, calibration="cal", decision=decision())
    first = build(quiet, {})
    more = {"calibrated": True, "calibration": "cal", "decision": decision(), "drift": notice}
    told = facts(**more, learned=passive.to_status(), previous=first)
    second = build(told, {})
    assert worth_writing(first, second, 5.0)
    (condition,) = [item for item in compute(told, []) if item["type"] == "Calibrated"]
    assert (condition["status"], condition["reason"]) == ("True", "CalibrationDrift")
    assert [event.reason for event in of_tick(told, second["conditions"])] == ["CalibrationDrift"]

    live(passive, factor=1.3, seconds=600, start=START + 1_800)
    later = facts(**more, learned=passive.to_status(), previous=second)
    third = build(later, {})
    assert third["learned"] != second["learned"]
    assert not worth_writing(second, third, 3_600.0)
    assert of_tick(later, third["conditions"]) == []
