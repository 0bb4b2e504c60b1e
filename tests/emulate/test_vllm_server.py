"""The emulated vLLM over HTTP: its pages beside those of the real one, the arithmetic of its counters, its traps by name."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.emulate.serving import assert_subset, make, serving, shape, until

from crossover.emulate.commands import LaunchError
from crossover.emulate.load import ClosedLoop
from crossover.emulate.vllm_args import SCHEDULE_KEY, parse
from crossover.engines.exposition import scan
from crossover.engines.vllm import ENGINE

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"
EAGLE = {"method": "eagle3", "model": "/m/draft", "num_speculative_tokens": 3}
CHAT = "/v1/chat/completions"


def speculative(**more):
    return "--speculative-config=" + json.dumps({**EAGLE, **more})


def vllm(*args, environ=None, **options):
    return make("vllm", ["vllm", "serve", "m", *args], environ, **{"time_scale": 10.0, **options})


def server(*args, **options):
    """A server that is up."""
    return serving(vllm(*args, **options))


def chat(tokens, words=4, **more):
    return {"model": "m", "messages": [{"role": "user", "content": "a " * words}], "max_tokens": tokens, **more}


def load_of(client, **more):
    return ClosedLoop(lambda: [client.base], path=CHAT, **{"output_tokens": 400, **more})


class Totals:
    """Sums of a page by name, as our own scanner reads it."""

    def __init__(self, text):
        self.exposition = scan(text.encode(), frozenset(shape(text)))

    def __getitem__(self, name):
        return sum(sample.value for sample in self.exposition.values("vllm:" + name))

    def row(self, name, **labels):
        (value,) = [
            sample.value
            for sample in self.exposition.values("vllm:" + name)
            if all(sample.labels.get(key) == item for key, item in labels.items())
        ]
        return value


async def window(client, seconds=0.6):
    """Two pages with work between them."""
    before = Totals((await client.get("/metrics"))[1])
    await asyncio.sleep(seconds)
    after = Totals((await client.get("/metrics"))[1])
    return lambda name: after[name] - before[name]


def codes(reading):
    return {trap.code for trap in reading.traps}


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "args", "fixtures"),
    [
        ("0.33.0", [speculative()], ["vllm-0.33.0-b64-spec.prom"]),
        ("0.33.0", [], ["vllm-0.33.0-b64-nospec.prom"]),
        ("0.33.0", [speculative(), "--api-server-count=2"], ["vllm-0.33.0-b64-spec-2apiservers.prom"]),
        ("0.33.0", [speculative(), "-dp", "2", "--api-server-count=1"], ["vllm-0.33.0-dp2.prom"]),
        ("0.20.2", [speculative()], ["vllm-0.20.2-b64-spec.prom"]),
        ("0.10.2", [speculative()], ["vllm-0.10.2-b64-spec.prom"]),
    ],
)
async def test_names_types_labels_and_buckets_are_the_real_ones(version, args, fixtures):
    async with server(*args, server_version=version) as client:
        for _ in range(3):
            assert (await client.post(CHAT, chat(30)))[0] == 200
        _, text = await client.get("/metrics")
    real = [(METRICS / name).read_text() for name in fixtures]
    http = {name for name in shape(text) if name.startswith("http_")}
    assert_subset(text, *real, but=http if version != "0.33.0" else ())
    wanted = {name for page in real for name in shape(page) if name.startswith("vllm:")}
    assert wanted <= set(shape(text)), "every series of the real one is there"


async def test_an_idle_server_shows_the_same_series_as_the_real_one():
    async with server(speculative()) as client:
        _, text = await client.get("/metrics")
    real = (METRICS / "vllm-0.33.0-idle.prom").read_text()
    assert {n for n in shape(text) if n.startswith("vllm:")} == {n for n in shape(real) if n.startswith("vllm:")}


async def test_the_rust_front_end_leaves_three_families_out():
    async with server(speculative(), environ={"VLLM_USE_RUST_FRONTEND": "1"}) as client:
        _, text = await client.get("/metrics")
    for name in ("cache_config_info", "engine_sleep_state", "admission_rejections"):
        assert name not in text
    assert "vllm:spec_decode_num_drafts_total" in shape(text)


# -- the arithmetic of counters (engines page, one scrape window) ------------------------------------------------------


async def test_the_arithmetic_of_a_window_gives_batch_length_and_acceptance():
    async with (
        server(speculative(), acceptance="0.72,0.6,0.55", acceptance_spread=0.0) as client,
        load_of(client, output_tokens=3000) as load,
    ):
        load.set_concurrency(16)
        await until(lambda: len(client.server.cores[0].running) == 16)
        grown = await window(client)
    itl = grown("inter_token_latency_seconds_count")
    assert itl / grown("iteration_tokens_total_count") == pytest.approx(16, rel=0.1)
    assert grown("spec_decode_num_drafts_total") == itl
    assert grown("spec_decode_num_draft_tokens_total") / grown("spec_decode_num_drafts_total") == 3
    length = 1 + grown("spec_decode_num_accepted_tokens_total") / grown("spec_decode_num_drafts_total")
    assert length == pytest.approx(1 + 0.72 + 0.72 * 0.6 + 0.72 * 0.6 * 0.55, rel=0.05)
    assert grown("spec_decode_num_accepted_tokens_per_pos_total") == grown("spec_decode_num_accepted_tokens_total")
    assert grown("generation_tokens_total") / itl == pytest.approx(length, rel=0.05)


async def test_counters_agree_when_all_is_done():
    async with server(speculative()) as client:
        await asyncio.gather(*(client.post(CHAT, chat(20 + 3 * n, words=5 + n)) for n in range(20)))
        totals = Totals((await client.get("/metrics"))[1])
    tokens, prompts = sum(20 + 3 * n for n in range(20)), sum(5 + n for n in range(20))
    assert totals["generation_tokens_total"] == totals["request_generation_tokens_sum"] == tokens
    assert totals["prompt_tokens_total"] == totals["request_prompt_tokens_sum"] == prompts
    assert totals["iteration_tokens_total_sum"] == tokens + prompts
    assert totals.row("request_success_total", finished_reason="length") == 20
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_time_per_output_token"):
        assert totals[f"{name}_seconds_count"] == 20
    steps = totals["inter_token_latency_seconds_count"]
    assert tokens - 20 <= steps + totals["spec_decode_num_accepted_tokens_total"]
    parts = totals["request_prefill_time_seconds_sum"] + totals["request_decode_time_seconds_sum"]
    assert totals["request_inference_time_seconds_sum"] == pytest.approx(parts)
    whole = totals["request_queue_time_seconds_sum"] + totals["request_inference_time_seconds_sum"]
    assert totals["e2e_request_latency_seconds_sum"] == pytest.approx(whole)


async def test_inter_token_latency_rises_with_speculation_while_time_per_token_falls():
    async def mean(name, *args):
        async with server(*args, acceptance=0.9) as client:
            await asyncio.gather(*(client.post(CHAT, chat(200)) for _ in range(4)))
            totals = Totals((await client.get("/metrics"))[1])
            return totals[name + "_sum"] / totals[name + "_count"]

    itl, tpot = "inter_token_latency_seconds", "request_time_per_output_token_seconds"
    assert await mean(itl, speculative()) > await mean(itl)
    assert await mean(tpot, speculative()) < await mean(tpot)


# -- our own adapter reads it ------------------------------------------------------------------------------------------


async def read_twice(client, seconds=0.4):
    first = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    await asyncio.sleep(seconds)
    return ENGINE.read(await client.answers("/metrics"), seconds, first)


async def test_the_adapter_agrees_with_the_truth():
    async with (
        server(speculative(), acceptance=0.5, kv_tokens=100_000) as client,
        load_of(client, output_tokens=3000) as load,
    ):
        load.set_concurrency(12)
        await until(lambda: len(client.server.cores[0].running) == 12)
        reading = await read_twice(client)
        truth = json.loads((await client.get("/emulator/truth"))[1])["ranks"][0]
    (scheduler,) = reading.schedulers
    assert scheduler.running_requests == pytest.approx(12, abs=1)
    assert scheduler.draft_tokens == 3
    assert scheduler.acceptance_length == pytest.approx(1.875, rel=0.1)
    assert scheduler.speculated_share == pytest.approx(1.0)
    assert scheduler.kv_capacity_tokens == 100_000
    assert scheduler.kv_tokens == pytest.approx(truth["kv_tokens"], rel=0.3)
    assert not codes(reading)


async def test_without_speculation_the_series_are_absent_and_that_is_known():
    async with server() as client, load_of(client) as load:
        load.set_concurrency(4)
        await until(lambda: len(client.server.cores[0].running) == 4)
        reading = await read_twice(client)
    assert reading.schedulers[0].draft_tokens == 0
    assert reading.schedulers[0].drafts_total is None


async def test_draft_length_0_by_schedule_freezes_the_speculation_counters():
    schedule = speculative(**{SCHEDULE_KEY: [[1, 4, 3], [5, 64, 0]]})
    async with server(schedule) as client, load_of(client, output_tokens=3000) as load:
        load.set_concurrency(3)
        await until(lambda: len(client.server.cores[0].running) == 3)
        assert (await read_twice(client)).schedulers[0].draft_tokens == 3
        load.set_concurrency(12)
        await until(lambda: len(client.server.cores[0].running) == 12)
        reading = await read_twice(client)
        assert client.server.cores[0].draft_in_force == 0
    assert reading.schedulers[0].draft_tokens == 0
    assert "DraftOffBySchedule" in codes(reading)


async def test_several_api_servers_count_each_step_several_times():
    async with server("--api-server-count=2") as client, load_of(client, output_tokens=3000) as load:
        load.set_concurrency(16)
        await until(lambda: len(client.server.cores[0].running) == 16)
        grown = await window(client)
        reading = await read_twice(client)
    batch = grown("inter_token_latency_seconds_count") / grown("iteration_tokens_total_count")
    assert batch == pytest.approx(8, rel=0.1), "half of what runs"
    assert "SeveralAPIServers" in codes(reading)
    assert reading.schedulers[0].engine_steps_total is None
    assert reading.schedulers[0].running_requests == pytest.approx(16, abs=1)


async def test_api_servers_follow_the_ranks_from_0_16():
    assert vllm("-dp", "2", server_version="0.15.0").launch.api_servers == 1
    assert vllm("-dp", "2", server_version="0.16.0").launch.api_servers == 2
    assert vllm("-dp", "2", "--data-parallel-rank", "1").launch.api_servers == 1


async def test_a_usage_gauge_for_each_process_before_0_11_2():
    async with server("--api-server-count=2", server_version="0.10.2") as client:
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert "ProcessDuplicates" in codes(reading)


async def test_ranks_are_schedulers_of_their_own_with_their_global_number():
    async with server("-dp", "2") as client, load_of(client, output_tokens=3000) as load:
        load.set_concurrency(8)
        await until(lambda: [view.gauges["num_requests_running"] for view in client.server.views] == [4, 4])
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert "DataParallelRanks" in codes(reading)
    assert sum(scheduler.running_requests for scheduler in reading.schedulers) == pytest.approx(8, abs=1)
    async with server("-dp=8", "--data-parallel-rank=5") as client:
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert [scheduler.name for scheduler in reading.schedulers] == ["engine5"]


async def test_statistics_off_is_no_idle_server():
    async with server("--disable-log-stats") as client:
        status, text = await client.get("/metrics")
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert status == 200
    assert "vllm:" not in text
    assert "python_info" in text
    assert reading.fault == "MetricsOff"


async def test_gauges_stay_up_after_a_mass_abort_until_the_next_step():
    async with server() as client, load_of(client, output_tokens=5000) as load:
        load.set_concurrency(6)
        await until(lambda: len(client.server.cores[0].running) == 6)
        load.set_concurrency(0)
        client.server.abort_all()
        await until(lambda: client.server.idle)
        reading = None
        seen = []
        for now in range(4):
            reading = ENGINE.read(await client.answers("/metrics"), float(now), reading)
            seen.append(codes(reading))
        assert "NoProgress" in seen[1]
        assert "StaleGauges" in seen[2]
        assert reading.schedulers[0].running_requests is None
        await client.post(CHAT, chat(3))
        reading = ENGINE.read(await client.answers("/metrics"), 9.0, None)
        assert reading.schedulers[0].running_requests == 0
        totals = Totals((await client.get("/metrics"))[1])
        assert totals.row("request_success_total", finished_reason="abort") == 0, "aborted requests are counted nowhere"


async def test_counters_may_begin_again_in_a_living_process():
    async with server(speculative()) as client:
        await client.post(CHAT, chat(50))
        await client.post("/emulator/faults", {"faults": ["reset-counters"]})
        totals = Totals((await client.get("/metrics"))[1])
        assert totals["generation_tokens_total"] == totals["spec_decode_num_drafts_total"] == 0
        await client.post(CHAT, chat(20))
        assert Totals((await client.get("/metrics"))[1])["generation_tokens_total"] == 20


async def test_while_scaling_only_health_answers():
    async with server() as client:
        await client.post("/emulator/faults", {"faults": ["scaling"]})
        assert (await client.get("/metrics"))[0] == 503
        assert (await client.get("/health"))[0] == 200


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("html", "NotMetrics"),
        ("truncated", None),
        ("nan", "InvalidValues"),
        ("metrics-off", "MetricsOff"),
        ("http-503", "HTTPStatus"),
    ],
)
async def test_faults_of_the_endpoint_are_told_apart(fault, seen):
    async with server(fault=fault) as client:
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
    assert reading.fault == seen
    if seen is None:
        assert reading.schedulers[0].kv_capacity_tokens is None, "what is cut off is unknown"


async def test_a_sleeping_engine_says_so():
    environ = {"VLLM_SERVER_DEV_MODE": "1"}
    async with server("--enable-sleep-mode", environ=environ) as client:
        assert (await client.post("/sleep?level=1"))[0] == 200
        reading = ENGINE.read(await client.answers("/metrics"), 0.0, None)
        assert "Asleep" in codes(reading)
        await client.post("/wake_up")
        assert not codes(ENGINE.read(await client.answers("/metrics"), 0.0, None))


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_chat_and_completions_stream_every_token_and_end_with_usage():
    async with server(speculative()) as client:
        more = {"stream": True, "stream_options": {"include_usage": True}}
        events = await client.events(CHAT, chat(30, words=3, **more))
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
        assert len("".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]).split()) == 30
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"
        body = {"model": "m", "prompt": "a b", "max_tokens": 9, "stream": True}
        chunks = [json.loads(event) for event in (await client.events("/v1/completions", body))[:-1]]
        assert len("".join(chunk["choices"][0]["text"] for chunk in chunks).split()) == 9


async def test_keys_guard_the_api_and_leave_metrics_open():
    async with server("--api-key", "k3y") as client:
        assert (await client.post(CHAT, chat(2)))[0] == 401
        assert (await client.post(CHAT, chat(2), headers={"Authorization": "Bearer k3y"}))[0] == 200
        assert (await client.get("/metrics"))[0] == 200
        assert (await client.get("/v1/models"))[0] == 401


async def test_an_unknown_model_is_not_found_and_a_full_queue_is_refused_and_counted():
    async with server("--max-num-seqs=1", "--max-num-queued-reqs=1", time_scale=1.0) as client:
        assert (await client.post(CHAT, {**chat(2), "model": "other"}))[0] == 404
        posts = [asyncio.create_task(client.post(CHAT, chat(400))) for _ in range(2)]
        await until(lambda: client.server.cores[0].waiting)
        assert (await client.post(CHAT, chat(2)))[0] == 503
        totals = Totals((await client.get("/metrics"))[1])
        assert totals.row("admission_rejections_total", reason="max_num_queued_reqs") == 1
        client.server.abort_all()
        await asyncio.gather(*posts)


async def test_a_client_that_goes_away_aborts_its_request():
    async with server() as client:
        post = asyncio.create_task(client.post(CHAT, chat(100_000)))
        await until(lambda: client.server.cores[0].running)
        post.cancel()
        await until(lambda: client.server.idle)
        assert client.server.cores[0].counters.aborted == 1


async def test_sigterm_aborts_what_runs_unless_there_is_a_timeout():
    for args, finished in (((), False), (("--shutdown-timeout=60",), True)):
        async with server(*args) as client:
            post = asyncio.create_task(client.post(CHAT, chat(300)))
            await until(lambda: client.server.cores[0].running)
            client.server.state = "draining"
            assert (await client.get("/health"))[0] == 200
            late = asyncio.create_task(client.post(CHAT, chat(5)))
            await client.server.drain()
            reason = json.loads((await post)[1])["choices"][0]["finish_reason"]
            assert reason == ("length" if finished else "abort")
            status, text = await late
            assert status == 200
            assert json.loads(text)["choices"][0]["finish_reason"] == "abort"


async def test_acceptance_can_be_forced_as_the_engine_allows():
    forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.2}
    async with server(speculative(**forced), acceptance=0.05) as client:
        await client.post(CHAT, chat(3000))
        counters = client.server.cores[0].counters
    assert 1 + counters.accepted_tokens / counters.drafts == pytest.approx(2.2, rel=0.05)


# -- start-up arguments ------------------------------------------------------------------------------------------------


def launch(*args, version=(0, 33, 0), environ=None, root=Path("/nonexistent"), command=("vllm", "serve", "m")):
    return parse([*command, *args], environ or {}, version, root)


TEXT = json.dumps(EAGLE)
KSERVE = ("/bin/bash", "-c", 'eval "exec vllm serve /m --port 8000 ${VLLM_ADDITIONAL_ARGS} $@"')
FORMS = {
    "pair": launch("--speculative-config", TEXT),
    "equals": launch(f"--speculative-config={TEXT}"),
    "underscore": launch("--speculative_config", TEXT),
    "short": launch("-sc", TEXT),
    "last wins": launch("-sc", '{"method": "ngram", "num_speculative_tokens": 9}', "-sc", TEXT),
    "dotted": launch(
        "--speculative-config.method",
        "eagle3",
        "--speculative-config.model=/m/draft",
        "--speculative-config.num_speculative_tokens",
        "3",
    ),
    "spec flags": launch("--spec-method=eagle3", "--spec-model=/m/draft", "--spec-tokens=3"),
    "module": launch("-sc", TEXT, command=("python3", "-m", "vllm.entrypoints.openai.api_server")),
    "kserve": launch(command=KSERVE, environ={"VLLM_ADDITIONAL_ARGS": f"--speculative-config '{TEXT}'"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_spelling_is_the_same_configuration(form):
    assert FORMS[form].config == EAGLE


def test_a_yaml_file_gives_way_to_the_command_line(tmp_path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"speculative-config": EAGLE, "max_num_seqs": 9, "port": 1}))
    made = launch("--config", "/c.yaml", "--port=8123", root=tmp_path)
    assert (made.config, made.args.max_num_seqs, made.args.port) == (EAGLE, 9, 8123)


@pytest.mark.parametrize(
    ("config", "version"),
    [
        ({**EAGLE, "disable_by_batch_size": 32}, (0, 17)),
        ({**EAGLE, SCHEDULE_KEY: [[1, 8, 3]]}, (0, 23)),
        ({**EAGLE, "enable_adaptive_verification": True}, (0, 28)),
        ({**EAGLE, "no_such_key": 1}, (0, 33)),
        ({"method": "medusa", "num_speculative_tokens": 3}, (0, 33)),
        ({"method": "eagle3", "num_speculative_tokens": 0}, (0, 33)),
    ],
)
def test_what_pydantic_refuses_ends_the_start_at_once(config, version):
    with pytest.raises(LaunchError):
        launch("-sc", json.dumps(config), version=version)


def test_disable_by_batch_size_is_read_by_nothing_before_0_17():
    made = launch("-sc", json.dumps({**EAGLE, "disable_by_batch_size": 2}), version=(0, 16))
    assert made.drafts(None).choose(64) == 3


@pytest.mark.parametrize(
    "ranges",
    [[[2, 8, 3]], [[1, 8, 3], [8, 9, 1]], [[9, 12, 1], [1, 8, 3]], [[1, 8, -1]], [[1, 8]], {"1": 3}, []],
)
async def test_a_bad_schedule_is_refused_after_the_weights_are_loaded(ranges):
    made = vllm(speculative(**{SCHEDULE_KEY: ranges}))
    with pytest.raises(LaunchError):
        made.after_load()


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6))
def test_gaps_and_the_tail_carry_the_length_on_and_too_long_ones_are_clamped(pieces):
    rows, start = [], 1
    for width, draft, gap in pieces:
        rows.append([start, start + width - 1, draft])
        start += width + gap
    made = launch(speculative(**{SCHEDULE_KEY: [[str(item) for item in row] for row in rows]}))
    assert made.late_error is None
    drafts, expected = made.drafts(None), 0
    for batch in range(1, start + 10):
        expected = next((draft for first, last, draft in rows if first <= batch <= last), expected)
        assert drafts.choose(batch) == min(expected, 3)


def test_ranks_drop_the_schedule_or_wait_for_each_other():
    schedule = speculative(**{SCHEDULE_KEY: [[1, 8, 3], [9, 64, 0]]})
    made = launch(schedule, "-dp", "2")
    assert made.warnings
    assert made.drafts(None).choose(30) == 3
    assert launch(schedule, "-dp", "2", version=(0, 25, 1)).deadlocks


async def test_before_the_guard_ranks_with_different_lengths_deadlock():
    schedule = speculative(**{SCHEDULE_KEY: [[1, 3, 3], [4, 64, 0]]})
    async with (
        server(schedule, "-dp", "2", server_version="0.25.1") as client,
        load_of(client, output_tokens=9000) as load,
    ):
        load.set_concurrency(7)
        await until(lambda: all(core.paused for core in client.server.cores))
        assert client.server.state == "ready"


def test_methods_without_a_schedule_drop_it():
    made = launch("-sc", json.dumps({"method": "suffix", "num_speculative_tokens": 3, SCHEDULE_KEY: [[1, 9, 0]]}))
    assert made.warnings
    assert made.drafts(None).choose(4) == 3


def test_adaptive_verification_chooses_shorter_drafts_as_the_batch_grows():
    truth = vllm().options.truth()
    drafts = launch(speculative(num_speculative_tokens=7, enable_adaptive_verification=True)).drafts(truth)
    chosen = [drafts.choose(batch) for batch in (1, 16, 64, 256, 512)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]


def test_the_batch_limit_is_the_smaller_of_two():
    assert launch().max_running_requests(True) == 1024
    assert launch().max_running_requests(False) == 256
    assert launch("--max-num-seqs=64", "--max-num-active-seqs=48").max_running_requests(True) == 48


def test_words_of_a_shell_script_are_found_with_its_variables():
    script = "set -e; exec vllm serve m --port 9 $EXTRA"
    made = launch(command=("sh", "-c", script), environ={"EXTRA": "--max-num-seqs 7"})
    assert (made.args.port, made.args.max_num_seqs) == (9, 7)
