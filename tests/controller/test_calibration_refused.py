"""Scratch pods that turn requests away (429, 503): waited for, and when it does not end, said so and cleared away."""

import json
import urllib.request

import pytest
from tests.controller.manifests import calibration
from tests.controller.test_calibration import FLAGS, Bench, emulated

pytestmark = pytest.mark.xdist_group("controller")


@pytest.fixture
def bench(space):
    return Bench(space)


def end_faults(pod):
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    url = f"http://{pod['status']['podIP']}:{port}/emulator/faults"
    request = urllib.request.Request(
        url, json.dumps({"faults": []}).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def test_fault_503_for_a_while_is_waited_for(bench, space):
    space.plane.apply(emulated(bench.namespace, flags=f"{FLAGS} --fault refuse-503", replicas=1))
    space.plane.apply(calibration(bench.namespace, runningRequests=[4]))
    ended = set()

    def done():
        for pod in bench.pods():
            if pod["metadata"]["name"] not in ended and is_ready(pod):
                # It has answered: from now on it is asked for tokens, and refuses.
                end_faults(pod)
                ended.add(pod["metadata"]["name"])
        return bench.condition("Ready").get("status") == "True"

    space.plane.wait_for(done, "a finished calibration", seconds=120)
    assert len(ended) == 2
    assert {(point["draftTokens"], point["off"]) for point in bench.status()["points"]} == {(3, False), (0, True)}
    bench.wait_pods(0)


def test_fault_429_for_ever_ends_it_with_a_reason_and_no_pod_is_left(bench, space):
    space.plane.apply(emulated(bench.namespace, flags=f"{FLAGS} --fault refuse-429", replicas=1))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2]))
    found = bench.wait("Failed", "True", "Overloaded", seconds=180)
    assert "draft 3 at 2 running requests could not be measured" in found["message"]
    bench.wait_pods(0)
    assert any(line.startswith("draft-3 2 Overloaded") for line in bench.status()["skipped"])
    serving = space.deployment("llama")
    assert (serving["metadata"]["generation"], serving["spec"]["replicas"]) == (1, 1)
