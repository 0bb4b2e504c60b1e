"""The live cap on a real API server: decided, set, told, put back after a restart of a pod, gone with its owner."""

import pytest
from tests.api_server.scripted import PORT
from tests.controller.manifests import autoscaler, deployment

pytestmark = pytest.mark.xdist_group("controller")


def test_a_missed_tpot_target_caps_the_running_batch_and_the_cap_goes_with_its_owner(space, engines):
    """Scripted pods serve 20 tokens/s a request: TPOT is 50 ms. A target of 40 ms at 60 running asks for 48."""
    script = engines.script(space.namespace, "llama")
    script.running = 60
    space.plane.apply(deployment(space.namespace, "llama"))
    spec = {
        "engine": {"type": "SGLang", "port": PORT, "liveCap": "Auto"},
        "objectives": {"timePerOutputTokenMilliseconds": 40},
    }
    space.plane.apply(autoscaler(space.namespace, "llama", spec=spec, speculation=False, min=2, max=2))
    space.wait("llama", lambda s: s.get("fleet", {}).get("runningRequestsCap") == 48, "a cap", seconds=90)
    space.plane.wait_for(lambda: sorted(script.caps.values()) == [48, 48], "the cap on both pods")
    (told,) = [event for event in space.events("llama") if event["reason"] == "RunningCapChanged"]
    assert "none -> 48" in told["note"]
    assert "50 ms at 60 running, target 40 ms" in told["note"]

    gone = next(iter(script.caps))
    pods = space.plane.get(f"/api/v1/namespaces/{space.namespace}/pods")["items"]
    name = next(pod["metadata"]["name"] for pod in pods if pod["status"].get("podIP") == gone)
    space.plane.kubectl("-n", space.namespace, "delete", "pod", name, "--wait=false")
    space.plane.wait_for(
        lambda: list(script.caps.values()).count(48) >= 2 and len(script.caps) >= 2, "put on the new pod"
    )

    space.plane.kubectl("-n", space.namespace, "delete", "modelautoscaler", "llama")
    space.plane.wait_for(lambda: list(script.caps.values()).count(128) >= 2, "the cap taken away")
