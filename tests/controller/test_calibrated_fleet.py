"""Fleets that go by points given by hand, and calibrations whose operator is not there when they go."""

import pytest
from tests.controller.manifests import autoscaler, calibration, deployment
from tests.controller.test_calibration import Bench, emulated

pytestmark = pytest.mark.xdist_group("controller")

POINTS = [
    {"runningRequests": b, "draftTokens": k, "stepMilliseconds": step, "acceptanceLength": length}
    for b, k, step, length in (
        (1, 3, 9, 2.4),
        (16, 3, 14, 2.4),
        (64, 3, 40, 2.4),
        (1, 1, 8, 1.6),
        (64, 1, 14, 1.6),
        (1, 0, 7, 1),
        (64, 0, 12, 1),
    )
]
"""Draft length 3 is best for a small batch, 1 for a large one."""


@pytest.fixture
def bench(space):
    return Bench(space)


def by_hand(space, points=POINTS):
    made = calibration(space.namespace, targetRef=None, runningRequests=None, engine=None, workload=None, points=points)
    space.plane.apply(made)


def goes_by(space, name="cal"):
    fleet = autoscaler(space.namespace, "llama")
    fleet["spec"]["speculation"]["calibrationRef"] = {"name": name}
    fleet["spec"]["objectives"] = {"timePerOutputTokenMilliseconds": 40}
    del fleet["spec"]["speculation"]["threshold"]
    del fleet["spec"]["replicas"]["targetRunningRequests"]
    return fleet


def test_points_given_by_hand_make_the_schedule_and_the_crossover_of_a_fleet(space, engines):
    script = engines.script(space.namespace, "llama")
    script.running = 10
    space.plane.apply(deployment(space.namespace, "llama"))
    space.plane.apply(goes_by(space))
    space.wait_condition("llama", "Calibrated", "False", "CalibrationNotFound")
    before = space.deployment("llama")["metadata"]["generation"]
    by_hand(space)
    space.wait_condition("llama", "Calibrated", "True", "CalibrationInUse")
    space.wait_condition("llama", "SpeculationManaged", "True", "EngineFollowsSchedule")
    assert space.deployment("llama")["metadata"]["generation"] > before
    (container,) = space.deployment("llama")["spec"]["template"]["spec"]["containers"]
    assert "--speculative-adaptive" in container["args"]
    told = space.status("llama")["crossover"]
    assert "calibration cal" in told["source"]
    assert told["runningRequests"].isdigit()


def test_points_that_make_no_curve_are_named_and_change_nothing(space, engines):
    engines.script(space.namespace, "llama").running = 10
    space.plane.apply(deployment(space.namespace, "llama"))
    by_hand(space, [{**POINTS[0], "acceptanceLength": 9}])
    space.plane.apply(goes_by(space))
    found = space.wait_condition("llama", "Calibrated", "False", "CalibrationUnusable")
    assert "acceptanceLength" in found["message"]
    assert space.deployment("llama")["metadata"]["generation"] == 1
    assert Bench(space).condition("Failed")["status"] == "True"


def test_gated_is_measured_and_its_config_map_goes_with_its_pod(bench, space):
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace, runningRequests=[16], includeGated=True))
    bench.wait("Ready", "True", "Complete", seconds=120)
    assert {(point["draftTokens"], point["off"]) for point in bench.status()["points"]} == {
        (3, False),
        (0, False),
        (0, True),
    }
    bench.wait_pods(0)
    maps = space.plane.get(f"/api/v1/namespaces/{bench.namespace}/configmaps")["items"]
    assert [item["metadata"]["name"] for item in maps] == ["kube-root-ca.crt"]


def test_a_calibration_that_goes_while_no_operator_runs_leaves_no_pod(bench, space, operator):
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace))
    bench.wait_pods(1)
    operator.kill()
    bench.delete()
    bench.wait_pods(0, seconds=40)
    operator.start()
    assert bench.pods() == []
