"""The emulated SGLang over HTTP: the traps of the real one, by name. Started in this process on its own address."""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from crossover.emulate.load import ClosedLoop
from crossover.emulate.sglang import READY, Options, SGLangServer
from crossover.emulate.sglang_args import LaunchError, parse
from crossover.engines.contract import Answer
from crossover.engines.sglang import ENGINE

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"
ADDRESS = "127.9.0.1"


@asynccontextmanager
async def server(*args, **options):
    """A server that is up; yields (server, get)."""
    command = ["python3", "-m", "sglang.launch_server", "--model-path=tiny", "--enable-metrics", *args]
    made = SGLangServer(Options(ADDRESS, time_scale=20.0, **options), command)
    runner = web.AppRunner(made.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    base = f"http://{ADDRESS}:{runner.addresses[0][1]}"
    made.state = READY
    driver = asyncio.create_task(made._drive())
    async with aiohttp.ClientSession(base) as session:

        async def get(path, **more):
            async with session.get(path, **more) as answer:
                return answer.status, await answer.text()

        get.session, get.base = session, base
        try:
            yield made, get
        finally:
            driver.cancel()
            await runner.cleanup()


async def until(check):
    for _ in range(2000):
        if check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen")


def names(text):
    return {match[1] for match in re.finditer(r"^(sglang:[a-z_]+)[{ ]", text, re.M)}


def label_names(text, series):
    match = re.search(rf"^{series}{{(.*?)}}", text, re.M)
    return set(re.findall(r"(\w+)=", match[1])) if match else None


async def test_names_types_and_labels_are_the_real_ones():
    real = (METRICS / "sglang-0.5.23-busy64-ngram-spec.prom").read_text()
    async with server("--speculative-algorithm=NGRAM") as (made, get), ClosedLoop(lambda: [get.base]) as load:
        load.set_concurrency(8)
        await until(lambda: "spec_num_draft_tokens" in made.views[0].gauges and made.views[0].gauges["gen_throughput"])
        _, text = await get("/metrics")
    assert names(text) - names(real) <= {"sglang:num_requests_total", "sglang:generation_tokens_total"}
    for series in ("sglang:num_running_reqs", "sglang:spec_accept_length", "sglang:realtime_tokens_total"):
        assert label_names(text, series) == label_names(real, series)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)", real, re.M))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.M):
        assert types.get(name, kind) == kind


async def test_loads_have_the_fields_of_the_real_one():
    real = json.loads((METRICS / "sglang-0.5.23-v1_loads-busy64-ngram.json").read_text())
    async with server("--speculative-algorithm=NGRAM") as (_, get):
        _, text = await get("/v1/loads")
    assert set(json.loads(text)["loads"][0]) <= set(real["loads"][0])


async def test_our_own_adapter_reads_it_and_agrees_with_the_truth():
    async with (
        server("--speculative-algorithm=NGRAM", acceptance=0.5) as (made, get),
        ClosedLoop(lambda: [get.base], output_tokens=2000) as load,
    ):
        load.set_concurrency(12)
        await until(lambda: made.views[0].gauges.get("spec_num_draft_tokens") == 12.0)
        answers = [Answer(path, *(await _answer(get, path))) for path in ("/v1/loads", "/metrics")]
    (scheduler,) = ENGINE.read(answers, 0.0, None).schedulers
    assert scheduler.running_requests == pytest.approx(12, abs=1)
    assert scheduler.draft_tokens == 11
    assert scheduler.acceptance_length == pytest.approx(2.0, rel=0.15)


async def _answer(get, path):
    status, text = await get(path)
    return status, text.encode()


async def test_gauges_are_absent_before_the_first_report():
    async with server() as (_, get):
        _, text = await get("/metrics")
    assert "sglang:num_running_reqs" not in names(text)
    assert "sglang:max_total_num_tokens" in names(text)


async def test_speculation_gauges_stay_stale_at_idle():
    async with server("--speculative-algorithm=NGRAM") as (made, get), ClosedLoop(lambda: [get.base]) as load:
        load.set_concurrency(4)
        await until(lambda: made.views[0].gauges.get("spec_accept_length"))
        load.set_concurrency(0)
        await until(lambda: made.cores[0].idle and made.views[0].gauges["num_running_reqs"] == 0)
        assert made.views[0].gauges["gen_throughput"] == 0
        assert made.views[0].gauges["spec_accept_length"] > 0


async def test_metrics_need_their_flag():
    command = ["-m", "sglang.launch_server", "--model-path=tiny"]
    made = SGLangServer(Options(ADDRESS), command)
    assert "/metrics" not in {route.resource.canonical for route in made.application().router.routes()}


@pytest.mark.parametrize(
    ("version", "has", "has_not"),
    [
        ("0.4.6", {"/get_server_info"}, {"/server_info", "/v1/loads", "/ready"}),
        ("0.5.6", {"/server_info"}, {"/v1/loads", "/ready"}),
        ("0.5.8", {"/server_info", "/v1/loads"}, {"/ready"}),
        ("0.5.23", {"/server_info", "/v1/loads", "/ready"}, set()),
    ],
)
def test_routes_come_with_their_version(version, has, has_not):
    made = SGLangServer(Options(ADDRESS, server_version=version), ["-m", "sglang.launch_server"])
    routes = {route.resource.canonical for route in made.application().router.routes()}
    assert has <= routes
    assert not has_not & routes


