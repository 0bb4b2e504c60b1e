"""What a calibration remembers: over restarts, over a change of leader, over a change of spec. No cluster needed."""

from types import SimpleNamespace

import pytest

from crossover.api.points import CalibrationPoint
from crossover.api.resources import CalibrationSpec
from crossover.api.resources.calibration import PointSpec
from crossover.calibrate.contract import Ask
from crossover.calibrate.environment import Environment
from crossover.controller.calibration.environment import asked_digest, to_status
from crossover.controller.calibration.run import restore
from crossover.controller.calibration.store import Calibrations
from crossover.controller.fleets import Fleets
from crossover.controller.operator import Operator
from crossover.controller.settings import OperatorSettings
from crossover.decide.variant import OFF

KEY = ("team", "cal")
POINT = CalibrationPoint(8.0, 3, step_seconds=0.02, acceptance_length=2.4)
NOW, STARTED = 2_000_000_000.0, "2033-05-18T02:00:00Z"


def spec(**more):
    return CalibrationSpec.model_validate({"targetRef": {"name": "llama"}, **more})


def status(wanted, *, generation=1, **more):
    return {
        "observedGeneration": generation,
        "startedAt": STARTED,
        "points": [PointSpec.of_point(POINT).model_dump(by_alias=True, exclude_none=True)],
        "skipped": ["off 64 NoProgress"],
        "environment": {
            **to_status(Environment(engine="SGLang", image="engine:1")),
            "workload": asked_digest(wanted),
        },
        **more,
    }


def body(*, generation=1, uid="1", **status):
    return {
        "metadata": {"namespace": KEY[0], "name": KEY[1], "uid": uid, "generation": generation},
        "spec": {"targetRef": {"name": "llama"}},
        "status": status,
    }


def test_a_restart_goes_on_with_points_and_what_was_skipped():
    run = restore(spec(), status(spec()), 1, NOW)
    assert run.points == [POINT]
    assert run.skipped == {Ask(OFF, 64): "NoProgress"}
    assert run.started_at_seconds < NOW


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": {"inputTokens": 8192}},
        {"workload": {"traceRef": {"name": "trace", "key": "a.csv"}}},
        {"targetRef": {"name": "another"}},
        {"engine": {"container": "another"}},
        {"model": "another"},
    ],
)
def test_points_of_another_workload_are_not_kept_when_the_spec_asks_for_one(changed):
    run = restore(spec(**changed), status(spec()), 2, NOW)
    assert run.points == []
    assert run.started_at_seconds == NOW


@pytest.mark.parametrize("changed", [{"maxPoints": 30}, {"draftTokens": [1, 3]}, {"timeoutMinutes": 200}])
def test_points_stay_when_the_spec_only_asks_for_more(changed):
    assert restore(spec(**changed), status(spec()), 2, NOW).points == [POINT]


def test_a_suspension_does_not_use_up_the_time():
    """A new spec has its whole time again: suspended for a day, 120 minutes would be over at once."""
    assert restore(spec(suspend=False), status(spec(), generation=2), 3, NOW).started_at_seconds == NOW


@pytest.mark.parametrize(
    "broken",
    [
        {"points": [{"runningRequests": 8, "draftTokens": 3}]},
        {"points": [{"runningRequests": "many"}]},
        {"startedAt": "yesterday"},
        {"finishedAt": "soon"},
    ],
)
def test_a_status_edited_by_hand_into_nonsense_is_measured_anew(broken):
    run = restore(spec(), status(spec()) | broken, 1, NOW)
    assert run.points == []
    assert run.finished_at_seconds is None


def test_a_successor_goes_on_from_what_the_leader_wrote_last():
    """A second operator started before the first point; the leader measured, then died."""
    kept = Calibrations()
    kept.put(body(), leading=False)
    kept.put(body(**status(spec())), leading=False)
    known = kept.get(KEY)
    assert restore(spec(), known.status, 1, NOW).points == [POINT]
    known.status = written = status(spec(), progress="2 points")
    kept.put(body(**status(spec(), progress="1 point")), leading=True)
    assert known.status is written, "the watch is behind what we wrote ourselves"


def test_a_successor_knows_the_changes_that_the_leader_made_to_a_fleet():
    """Otherwise the dwell time would start from nothing, and the story in status would be lost."""
    fleets = Fleets()
    plain = body()
    plain["spec"] = {"scaleTargetRef": {"name": "llama"}}
    key = fleets.put(plain, leading=False)
    assert not fleets.get(key).memory.correction
    later = {**plain, "status": {"memory": {"corrections": [{"curve": "draft-3", "factor": "1.30"}]}}}
    fleets.put(later, leading=False)
    assert fleets.get(key).memory.correction == {"draft-3": 1.3}
    fleet = fleets.get(key)
    fleets.put(plain, leading=True)
    assert fleets.get(key) is fleet
    assert fleet.memory.correction == {"draft-3": 1.3}


def test_the_operator_follows_the_leaders_status_only_while_it_does_not_lead():
    operator = Operator(OperatorSettings())
    operator._ticker = operator._calibration_ticker = SimpleNamespace(want=lambda key: None)
    operator._in_election = SimpleNamespace(is_leader=False)
    operator._calibration_seen(body())
    operator._calibration_seen(body(progress="1 point"))
    operator._in_election = SimpleNamespace(is_leader=True)
    operator._calibration_seen(body(progress="an echo of our own"))
    assert operator._calibrations.get(KEY).status == {"progress": "1 point"}
