"""Triton's generate extension as the load's route, against an emulated Triton over real HTTP and against single answers."""

import asyncio

import httpx
import pytest
import yaml

from crossover.api.fleet import EngineType
from crossover.calibrate import wire
from crossover.calibrate.contract import CaveatCode, FailureReason, MeasureFailure, Precision, Route, Server
from crossover.calibrate.measure import describe, measure
from crossover.calibrate.probe import open_http, route_of
from crossover.calibrate.workload import Workload
from crossover.decide.variant import OFF, Variant
from crossover.engines import ENGINES
from tests.emulate.serving import make, serving

TRT = EngineType.TENSORRT_LLM
LOAD = Workload.fixed(64, 160)
QUICK = Precision(0.03, 1.0, 6.0)
EAGLE = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/m/draft"}


def triton(root, *, llm_api, draft, **options):
    document = {"max_batch_size": 64, **({"speculative_config": EAGLE} if draft else {})}
    (root / "llm.yaml").write_text(yaml.safe_dump(document))
    environ = {"LLM_CONFIG_PATH": "/llm.yaml"} if llm_api else {}
    more = {"time_scale": 2.0, "root": root, "acceptance": (0.6,), "acceptance_spread": 0.0, **options}
    return make("trtllm", ["tritonserver", "--model-repository=/m"], environ, **more)


@pytest.mark.parametrize(("llm_api", "draft"), [(True, 3), (True, 0), (False, 0)])
async def test_both_backends_are_measured_by_their_own_route(tmp_path, llm_api, draft):
    emulated = triton(tmp_path, llm_api=llm_api, draft=draft)
    async with serving(emulated) as client, open_http() as http:
        base = str(client.base).rstrip("/")
        server = Server(base, TRT, "tensorrt_llm" if llm_api else "ensemble", Variant(draft) if draft else OFF)
        described = await describe(server, http=http)
        assert described.server.route is Route.TRITON
        found = await measure(described, 4, LOAD, http=http, precision=QUICK)
        hidden = emulated.cores[0].counters
    assert found.point.running_requests == pytest.approx(4, rel=0.05)
    truth = 1 + hidden.accepted_tokens / hidden.request_steps if draft else 1.0
    assert found.point.acceptance_length == pytest.approx(truth, rel=0.1)
    assert found.point.step_seconds is not None
    assert found.time_to_first_token.mean is not None
    assert CaveatCode.SHORT_ANSWERS not in {caveat.code for caveat in found.caveats}


async def test_the_name_of_the_model_has_to_be_told_and_to_be_right(tmp_path):
    async with serving(triton(tmp_path, llm_api=True, draft=0)) as client, open_http() as http:
        base = str(client.base).rstrip("/")
        for model, says in ((None, "--model ensemble"), ("ensemble", "no model 'ensemble' that is ready")):
            with pytest.raises(MeasureFailure, match=says) as caught:
                await describe(Server(base, TRT, model, OFF), http=http)
            assert caught.value.reason is FailureReason.WRONG_MODEL


async def test_only_triton_is_taken_for_triton(tmp_path):
    served = make("trtllm", ["trtllm-serve", "/m", "--host=0.0.0.0"], {}, root=tmp_path)
    async with serving(served) as client, open_http() as http:
        server = Server(str(client.base).rstrip("/"), TRT)
        assert await route_of(server, ENGINES[TRT], http) is Route.AUTO
    assert wire.resolved(Route.AUTO, TRT) is Route.COMPLETIONS


def answering(handle):
    """A Triton of one model, and the paths with their ports it was asked for."""
    seen = []

    async def respond(request):
        await asyncio.sleep(0.02)
        seen.append((request.url.port, request.url.path))
        if request.url.path.startswith("/v2/") and request.method == "GET":
            return httpx.Response(200)
        return handle(request) if request.method == "POST" else httpx.Response(404)

    return httpx.AsyncClient(transport=httpx.MockTransport(respond)), seen


async def asked(http, **more):
    described = await describe(Server("http://triton:8000", TRT, "m", OFF, **more), http=http)
    return await measure(described, 2, Workload.fixed(4, 8), http=http, precision=Precision(0.5, 0.2, 1.0))


async def test_metrics_are_read_from_their_own_port():
    def refuse(_):
        return httpx.Response(401)

    http, seen = answering(refuse)
    with pytest.raises(MeasureFailure):
        await asked(http, metrics_port=8002)
    assert (8002, "/metrics/") in seen
    assert not any(port == 8000 and "metrics" in path for port, path in seen)
    assert (8000, "/v2/models/m/generate_stream") in seen


async def test_a_model_without_the_decoupled_policy_is_asked_for_whole_answers():
    def handle(request):
        if request.url.path.endswith("generate_stream"):
            return httpx.Response(400, json={"error": "Streaming is only supported in decoupled mode."})
        told = {"num_output_tokens": 8, "num_input_tokens": 4}
        return httpx.Response(200, json={"model_name": "m", "text_output": "x", **told})

    http, seen = answering(handle)
    found = await asked(http)
    assert found.requests > 2
    assert found.time_to_first_token.mean is None
    assert sum(path.endswith("_stream") for _, path in seen) == 1


async def test_an_answer_that_ends_by_itself_and_is_not_counted_gives_no_number():
    async def event():
        yield b'data: {"model_name":"m","text_output":"x","finish_reason":"stop"}\n\n'

    def handle(_):
        return httpx.Response(200, content=event())

    http, _ = answering(handle)
    with pytest.raises(MeasureFailure, match="neither takes ignore_eos nor counts tokens") as caught:
        await asked(http)
    assert caught.value.reason is FailureReason.REJECTED


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (b'{"text_output":"x","num_output_tokens":[9],"num_input_tokens":7}', (7, 9, None)),
        (b'{"text_output":"x","total_accepted_draft_tokens":"4","finish_reason":"length"}', (None, None, 4)),
        (b'{"text_output":"x","total_accepted_draft_tokens":-1,"num_output_tokens":"many"}', (None, None, None)),
        (b'{"text_output":"x","finish_reason":["length"]}', (None, None, None)),
        (b'{"text_output":["x","y"],"num_output_tokens":[1,2],"finish_reason":"None"}', (None, None, None)),
    ],
)
def test_what_an_answer_tells(document, told):
    found = wire.usage([document])
    assert (found.input_tokens, found.output_tokens, found.accepted_tokens) == told
    assert not found.is_cut_short


def test_a_name_cannot_leave_its_place_in_the_path():
    assert wire.path(Route.TRITON, "a/../b?c", stream=False) == "/v2/models/a%2F..%2Fb%3Fc/generate"
