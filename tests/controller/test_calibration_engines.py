"""Calibrations of engines that tell nothing but their version, and of pods that are ready before their server is."""

import json

import pytest
from tests.controller.manifests import calibration
from tests.controller.test_calibration import FLAGS, Bench, emulated
from tests.emulate.serving import make, serving

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.calibrate.contract import Server
from crossover.calibrate.environment import Environment
from crossover.calibrate.probe import capability_of, open_http
from crossover.controller.calibration.run import Run
from crossover.decide.variant import OFF, Variant
from crossover.engines import ENGINES

live = pytest.mark.xdist_group("controller")
CONFIG = {"method": "eagle3", "model": "/m/draft", "num_speculative_tokens": 3}
VLLM = ["vllm", "serve", "m", f"--speculative-config={json.dumps(CONFIG)}"]


@pytest.fixture
def bench(space):
    return Bench(space)


async def test_what_a_server_may_follow_is_known_from_its_version_and_its_template():
    container = {"name": "server", "command": VLLM[:1], "args": VLLM[1:]}
    async with serving(make("vllm", VLLM, {}, server_version="0.28.0")) as client, open_http() as http:
        server = Server(str(client.base).rstrip("/"), EngineType.VLLM)
        alone = await capability_of(server, ENGINES[EngineType.VLLM], http)
        told = await capability_of(server, ENGINES[EngineType.VLLM], http, (container, {}))
    assert (alone.speculative_algorithm, alone.schedule_dialect) == (None, None)
    assert told.version == "0.28.0"
    assert told.schedule_dialect is ScheduleDialect.VLLM_BATCH_SIZE_RANGES
    assert told.max_draft_tokens == 3


def test_the_next_process_knows_the_version_that_the_last_one_was_told():
    """Which may not take what a draft pod would be started with."""
    run = Run(1, 0.0, "asked", environment=Environment("VLLM", "0.19.0"))
    assert run.told_for(Variant(3)) == Capability(EngineType.VLLM, "0.19.0", None)
    assert run.told_for(OFF) is None, "nothing to ask of it"


@live
def test_vllm_is_measured_gated_and_gets_its_schedule_rendered(bench, space):
    made = emulated(bench.namespace, flags=FLAGS.replace("--time-scale 4 ", ""))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container |= {"image": "crossover.dev/emulated-vllm:0.28.0", "command": VLLM[:1]}
    container["args"] = [*VLLM[1:], "--port=30000", "--max-num-seqs=64"]
    container["readinessProbe"]["httpGet"]["path"] = "/health"
    space.plane.apply(made)
    engine = {"type": "VLLM", "port": 30000}
    wanted = {
        "workload": {"inputTokens": 32, "outputTokens": 160},
        "includeGated": True,
        "runningRequests": [6, 10, 16],
    }
    space.plane.apply(calibration(bench.namespace, engine=engine, **wanted))
    bench.wait("Ready", "True", "Complete", seconds=150)
    status = bench.status()
    assert not any(line.startswith("gated all") for line in status.get("skipped", [])), status
    assert (0, False) in {(point["draftTokens"], point["off"]) for point in status["points"]}, status
    assert json.loads(status["rendered"])[0][2] == 3, "batch sizes from, to, draft length"
    bench.wait_pods(0)


@live
def test_without_a_readiness_probe_a_pod_is_waited_for_until_it_serves(bench, space):
    made = emulated(bench.namespace, flags=FLAGS.replace("--startup-seconds 0.2", "--startup-seconds 16"))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    del container["readinessProbe"]
    space.plane.apply(made)
    space.plane.apply(calibration(bench.namespace, runningRequests=[4]))
    bench.wait("Ready", "True", "Complete", seconds=120)
    assert "skipped" not in bench.status()
    bench.wait_pods(0)
