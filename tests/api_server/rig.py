"""A whole rig for controller tests: control plane, kubelet with scripted engines, chart, operator process.

One control plane for all tests of a worker; each test has its own namespace.
"""

import pytest

from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet
from tests.api_server.operator import Fleets, Operator, install_chart
from tests.api_server.scripted import ScriptedEngines

CALIBRATION = {
    "CROSSOVER_CALIBRATION_LEAST_SECONDS": "0.5",
    "CROSSOVER_CALIBRATION_MOST_SECONDS": "6",
    "CROSSOVER_CALIBRATION_RELATIVE_ERROR": "0.03",
}
"""Points that are good enough for a test, in a second or two."""


@pytest.fixture(scope="session")
def engines():
    made = ScriptedEngines()
    yield made
    made.close()


def has_no_node(pod):
    """Pods that ask for the node label ``nowhere`` are never scheduled."""
    return "nowhere" in (pod["spec"].get("nodeSelector") or {})


@pytest.fixture(scope="session")
def rig(engines):
    with ControlPlane(audit=True) as plane, Kubelet(plane, launcher=engines, pending=has_no_node) as kubelet:
        plane.kubelet = kubelet
        install_chart(plane)
        yield plane


@pytest.fixture(scope="session")
def operator(rig, tmp_path_factory):
    """The shared operator; tests that stop or kill one start their own on a control plane of their own."""
    started = Operator(
        rig,
        tmp_path_factory.mktemp("operator"),
        CROSSOVER_LOG_LEVEL="DEBUG",
        **CALIBRATION,
    ).start()
    yield started
    started.stop()


@pytest.fixture
def space(rig, operator, request):
    name = "t-" + request.node.name.split("[")[0].replace("test_", "").replace("_", "-")[:40].strip("-")
    name += f"-{abs(hash(request.node.name)) % 10000}"
    rig.create_namespace(name)
    assert operator.alive, operator.log[-3000:]
    yield Fleets(rig, name)
    print(operator.log[-6000:])  # shown by pytest for a failed test only
