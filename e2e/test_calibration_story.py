"""A user measures where speculation stops paying and lets a fleet go by it: nothing typed by hand, nothing left behind.

The truth is the emulator's: what it makes of a draft and how long its steps take is on no metric that Crossover reads.
"""

import json
import re

import pytest
from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet
from tests.api_server.operator import Fleets, Operator, install_chart

from crossover.decide.step_model import PRESETS, acceptance_length

NAMESPACE = "chat"
MODEL, ACCEPTANCE, DRAFT = "8b-a100", 0.4, 3
FLAGS = f"--model {MODEL} --acceptance {ACCEPTANCE} --startup-seconds 2 --drain-poll-seconds 0.5 --step-noise 0.02"
WORKLOAD = {"inputTokens": 16, "outputTokens": 128}
CONTEXT = WORKLOAD["inputTokens"] + WORKLOAD["outputTokens"] / 2

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "llama", "namespace": NAMESPACE},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "llama"}},
        "template": {
            "metadata": {"labels": {"app": "llama"}},
            "spec": {
                "terminationGracePeriodSeconds": 10,
                "containers": [
                    {
                        "name": "server",
                        "image": "crossover.dev/emulated-sglang:0.5.23",
                        "command": ["python3", "-m", "sglang.launch_server"],
                        "args": [
                            "--model-path=/models/m",
                            "--host=0.0.0.0",
                            "--port=30000",
                            "--enable-metrics",
                            "--max-running-requests=64",
                            "--speculative-algorithm=EAGLE",
                            "--speculative-draft-model-path=/models/eagle",
                            f"--speculative-num-steps={DRAFT}",
                            "--speculative-eagle-topk=1",
                            f"--speculative-num-draft-tokens={DRAFT + 1}",
                        ],
                        "env": [{"name": "EMULATE_FLAGS", "value": FLAGS}],
                        "ports": [{"containerPort": 30000}],
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 30000}, "periodSeconds": 1},
                    }
                ],
            },
        },
    },
}
CALIBRATION = {
    "apiVersion": "crossover.dev/v1alpha1",
    "kind": "Calibration",
    "metadata": {"name": "llama-a100", "namespace": NAMESPACE},
    "spec": {
        "targetRef": {"kind": "Deployment", "name": "llama"},
        "workload": WORKLOAD,
        "includeOff": False,
        "includeGated": True,  # the fleet will follow a schedule, so its zero is the one inside the engine
        "maxRunningRequests": 64,
        "maxPoints": 12,
        "timeoutMinutes": 10,
    },
}
PATH = f"/apis/crossover.dev/v1alpha1/namespaces/{NAMESPACE}/calibrations/llama-a100"
AUTOSCALER = {
    "apiVersion": "crossover.dev/v1alpha1",
    "kind": "ModelAutoscaler",
    "metadata": {"name": "llama", "namespace": NAMESPACE},
    "spec": {
        "scaleTargetRef": {"kind": "Deployment", "name": "llama"},
        "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 10},
        "objectives": {"timePerOutputTokenMilliseconds": 60},
        "replicas": {"min": 1, "max": 3},
        "speculation": {"calibrationRef": {"name": "llama-a100"}, "restart": {"drainSeconds": 5}},
    },
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    settings = {
        "CROSSOVER_CALIBRATION_LEAST_SECONDS": "2",
        "CROSSOVER_CALIBRATION_MOST_SECONDS": "20",
        "CROSSOVER_CALIBRATION_RELATIVE_ERROR": "0.01",
    }
    with ControlPlane() as plane, Kubelet(plane):
        install_chart(plane)
        plane.create_namespace(NAMESPACE)
        operator = Operator(plane, tmp_path_factory.mktemp("operator"), **settings).start()
        try:
            yield Fleets(plane, NAMESPACE), operator
        finally:
            print(operator.log[-4000:])
            operator.stop()


def everything(space):
    return set(space.plane.kubectl("-n", NAMESPACE, "get", "pods,configmaps", "-o", "name").split())


def told(space, kind):
    conditions = space.plane.get(PATH).get("status", {}).get("conditions", [])
    return next((item["status"] for item in conditions if item["type"] == kind), None)


def hidden_crossover():
    """Where draft and no draft inside the speculating engine ("gated") give the same output rate."""
    model, running = PRESETS[MODEL], 1.0
    length = acceptance_length(ACCEPTANCE, DRAFT)
    while length * model.step_seconds(running, 0, running * CONTEXT) > model.step_seconds(
        running, DRAFT, running * CONTEXT
    ):
        running *= 1.002
    return running


def test_a_fleet_goes_by_what_was_measured_on_its_own_template(stage):
    space, _ = stage
    space.plane.apply(DEPLOYMENT)
    space.plane.wait_for(lambda: space.deployment("llama").get("status", {}).get("readyReplicas") == 1, "a ready pod")
    serving = space.plane.kubectl("-n", NAMESPACE, "get", "pods", "-l", "app=llama", "-o", "name")
    space.plane.apply(CALIBRATION)
    space.plane.wait_for(lambda: told(space, "Ready") == "True" or told(space, "Failed") == "True", "it", seconds=400)

    shown = space.plane.kubectl("-n", NAMESPACE, "get", "cal")
    status = space.plane.get(PATH)["status"]
    print(shown, status["verdict"], *status["crossovers"], *status["capacity"], status["schedule"], sep="\n")
    truth = hidden_crossover()
    found, low, high = (float(number) for number in re.findall(r"\d+", status["crossover"]))
    print(f"crossover {found:.0f} ({low:.0f}-{high:.0f}), hidden truth {truth:.1f}, {len(status['points'])} points")
    # The emulated steps run in real time: on a busy machine each takes a little longer than its truth says.
    assert 0.75 * low <= truth <= 1.25 * high
    kept = {*serving.split(), "configmap/kube-root-ca.crt"}
    space.plane.wait_for(lambda: everything(space) == kept, "nothing left behind", seconds=30)

    space.plane.apply(AUTOSCALER)
    space.wait_condition("llama", "Calibrated", "True", "CalibrationInUse")
    space.wait_condition("llama", "SpeculationManaged", "True", "EngineFollowsSchedule")
    volumes = space.deployment("llama")["spec"]["template"]["spec"]["volumes"]
    (name,) = [item["configMap"]["name"] for item in volumes if "configMap" in item]
    (content,) = space.plane.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")["data"].values()
    zero_from = min(int(key) for key, value in json.loads(content).items() if value["candidate_steps"] == [0])
    print(f"engine schedule: no draft from {zero_from} running requests on")
    assert 0.7 * truth < zero_from < 1.5 * truth, content
    assert "calibration llama-a100" in space.status("llama")["crossover"]["source"]
    assert space.plane.kubectl("-n", NAMESPACE, "get", "events").count("Complete") == 1
