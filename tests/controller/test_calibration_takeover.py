"""Two operators, as a Deployment of two replicas has: the leader is killed in mid-sweep, the other one finishes."""

import pytest
from tests.api_server.operator import Operator
from tests.api_server.rig import CALIBRATION
from tests.controller.manifests import calibration
from tests.controller.test_calibration import Bench, emulated

pytestmark = pytest.mark.xdist_group("controller")


@pytest.fixture
def standby(rig, operator, tmp_path):
    second = Operator(rig, tmp_path, CROSSOVER_IDENTITY="standby", **CALIBRATION).start()
    yield second
    second.stop()
    if not operator.alive:
        operator.start()


def holder(space):
    path = "/apis/coordination.k8s.io/v1/namespaces/crossover-system/leases/crossover"
    return space.plane.get(path)["spec"].get("holderIdentity") or ""


def test_the_other_operator_takes_over_a_calibration_whose_leader_was_killed(space, operator, standby):
    bench = Bench(space)
    space.plane.apply(emulated(bench.namespace))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2, 4, 8, 16]))
    space.plane.wait_for(lambda: bench.status().get("points"), "a first point", seconds=60)
    before, (pod,) = bench.status()["points"], bench.pods()
    assert holder(space) != "standby"
    operator.kill()
    most, seen = 0, {}

    def done():
        nonlocal most
        pods = bench.pods()
        most = max(most, len(pods))
        seen.update({item["metadata"]["uid"]: item["metadata"]["labels"]["crossover.dev/variant"] for item in pods})
        return bench.condition("Ready").get("status") == "True"

    space.plane.wait_for(done, "a calibration finished by the other operator", seconds=150)
    assert holder(space) == "standby"
    assert standby.alive
    after = bench.status()["points"]
    assert after[: len(before)] == before, "nothing is measured twice"
    assert len(after) == 8
    assert most == 1, "one scratch pod at a time, whoever leads"
    assert seen[pod["metadata"]["uid"]] == "draft-3"
    assert sorted(seen.values()) == ["draft-3", "off"], "the pod of the dead leader was used on"
    bench.wait_pods(0)
