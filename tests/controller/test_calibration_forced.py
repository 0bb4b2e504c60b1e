"""Forced acceptance in the cluster: the emulated server has a worse draft than the one that is forced."""

import pytest
from tests.controller.manifests import calibration
from tests.controller.test_calibration import FLAGS, Bench, emulated

pytestmark = pytest.mark.xdist_group("controller")

FORCED = {"acceptanceLength": 3.0, "draftTokens": 5}


@pytest.fixture
def bench(space):
    return Bench(space)


def test_scratch_pods_accept_as_told_and_the_serving_pods_as_they_do(bench, space):
    space.plane.apply(emulated(bench.namespace, flags=f"{FLAGS} --acceptance 0.3", replicas=1))
    wanted = calibration(bench.namespace, draftTokens=[1, 2, 3, 5], forcedAcceptance=FORCED, runningRequests=[2, 8, 32])
    space.plane.apply(wanted)
    seen = {}

    def done():
        for pod in bench.pods():
            env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
            seen[pod["metadata"]["labels"]["crossover.dev/variant"]] = env.get("SGLANG_SIMULATE_ACC_LEN")
        return bench.condition("Ready").get("status") == "True"

    space.plane.wait_for(done, "a finished calibration", seconds=180)
    assert seen["off"] is None
    assert float(seen["draft-5"]) == pytest.approx(3.0, rel=1e-3)
    status = bench.status()
    lengths = {p["draftTokens"]: p["acceptanceLength"] for p in status["points"] if not p["off"]}
    assert lengths[5] == pytest.approx(3.0, rel=0.05), status
    assert set(lengths) == {1, 2, 3, 5}
    assert {p["draftTokens"] for p in status["points"] if p.get("interpolated")} <= {2}
    bench.wait_pods(0)
    serving = space.deployment("llama")
    assert "SIMULATE" not in str(serving["spec"]["template"])
    assert serving["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"byPosition": [0.5, 0.7]}, "must not rise"),
        ({"byPosition": [0.5], "acceptanceLength": 2, "draftTokens": 3}, "give byPosition, or"),
        ({"byPosition": [0.5], "acceptanceLength": 1.4}, "give byPosition, or"),
        ({"acceptanceLength": 2}, "give byPosition, or"),
        ({"acceptanceLength": 5, "draftTokens": 3}, "bonus token counts"),
        ({"byPosition": [1, 0.5, 0]}, None),
    ],
)
def test_the_api_server_refuses_what_makes_no_sense(bench, space, spec, message):
    wanted = calibration(bench.namespace, forcedAcceptance=spec, suspend=True)
    if message is None:
        space.plane.apply(wanted)
        return
    with pytest.raises(Exception, match=message):
        space.plane.apply(wanted)