async def test_keys_guard_all_but_health_and_metrics_and_stand_in_clear_text():
    async with server("--api-key=k3y") as (_, get):
        assert (await get("/v1/loads"))[0] == 401
        assert (await get("/metrics"))[0] == 200
        status, text = await get("/server_info", headers={"Authorization": "Bearer k3y"})
        assert status == 200
        assert "k3y" in text


async def test_set_internal_state_caps_the_batch_and_tells_the_truth_since_0_5_15():
    async with server("--dp-size=2") as (made, get):
        for value, answer in ((16, [True, True]), (100_000, [False, False])):
            body = {"server_args": {"pp_max_micro_batch_size": value}}
            async with get.session.post("/set_internal_state", json=body) as said:
                assert await said.json() == answer
        assert [core.running_cap for core in made.cores] == [16, 16]
        body = {"server_args": {"speculative_num_steps": 1}}
        async with get.session.post("/set_internal_state", json=body) as said:
            assert await said.json() == [False, False]
    async with (
        server(server_version="0.5.13") as (made, get),
        get.session.post("/set_internal_state", json=body) as said,
    ):
        assert await said.json() == [True]


async def test_generate_counts_tokens_and_openai_streams_them():
    async with server("--speculative-algorithm=NGRAM") as (_, get):
        body = {"input_ids": [1] * 5, "sampling_params": {"max_new_tokens": 40}}
        async with get.session.post("/generate", json=body) as answer:
            meta = (await answer.json())["meta_info"]
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 40)
        assert 0 < meta["spec_verify_ct"] <= 40
        body = {
            "messages": [{"content": "a b c"}],
            "max_tokens": 30,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with get.session.post("/v1/chat/completions", json=body) as answer:
            events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["usage"]["completion_tokens"] == 30
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        assert len(text.split()) == 30


async def test_faults_can_be_switched_while_it_runs():
    async with server() as (_, get):
        async with get.session.post("/emulator/faults", json={"fault": "html"}) as answer:
            assert answer.status == 200
        assert "<html>" in (await get("/v1/loads"))[1]
        async with get.session.post("/emulator/faults", json={"fault": "nonsense"}) as answer:
            assert answer.status == 400
        async with get.session.post("/emulator/faults", json={"fault": None}) as answer:
            assert answer.status == 200
        assert json.loads((await get("/v1/loads"))[1])["version"] == "0.5.23"


# -- start-up arguments --------------------------------------------------------------------------------------------------


def launch(*args, version=(0, 5, 23), root=Path("/nonexistent")):
    return parse(["python3", "-m", "sglang.launch_server", *args], version, root)


def adaptive(tmp_path, table):
    (tmp_path / "adaptive.json").write_text(json.dumps(table))
    return ("--speculative-adaptive", "--speculative-adaptive-config=/adaptive.json")


def test_the_48_request_default_comes_with_every_algorithm():
    assert launch("--speculative-algorithm=NGRAM").max_running_requests == 48
    assert launch().max_running_requests != 48
    assert launch("--speculative-algorithm=NGRAM", "--max-running-requests=96").max_running_requests == 96


def test_steps_without_an_algorithm_are_ignored():
    assert launch("--speculative-num-steps=3").algorithm is None


def test_steps_unset_beside_topk_is_an_assertion_error():
    with pytest.raises(LaunchError, match="AssertionError"):
        launch("--speculative-algorithm=EAGLE", "--speculative-eagle-topk=1")


def test_an_ambiguous_prefix_ends_the_server_with_status_2():
    with pytest.raises(SystemExit) as ended:
        launch("--speculative-draft=/m")
    assert ended.value.code == 2


def test_none_as_algorithm_is_no_off_switch():
    made = SGLangServer(Options(ADDRESS), ["-m", "sglang.launch_server", "--speculative-algorithm=NONE"])
    with pytest.raises(LaunchError):
        made._fail_as_the_engine_would()


def test_a_flat_adaptive_file_fails_from_0_5_13(tmp_path):
    flags = adaptive(tmp_path, {"candidate_steps": [1, 3]})
    with pytest.raises(LaunchError, match="integer batch-size keys"):
        launch("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", *flags, root=tmp_path)


def test_zero_steps_fail_before_0_5_14(tmp_path):
    flags = adaptive(tmp_path, {"1": {"candidate_steps": [3]}, "32": {"candidate_steps": [0]}})
    args = ("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=1", *flags)
    assert launch(*args, root=tmp_path).adaptive
    with pytest.raises(LaunchError):
        launch(*args, version=(0, 5, 13), root=tmp_path)


def test_an_unsupported_combination_warns_and_stays_static():
    made = launch("--speculative-algorithm=NGRAM", "--speculative-adaptive")
    assert not made.adaptive
    assert made.warnings


def test_a_key_acts_from_the_batch_after_the_previous_graph_size(tmp_path):
    """With graphs at 80, 88, 96 a key 96 acts from batch 89."""
    from crossover.emulate.sglang_args import DraftPolicy

    flags = adaptive(tmp_path, {"1": {"candidate_steps": [3]}, "96": {"candidate_steps": [0]}})
    args = ("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=1", *flags)
    policy = DraftPolicy(launch(*args, "--max-running-requests=128", root=tmp_path))
    assert [policy._length(batch) for batch in (80, 88, 89, 96, 97)] == [3, 3, 0, 0, 0]


def test_a_list_that_mixes_0_with_others_oscillates(tmp_path):
    from crossover.emulate.sglang_args import DraftPolicy

    flags = adaptive(tmp_path, {"1": {"candidate_steps": [0, 3]}})
    args = ("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=1", *flags)
    policy = DraftPolicy(launch(*args, root=tmp_path))
    assert {policy._length(4) for _ in range(20)} == {0, 3}
