"""The emulated SGLang over HTTP: the traps of the real one, by name. Started in this process on its own address."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.emulate.serving import assert_subset, make, serving, shape, until

from crossover.emulate.commands import LaunchError
from crossover.emulate.load import ClosedLoop
from crossover.emulate.sglang_args import AdaptiveSteps, parse
from crossover.engines.sglang import ENGINE

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"


def sglang(*args, environ=None, metrics=True, **options):
    flags = ["--enable-metrics"] if metrics else []
    command = ["python3", "-m", "sglang.launch_server", "--model-path=tiny", *flags, *args]
    return make("sglang", command, environ, **{"time_scale": 20.0, **options})


def server(*args, **options):
    """A server that is up."""
    return serving(sglang(*args, **options))


def page(name):
    return (METRICS / name).read_text()


async def test_names_types_labels_and_buckets_are_the_real_ones():
    real = page("sglang-0.5.23-busy64-ngram-spec.prom")
    async with server("--speculative-algorithm=NGRAM") as client, ClosedLoop(lambda: [client.base]) as load:
        load.set_concurrency(8)
        gauges = client.server.views[0].gauges
        await until(lambda: gauges.get("spec_num_draft_tokens") and gauges["gen_throughput"])
        await until(lambda: load.tally.done)
        _, text = await client.get("/metrics")
    assert_subset(text, real)


@pytest.mark.parametrize("version", ["0.5.3", "0.4.6"])
async def test_an_older_version_prints_the_scheduler_series_it_had(version):
    async with server("--speculative-algorithm=EAGLE", server_version=version) as client:
        await client.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 300}})
        _, text = await client.get("/metrics")
    real = page(f"sglang-{version}-busy64.prom")
    tokenizer = [name for name in shape(text) if "is_streaming" in str(shape(text)[name][1]) or "inter_token" in name]
    assert_subset(text, real, but=[*tokenizer, *(name.rsplit("_", 1)[0] for name in tokenizer)])
    assert len(shape(text)) - len(tokenizer) >= 7


async def test_ranks_priorities_and_extra_labels_are_those_of_the_real_one():
    flags = ("--dp-size=2", "--enable-priority-scheduling", '--extra-metric-labels={"pool": "blue"}')
    async with server(*flags) as client:
        await client.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 300}})
        _, text = await client.get("/metrics")
    real = shape(page("sglang-0.5.23-dp2-priority-extra-label.prom"))
    for name in ("sglang:num_running_reqs", "sglang:max_total_num_tokens", "sglang:realtime_tokens_total"):
        assert shape(text)[name] == real[name]


async def test_loads_have_the_fields_of_the_real_one():
    real = json.loads(page("sglang-0.5.23-v1_loads-busy64-ngram.json"))
    async with server("--speculative-algorithm=NGRAM") as client:
        _, text = await client.get("/v1/loads")
    assert set(json.loads(text)["loads"][0]) <= set(real["loads"][0])


async def test_our_own_adapter_reads_it_and_agrees_with_the_truth():
    async with (
        server("--speculative-algorithm=NGRAM", acceptance=0.5) as client,
        ClosedLoop(lambda: [client.base], output_tokens=2000) as load,
    ):
        load.set_concurrency(12)
        view = client.server.views[0]
        await until(lambda: view.gauges.get("spec_num_draft_tokens") == 12.0 and view.loads["running"] == 12)
        answers = await client.answers("/v1/loads", "/metrics")
    (scheduler,) = ENGINE.read(answers, 0.0, None).schedulers
    assert scheduler.running_requests == pytest.approx(12, abs=1)
    assert scheduler.draft_tokens == 11
    assert scheduler.acceptance_length == pytest.approx(2.0, rel=0.15)


async def test_a_tree_shows_its_steps_and_its_size():
    tree = ("--speculative-num-steps=5", "--speculative-eagle-topk=4", "--speculative-num-draft-tokens=32")
    async with (
        server("--speculative-algorithm=EAGLE", *tree) as client,
        ClosedLoop(lambda: [client.base], output_tokens=2000) as load,
    ):
        load.set_concurrency(4)
        gauges = client.server.views[0].gauges
        await until(lambda: gauges.get("spec_num_draft_tokens"))
    assert (gauges["spec_num_steps"], gauges["spec_num_draft_tokens"]) == (5, 32)


async def test_acceptance_can_be_forced_as_the_engine_allows():
    environ = {"SGLANG_SIMULATE_ACC_LEN": "2.5"}
    async with server("--speculative-algorithm=EAGLE", acceptance=0.1, environ=environ) as client:
        await client.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2000}})
        counters = client.server.cores[0].counters
    assert 1 + counters.accepted_tokens / counters.drafts == pytest.approx(2.5, rel=0.05)


# -- traps -------------------------------------------------------------------------------------------------------------


async def test_gauges_are_absent_before_the_first_report():
    async with server() as client:
        (answer,) = await client.answers("/metrics")
    assert b"sglang:num_running_reqs{" not in answer.body
    assert b"sglang:max_total_num_tokens{" in answer.body
    reading = ENGINE.read([answer], 0.0, None)
    assert reading.schedulers[0].running_requests is None
    assert "AbsentBeforeFirstReport" in {trap.code for trap in reading.traps}


async def test_speculation_gauges_stay_stale_at_idle():
    async with server("--speculative-algorithm=NGRAM") as client, ClosedLoop(lambda: [client.base]) as load:
        gauges = client.server.views[0].gauges
        load.set_concurrency(4)
        await until(lambda: gauges.get("spec_accept_length"))
        load.set_concurrency(0)
        await until(lambda: client.server.idle and gauges["num_running_reqs"] == 0)
        assert gauges["gen_throughput"] == 0
        assert gauges["spec_accept_length"] > 0
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert "StaleSpeculationGauges" in {trap.code for trap in reading.traps}
    assert reading.schedulers[0].running_requests == 0
    assert reading.schedulers[0].acceptance_length is None


async def test_gauges_lag_behind_the_loads_when_requests_have_just_joined():
    async with server("--decode-log-interval=100000", time_scale=1.0) as client:
        posts = [
            asyncio.create_task(
                client.post("/generate", {"input_ids": [1] * 9, "sampling_params": {"max_new_tokens": 200}})
            )
            for _ in range(6)
        ]
        await until(lambda: client.server.views[0].loads["running"] == 6)
        assert client.server.views[0].gauges["num_running_reqs"] < 6
        reading = ENGINE.read(await client.answers("/v1/loads", "/metrics"), 0.0, None)
        assert reading.schedulers[0].running_requests == 6
        assert "GaugesLagBehindLoads" in {trap.code for trap in reading.traps}
        client.server.abort_all()
        await asyncio.gather(*posts)


async def test_a_stuck_queue_has_no_batch():
    async with server() as client, ClosedLoop(lambda: [client.base], output_tokens=5000) as load:
        load.set_concurrency(6)
        await until(lambda: client.server.views[0].loads["running"] == 6)
        await client.post("/emulator/faults", {"fault": "stuck-queue"})
        reading = ENGINE.read(await client.answers("/v1/loads", "/metrics"), 0.0, None)
        assert "QueueWithoutBatch" in {trap.code for trap in reading.traps}
        await client.post("/emulator/faults", {"fault": None})
        await until(lambda: len(client.server.cores[0].running) == 6)


async def test_several_ranks_are_several_schedulers():
    async with server("--dp-size=2") as client, ClosedLoop(lambda: [client.base], output_tokens=2000) as load:
        load.set_concurrency(8)
        await until(lambda: [view.loads["running"] for view in client.server.views] == [4, 4])
        shown = await client.answers("/v1/loads", "/metrics")
        reading = ENGINE.read(shown, 0.0, None)
    published = [load["num_running_reqs"] for load in json.loads(shown[0].body)["loads"]]
    assert [scheduler.running_requests for scheduler in reading.schedulers] == published
    assert len(published) == 2


async def test_pipeline_stages_report_their_own_micro_batch():
    async with server("--pp-size=2") as client, ClosedLoop(lambda: [client.base], output_tokens=5000) as load:
        load.set_concurrency(7)
        await until(lambda: client.server.views[0].gauges.get("num_running_reqs") == 7)
        answers = await client.answers("/v1/loads", "/metrics")
    alone, both = ENGINE.read(answers[1:], 0.0, None), ENGINE.read(answers, 0.0, None)
    assert "PipelineRanks" in {trap.code for trap in alone.traps}
    assert alone.schedulers[0].running_requests is None
    assert both.schedulers[0].running_requests == pytest.approx(7, abs=1)


async def test_tensor_parallel_ranks_may_all_report():
    flags = ("--tp-size=4", "--enable-metrics-for-all-schedulers")
    async with server(*flags) as client, ClosedLoop(lambda: [client.base], output_tokens=5000) as load:
        load.set_concurrency(5)
        await until(lambda: client.server.views[0].gauges.get("num_running_reqs") == 5)
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert "TensorParallelDuplicates" in {trap.code for trap in reading.traps}
    assert reading.schedulers[0].running_requests == pytest.approx(5, abs=1)


async def test_priorities_repeat_the_total():
    flag = "--enable-priority-scheduling"
    async with server(flag) as client, ClosedLoop(lambda: [client.base], output_tokens=5000) as load:
        load.set_concurrency(5)
        await until(lambda: client.server.views[0].gauges.get("num_running_reqs") == 5)
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert "PriorityDuplicates" in {trap.code for trap in reading.traps}
    assert reading.schedulers[0].running_requests == pytest.approx(5, abs=1)


@pytest.mark.parametrize(("version", "role"), [("0.5.23", "decode"), ("0.5.6", "unified")])
async def test_a_role_in_disaggregated_serving_is_a_label_since_0_5_8(version, role):
    async with server("--disaggregation-mode=decode", server_version=version) as client:
        _, text = await client.get("/metrics")
    assert f'engine_type="{role}"' in text


async def test_a_forced_shutdown_waits_for_nobody():
    async with server(environ={"SGL_FORCE_SHUTDOWN": "1"}) as client:
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 100_000}}
        post = asyncio.create_task(client.post("/generate", body))
        await until(lambda: client.server.cores[0].running)
        await client.server.drain()
        assert json.loads((await post)[1])["meta_info"]["finish_reason"]["type"] == "abort"


async def test_metrics_need_their_flag():
    async with server(metrics=False) as client:
        assert (await client.get("/metrics"))[0] == 404
        assert (await client.get("/v1/loads"))[0] == 200


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
    routes = {route.path for route in sglang(server_version=version).routes()}
    assert has <= routes
    assert not has_not & routes


async def test_keys_guard_all_but_health_and_metrics_and_stand_in_clear_text():
    async with server("--api-key=k3y") as client:
        assert (await client.get("/v1/loads"))[0] == 401
        assert (await client.get("/metrics"))[0] == 200
        status, text = await client.get("/server_info", headers={"Authorization": "Bearer k3y"})
        assert status == 200
        assert "k3y" in text


async def test_set_internal_state_caps_the_batch_and_tells_the_truth_since_0_5_15():
    async with server("--dp-size=2") as client:
        for value, answer in ((16, [True, True]), (100_000, [False, False])):
            body = {"server_args": {"pp_max_micro_batch_size": value}}
            assert json.loads((await client.post("/set_internal_state", body))[1]) == answer
        assert [core.running_cap for core in client.server.cores] == [16, 16]
        _, text = await client.get("/v1/loads")
        assert json.loads(text)["loads"][0]["max_running_requests"] == 256
        body = {"server_args": {"speculative_num_steps": 1}}
        assert json.loads((await client.post("/set_internal_state", body))[1]) == [False, False]
    async with server(server_version="0.5.13") as client:
        assert json.loads((await client.post("/set_internal_state", body))[1]) == [True]


async def test_paused_it_is_not_ready_and_goes_on_afterwards():
    async with server() as client:
        await client.post("/pause_generation", {"mode": "retract"})
        assert (await client.get("/ready"))[0] == 503
        post = asyncio.create_task(
            client.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 5}})
        )
        await until(lambda: client.server.cores[0].waiting)
        await client.post("/continue_generation")
        assert (await post)[0] == 200


async def test_generate_counts_tokens_and_openai_streams_them():
    async with server("--speculative-algorithm=NGRAM") as client:
        body = {"input_ids": [1] * 5, "sampling_params": {"max_new_tokens": 40}}
        meta = json.loads((await client.post("/generate", body))[1])["meta_info"]
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 40)
        assert 0 < meta["spec_verify_ct"] <= 40
        streamed = await client.events("/generate", {**body, "stream": True})
        assert streamed[-1] == "[DONE]"
        assert json.loads(streamed[-2])["meta_info"]["completion_tokens"] == 40
        body = {
            "messages": [{"content": "a b c"}],
            "max_tokens": 30,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        events = await client.events("/v1/chat/completions", body)
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        assert len(text.split()) == 30


async def test_faults_can_be_switched_while_it_runs():
    async with server() as client:
        assert (await client.post("/emulator/faults", {"fault": "html"}))[0] == 200
        assert "<html>" in (await client.get("/v1/loads"))[1]
        assert (await client.post("/emulator/faults", {"fault": "nonsense"}))[0] == 400
        assert (await client.post("/emulator/faults", {"fault": None}))[0] == 200
        assert json.loads((await client.get("/v1/loads"))[1])["version"] == "0.5.23"


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
    with pytest.raises(LaunchError):
        sglang("--speculative-algorithm=NONE").after_load()


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
    flags = adaptive(tmp_path, {"1": {"candidate_steps": [3]}, "96": {"candidate_steps": [0]}})
    args = ("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=1", *flags)
    policy = launch(*args, "--max-running-requests=128", root=tmp_path).drafts()
    assert [policy.choose(batch) for batch in (80, 88, 89, 96, 97)] == [3, 3, 0, 0, 0]


def test_a_list_that_mixes_0_with_others_oscillates(tmp_path):
    flags = adaptive(tmp_path, {"1": {"candidate_steps": [0, 3]}})
    args = ("--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=1", *flags)
    policy = launch(*args, root=tmp_path).drafts()
    assert isinstance(policy, AdaptiveSteps)
    assert {policy.choose(4) for _ in range(20)} == {0, 3}
