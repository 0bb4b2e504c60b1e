"""The emulated TensorRT-LLM in all its servers: pages beside the fixtures, drained JSON, schedules in both meanings, traps."""

import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.emulate.serving import assert_subset, make, serving, shape, until

from crossover.commands import inspect
from crossover.emulate.commands import LaunchError
from crossover.emulate.load import ClosedLoop
from crossover.emulate.requests import Request
from crossover.emulate.server import State
from crossover.emulate.trtllm_args import Form, parse
from crossover.engines import detect
from crossover.engines.contract import Answer
from crossover.engines.tensorrt_llm import ENGINE, PROMETHEUS
from crossover.observe.scraper import Scraper

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"
EAGLE = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/m/draft"}
STATS = {"enable_iter_perf_stats": True, "return_perf_metrics": True, "max_batch_size": 256, "tensor_parallel_size": 2}
CHAT = "/v1/chat/completions"
FILE = "/config/llm.yaml"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "config").mkdir()
    return tmp_path


def write(root, **document):
    (root / FILE.lstrip("/")).write_text(yaml.safe_dump(document))


def trtllm(root, *args, command=("trtllm-serve", "/m", "--host=0.0.0.0"), environ=None, document=None, **options):
    write(root, **(STATS if document is None else document))
    config = [] if command[0] != "trtllm-serve" else ["--config", FILE]
    return make("trtllm", [*command, *config, *args], environ, **{"time_scale": 10.0, "root": root, **options})


def server(root, *args, **options):
    """A server that is up."""
    return serving(trtllm(root, *args, **options))


def speculative(**more):
    return {**STATS, "speculative_config": {**EAGLE, **more}}


def chat(tokens, words=4, **more):
    return {"model": "m", "messages": [{"role": "user", "content": "a " * words}], "max_tokens": tokens, **more}


def load_of(client, **more):
    return ClosedLoop(lambda: [client.base], path=CHAT, **{"output_tokens": 60, **more})


def page(name):
    return (METRICS / f"trtllm-{name}").read_text()


def codes(reading):
    return {trap.code for trap in reading.traps}


async def read(client, path=PROMETHEUS, now=0.0, previous=None):
    return ENGINE.read(await client.answers(path), now, previous)


def values(text, name):
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return [float(line.rpartition(" ")[2]) for line in lines]


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "fixture"), [(speculative(), "1.3-serve-b64-spec.prom"), (STATS, "1.3-serve-b64-nospec.prom")]
)
async def test_names_types_labels_and_buckets_are_those_of_1_3(root, document, fixture):
    async with server(root, document=document) as client:
        await asyncio.gather(*(client.post(CHAT, chat(30, words=40)) for _ in range(8)))
        _, text = await client.get(PROMETHEUS)
    real = page(fixture)
    assert_subset(text, real)
    never = {"trtllm_request_error_total", "trtllm_kv_cache_reused_blocks_total"}
    assert set(shape(real)) - set(shape(text)) == never, "what has not happened yet is absent"


async def test_a_fresh_server_shows_no_iteration(root):
    async with server(root, document=speculative()) as client:
        _, text = await client.get(PROMETHEUS)
        reading = await read(client)
    assert set(shape(text)) == set(shape(page("1.3-serve-idle-fresh.prom")))
    assert reading.schedulers[0].running_requests == 0


async def test_1_0_has_five_families_without_prefix_and_with_undefined_labels(root):
    async with server(root, server_version="1.1.0") as client:
        await client.post(CHAT, chat(20))
        _, text = await client.get(PROMETHEUS)
        reading = await read(client)
    families = {name.replace("_bucket", "").replace("_sum", "").replace("_count", "") for name in shape(text)}
    assert len(families) == 5
    assert 'model_name="undefined"' in text
    assert "NoBatchGauge" in codes(reading)


async def test_1_2_has_the_prefix_and_the_cache_and_no_batch(root):
    async with server(root, server_version="1.2.1") as client:
        await client.post(CHAT, chat(20))
        _, text = await client.get(PROMETHEUS)
    assert_subset(text, page("1.3-serve-b64-nospec.prom"))
    assert "trtllm_kv_cache_utilization" in text
    assert "num_requests_running" not in text


@pytest.mark.parametrize(
    ("version", "document", "fixture"),
    [
        ("1.3.0rc29", speculative(), "1.3-serve-metrics-b64-spec.json"),
        ("1.2.1", STATS, "1.2-serve-metrics-b64-nospec.json"),
    ],
)
async def test_json_records_have_the_fields_of_their_version(root, version, document, fixture):
    async with server(root, document=document, server_version=version) as client:
        await client.post(CHAT, chat(20))
        records = json.loads((await client.get("/metrics"))[1])
    real = json.loads(page(fixture))[0]
    assert list(records[0]) == list(real)
    for part in ("kvCacheStats", "inflightBatchingStats", "specDecodingStats"):
        assert (records[0][part] is None) == (real[part] is None)
        assert set(records[0][part] or ()) == set(real[part] or ())
    for record in records:
        cache, batch = record["kvCacheStats"], record["inflightBatchingStats"]
        assert cache["freeNumBlocks"] + cache["usedNumBlocks"] == cache["maxNumBlocks"]
        assert batch["numContextRequests"] + batch["numGenRequests"] == batch["numScheduledRequests"]
        assert record["numActiveRequests"] <= record["maxNumActiveRequests"]


DYNAMO = ("python3", "-m", "dynamo.trtllm", "--model-path=/m", f"--extra-engine-args={FILE}")


async def test_a_dynamo_worker_publishes_only_when_told_to(root):
    async with server(root, "--publish-metrics", command=DYNAMO, document=speculative()) as client:
        await client.post(CHAT, chat(20))
        _, text = await client.get("/metrics")
        assert (await client.get("/live"))[0] == 200
    assert_subset(text, page("dynamo-1.6-b64-spec.prom"))
    assert set(shape(text)) == set(shape(page("dynamo-1.6-b64-spec.prom")))
    async with server(root, command=DYNAMO, document=speculative()) as client, load_of(client) as load:
        load.set_concurrency(5)
        await until(lambda: len(client.server.cores[0].running) == 5)
        _, text = await client.get("/metrics")
        reading = await read(client, "/metrics")
    assert set(shape(text)) == set(shape(page("dynamo-1.6-idle-nopublish.prom")))
    assert "PublishMetricsOff" in codes(reading)
    assert reading.schedulers[0].running_requests == pytest.approx(5, abs=1)


async def test_a_publishing_dynamo_worker_is_fresh(root):
    environ = {"DYN_TRTLLM_PUBLISH_METRICS": "1"}
    async with (
        server(root, command=DYNAMO, document=speculative(), environ=environ) as client,
        load_of(client, output_tokens=50_000) as load,
    ):
        load.set_concurrency(7)
        await until(lambda: len(client.server.cores[0].running) == 7)
        await asyncio.sleep(0.2)
        reading = await read(client, "/metrics")
    assert reading.schedulers[0].running_requests == 7


async def test_nim_shows_six_series_and_no_speculation(root):
    async with (
        server(root, command=("/opt/nim/start.sh",), environ={"NIM_MODEL_PROFILE": "p"}) as client,
        load_of(client) as load,
    ):
        load.set_concurrency(4)
        await until(lambda: len(client.server.cores[0].running) == 4)
        _, text = await client.get("/v1/metrics")
        reading = await read(client, "/v1/metrics")
        assert (await client.get("/v1/health/ready"))[0] == 200
    assert_subset(text, page("nim-1.x-b64.prom"))
    assert set(shape(text)) == set(shape(page("nim-1.x-b64.prom")))
    assert reading.schedulers[0].running_requests == pytest.approx(4, abs=1)
    assert reading.schedulers[0].draft_tokens is None


def rows(text):
    """Names and labels without values: Triton's counters have no suffix, which the client's parser does not accept."""
    return {
        line.rpartition(" ")[0] if line[0] != "#" else line
        for line in text.splitlines()
        if "# TYPE" in line or line[0] != "#"
    }


async def test_classic_triton_shows_its_batcher_on_two_ports(root):
    async with server(root, command=("tritonserver", "--model-repository=/m")) as client:
        body = {"text_input": "a b c", "max_tokens": 12}
        status, text = await client.post("/v2/models/tensorrt_llm/generate", body)
        assert status == 200
        assert len(json.loads(text)["text_output"].split()) == 12
        events = await client.events("/v2/models/ensemble/generate_stream", body)
        assert len("".join(json.loads(event)["text_output"] for event in events).split()) == 12
        _, text = await client.get("/metrics")
        reading = await read(client, "/metrics")
        assert client.server.ports() == (8000, 8002)
    assert rows(text) == rows(page("triton-classic-b64-spec.prom"))
    assert reading.schedulers[0].running_requests == 0


async def test_tritons_port_of_metrics_has_nothing_else_and_is_read(root):
    emulated = trtllm(root, command=("tritonserver", "--model-repository=/m"))
    emulated.options = emulated.options.model_copy(update={"port": None, "address": "127.9.0.77"})
    async with emulated._runner() as runner:
        emulated.state = State.READY
        await emulated._listen(runner)
        async with Scraper(timeout_seconds=5) as scraper:
            for port, path, status in (
                (8002, "/metrics", 200),
                (8002, "/v2/health/ready", 400),
                (8000, "/metrics", 404),
                (8000, "/v2/health/ready", 200),
            ):
                assert (await scraper.fetch("127.9.0.77", port, path)).status == status
            answers = await scraper.first_group("127.9.0.77", 8002, ENGINE.load_paths(None))
    assert ENGINE.read(answers, 0.0, None).schedulers[0].running_requests == 0


async def test_an_operator_that_looks_for_triton_takes_no_iterations_from_trtllm_serve(root):
    async with server(root, document={**STATS, "return_perf_metrics": False}) as client:
        await client.post(CHAT, chat(20))
        async with Scraper(timeout_seconds=5) as scraper:
            base = urlsplit(str(client.base))
            answers = await scraper.first_group(base.hostname, base.port, ENGINE.load_paths(None))
        assert str(ENGINE.read(answers, 0.0, None).fault) == "MetricsOff"
        _, text = await client.get("/metrics")
    assert json.loads(text), "the iterations are still there"


async def test_tritons_llm_api_backend_has_no_sensor(root):
    environ = {"LLM_CONFIG_PATH": FILE}
    async with server(root, command=("tritonserver",), environ=environ, document=speculative()) as client:
        await client.post("/v2/models/tensorrt_llm/generate", {"text_input": "a", "max_tokens": 30})
        _, text = await client.get("/metrics")
        reading = await read(client, "/metrics")
        assert client.server.cores[0].counters.drafts > 0
    assert rows(text) == rows(page("triton-llmapi-b64-spec.prom"))
    assert "TritonLLMAPIHasNoSensor" in codes(reading)


@pytest.mark.parametrize(("command", "path"), [(DYNAMO, "/metrics"), (("tritonserver",), "/metrics")])
async def test_every_form_is_told_from_other_engines(root, command, path):
    async with server(root, command=command) as client:
        (answer,) = await client.answers(path)
    assert detect([answer]) is ENGINE


# -- counters ----------------------------------------------------------------------------------------------------------


async def test_counters_agree_when_all_is_done(root):
    async with server(root, document=speculative()) as client:
        await asyncio.gather(*(client.post(CHAT, chat(20 + n, words=5 + n)) for n in range(12)))
        _, text = await client.get(PROMETHEUS)
        counters = client.server.cores[0].counters
    assert values(text, "trtllm_generation_tokens_total") == [sum(20 + n for n in range(12))]
    assert values(text, "trtllm_prompt_tokens_total") == [sum(5 + n for n in range(12))]
    for name in ("request_success", "num_requests_completed"):
        assert values(text, f"trtllm_{name}_total") == [12]
    drafted = values(text, "trtllm_spec_decode_drafted_tokens_total")
    accepted = values(text, "trtllm_spec_decode_accepted_tokens_total")
    assert drafted == [counters.drafts] * 3
    assert values(text, "trtllm_spec_decode_num_draft_tokens_total") == [sum(drafted)]
    assert values(text, "trtllm_spec_decode_num_accepted_tokens_total") == [sum(accepted)] == [counters.accepted_tokens]


async def test_iterations_add_up_to_the_counters(root):
    async with server(root, document=speculative()) as client:
        await asyncio.gather(*(client.post(CHAT, chat(40)) for _ in range(5)))
        records = json.loads((await client.get("/metrics"))[1])
        counters = client.server.cores[0].counters
    spec = [record["specDecodingStats"] for record in records]
    assert sum(item["numDraftTokens"] for item in spec) == counters.draft_tokens
    assert sum(item["numAcceptedTokens"] for item in spec) == counters.accepted_tokens
    assert sum(item["numRequestsWithDraftTokens"] for item in spec) == counters.drafts
    assert sum(record["numCompletedRequests"] for record in records) == 5
    assert [record["iter"] for record in records] == sorted(record["iter"] for record in records)
    for item in spec:
        if item["numRequestsWithDraftTokens"]:
            length = 1 + item["numAcceptedTokens"] / item["numRequestsWithDraftTokens"]
            assert item["acceptanceLength"] == pytest.approx(length)


async def test_the_adapter_agrees_with_the_truth(root):
    async with (
        server(root, document=speculative(), acceptance=0.5, acceptance_spread=0, time_scale=1.0) as client,
        load_of(client, output_tokens=40) as load,
    ):
        load.set_concurrency(12)
        readings, previous = [], None
        for done in range(30, 130, 25):
            await until(lambda done=done: load.tally.done > done)
            previous = await read(client, now=float(done), previous=previous)
            readings += previous.schedulers
    last = readings[-1]
    assert last.max_running_requests == 256
    assert 6 <= last.running_requests <= 12
    assert [item.draft_tokens for item in readings[1:]] == [3.0] * 3
    assert last.acceptance_length == pytest.approx(1.875, rel=0.15)
    assert 1 + sum(last.accepted_tokens_by_position_total) / last.drafts_total == pytest.approx(1.875, rel=0.1)


# -- traps -------------------------------------------------------------------------------------------------------------


async def test_the_json_is_drained_by_each_get(root):
    async with server(root) as client:
        await client.post(CHAT, chat(20))
        assert len(json.loads((await client.get("/metrics"))[1])) >= 20
        assert json.loads((await client.get("/metrics"))[1]) == []
        reading = await read(client, "/metrics")
    assert {"DrainedJSON", "NoIterations"} <= codes(reading)


async def test_detection_takes_no_records_away(root):
    async with server(root) as client:
        await client.post(CHAT, chat(20))
        host, port = client.base.removeprefix("http://").split(":")
        async with Scraper() as scraper:
            answers, _ = await inspect._fetch(scraper, host, int(port), "/", None)
        assert detect(answers) is ENGINE
        assert len(json.loads((await client.get("/metrics"))[1])) >= 20


async def test_the_json_keeps_as_many_records_as_configured(root):
    async with server(root, document={**STATS, "iter_stats_max_iterations": 7}) as client:
        await client.post(CHAT, chat(50))
        assert len(json.loads((await client.get("/metrics"))[1])) == 7


async def test_both_endpoints_are_off_by_default(root, monkeypatch):
    monkeypatch.setattr("crossover.emulate.trtllm.EMPTY_SECONDS", 0.01)
    async with server(root, document={}) as client:
        await client.post(CHAT, chat(20))
        assert (await client.get("/metrics")) == (200, "[]")
        assert (await client.get(PROMETHEUS))[0] == 404
        assert (await read(client)).fault == "MetricsOff"


async def test_without_iteration_statistics_the_batch_gauge_is_all_there_is(root):
    document = {"return_perf_metrics": True}
    async with server(root, document=document) as client, load_of(client, output_tokens=20_000) as load:
        load.set_concurrency(3)
        await until(lambda: client.server.views[0].batch == 3)
        await client.post(CHAT, chat(5))
        _, text = await client.get(PROMETHEUS)
        reading = await read(client)
    assert "trtllm_num_requests_running" not in text
    assert reading.schedulers[0].running_requests == pytest.approx(3, abs=1)


async def test_gauges_move_only_when_a_request_ends(root):
    async with server(root, fault="no-batch-gauge") as client:
        await client.post(CHAT, chat(5))
        posts = [asyncio.create_task(client.post(CHAT, chat(30_000))) for _ in range(9)]
        await until(lambda: len(client.server.cores[0].running) == 9)
        await asyncio.sleep(0.1)
        reading = await read(client)
        assert reading.schedulers[0].running_requests < 9
        client.server.abort_all()
        await asyncio.gather(*posts)


async def test_the_running_gauge_goes_stale_at_idle_and_the_batch_gauge_does_not(root):
    async with server(root) as client:
        posts = [asyncio.create_task(client.post(CHAT, chat(100_000))) for _ in range(3)]
        await until(lambda: len(client.server.cores[0].running) == 3)
        await client.post(CHAT, chat(5))
        client.server.abort_all()
        await asyncio.gather(*posts)
        await until(lambda: client.server.views[0].batch == 0)
        _, text = await client.get(PROMETHEUS)
        reading = await read(client)
        assert values(text, "trtllm_num_requests_running") == [3]
        assert "IdleGaugesStale" in codes(reading)
        assert reading.schedulers[0].running_requests == 0
        client.server.set_faults("no-batch-gauge")
        first = await read(client)
        assert "GaugesMoveWhenRequestsEnd" in codes(first)
        second = await read(client, now=3600.0, previous=first)
        assert "IdleGaugesStale" in codes(second)


@pytest.mark.parametrize(("fault", "shown"), [("", False), ("whole-queue", True)])
async def test_the_queue_gauge_under_reports(root, fault, shown):
    document = {**STATS, "max_batch_size": 4}
    async with server(root, document=document, fault=fault) as client, load_of(client, output_tokens=200) as load:
        load.set_concurrency(12)
        await until(lambda: load.tally.done > 8)
        seen = [await read(client) for _ in range(5)]
        assert len(client.server.cores[0].waiting) > 4
    assert all(reading.schedulers[0].max_running_requests == 4 for reading in seen)
    if shown:
        assert max(reading.schedulers[0].waiting_requests for reading in seen) > 4
    else:
        assert any("QueueUnderReports" in codes(reading) for reading in seen)
        assert max(reading.schedulers[0].waiting_requests for reading in seen) < 4


async def test_a_band_of_0_freezes_the_draft_counters_and_shows_length_0(root):
    document = speculative(draft_len_schedule={4: 3})
    async with server(root, document=document) as client, load_of(client, output_tokens=20_000) as load:
        load.set_concurrency(12)
        await until(lambda: len(client.server.cores[0].running) == 12)
        await client.post(CHAT, chat(5))
        reading = await read(client)
        _, text = await client.get(PROMETHEUS)
    assert "DraftOffBySchedule" in codes(reading)
    assert "ConfigInfoDoesNotFollow" in codes(reading)
    assert 'spec_num_tokens="3"' in text
    assert (reading.schedulers[0].draft_tokens, reading.schedulers[0].acceptance_length) == (0.0, 1.0)


async def test_static_limits_are_0_and_draft_tokens_take_their_part_of_max_num_tokens(root):
    document = {**speculative(), "max_num_tokens": 64}
    async with server(root, document=document) as client:
        await client.post(CHAT, chat(5))
        (record, *_) = json.loads((await client.get("/metrics"))[1])
        assert json.loads((await client.get("/server_info"))[1])["max_batch_size"] == 256
    assert record["maxBatchSizeStatic"] == 0
    assert record["maxNumActiveRequests"] == 16
    reading = ENGINE.read([Answer("/metrics", 200, json.dumps([record]).encode())], 0.0, None)
    assert "StaticLimitsAreZero" in codes(reading)


async def test_tensor_parallel_ranks_repeat_the_batch(root):
    async with server(root) as client:
        assert "TensorParallelDuplicates" in codes(await read(client))


async def test_attention_ranks_have_records_of_their_own_and_the_gauges_one_of_them(root):
    document = {**STATS, "enable_attention_dp": True}
    async with server(root, document=document) as client, load_of(client, output_tokens=60) as load:
        load.set_concurrency(9)
        await until(lambda: load.tally.done > 20 and all(view.records for view in client.server.views))
        reading = await read(client, "/metrics")
        _, text = await client.get(PROMETHEUS)
        records = json.loads((await client.get("/metrics"))[1])
    assert len(reading.schedulers) == 2
    assert all(("numQueuedRequests" in record) == (record["attentionDpRank"] == 0) for record in records)
    assert len(values(text, "trtllm_num_requests_running")) == 1, "last rank wins"


async def test_the_acceptance_gate_is_a_latch_until_restart(root):
    document = speculative(acceptance_window=5, acceptance_length_threshold=1.6)
    async with server(root, document=document, acceptance=0.1) as client:
        for _ in range(6):
            await client.post(CHAT, chat(30))
        assert json.loads((await client.get("/emulator/truth"))[1])["ranks"][0]["gate_closed"]
        assert client.server.cores[0].draft_in_force == 0
        reading = await read(client)
        before = client.server.cores[0].counters.drafts
        await client.post(CHAT, chat(200))
        assert client.server.cores[0].counters.drafts == before
    assert reading.schedulers[0].running_requests == 0


async def test_a_good_draft_keeps_the_gate_open(root):
    document = speculative(acceptance_rate_window_size=5, acceptance_rate_threshold=0.3)
    async with server(root, document=document, acceptance=0.9) as client:
        for _ in range(6):
            await client.post(CHAT, chat(30))
        assert not client.server.cores[0].drafts.closed


async def test_a_request_that_never_fits_with_its_output_waits_and_nothing_is_paused(root):
    async with server(root, document=STATS, kv_tokens=600) as client, load_of(client, output_tokens=100) as load:
        load.set_concurrency(8)
        await until(lambda: load.tally.done > 10)
        assert client.server.cores[0].counters.retractions == 0
    paused = {**STATS, "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}}
    async with (
        server(root, document=paused, kv_tokens=600) as client,
        load_of(client, output_tokens=100, input_tokens=20) as load,
    ):
        load.set_concurrency(8)
        await until(lambda: client.server.cores[0].counters.retractions > 0)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [("html", "NotMetrics"), ("nan", None), ("metrics-off", "MetricsOff"), ("http-503", "HTTPStatus")],
)
async def test_faults_of_the_endpoint_are_told_apart(root, fault, seen):
    async with server(root, fault=fault) as client:
        reading = await read(client)
    assert reading.fault == seen
    if seen is None:
        assert reading.schedulers[0].running_requests is None


# -- life --------------------------------------------------------------------------------------------------------------


async def test_from_1_3_it_listens_at_once_and_says_that_it_starts(root):
    made = trtllm(root)
    assert made.listens_while_loading
    assert not trtllm(root, server_version="1.2.1").listens_while_loading
    async with serving(made, ready=False) as client, client.session.get("/health") as answer:
        assert answer.status == 503
        assert answer.headers["x-trtllm-server-state"] == "starting"
        assert "Retry-After" in answer.headers


async def test_without_a_host_nobody_outside_of_the_pod_connects(root):
    assert trtllm(root, command=("trtllm-serve", "/m")).unreachable()
    assert trtllm(root).unreachable() is None
    assert trtllm(root, command=("trtllm-serve", "/m"), address="127.0.0.1").unreachable() is None


async def test_sigterm_closes_the_port_and_waits_for_what_runs(root):
    async with server(root) as client:
        post = asyncio.create_task(client.post(CHAT, chat(500)))
        await until(lambda: client.server.cores[0].running)
        await client.server.drain()
        status, text = await post
        assert status == 200
        assert json.loads(text)["usage"]["completion_tokens"] == 500
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.ClientConnectorError):
                await other.get(client.base + "/health")


async def test_health_generate_takes_a_slot(root):
    async with server(root, document={**STATS, "max_batch_size": 1}) as client:
        assert (await client.get("/health_generate"))[0] == 200
        assert client.server.cores[0].counters.finished == 1


async def test_streams_end_with_usage(root):
    async with server(root, document=speculative()) as client:
        more = {"stream": True, "stream_options": {"include_usage": True}}
        events = await client.events(CHAT, chat(30, words=3, **more))
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["usage"]["completion_tokens"] == 30


async def test_acceptance_can_be_forced_as_the_engine_allows(root):
    environ = {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "1.4"}
    async with server(root, document=speculative(), acceptance=0.05, environ=environ) as client:
        await client.post(CHAT, chat(3000))
        counters = client.server.cores[0].counters
    assert 1 + counters.accepted_tokens / counters.drafts == pytest.approx(2.4, rel=0.05)


# -- arguments ---------------------------------------------------------------------------------------------------------


def launch(root, *args, version=(1, 3), environ=None, form="", command=("trtllm-serve", "/m"), **document):
    if document:
        write(root, **document)
        args = ("--config", FILE, *args)
    return parse([*command, *args], environ or {}, version, root, form)


def test_the_file_beats_flags_before_1_3_and_the_other_way_round_since(root):
    for version, size in (((1, 2), 256), ((1, 3), 8)):
        assert launch(root, "--max_batch_size=8", version=version, **STATS).max_batch == size
    assert launch(root, "--max-batch-size", "8", "--set", "max_batch_size=5", **STATS).max_batch == 5


def test_set_and_overrides_change_and_remove(root):
    assert launch(root, "--set", "speculative_config.max_draft_len=1", **speculative()).max_draft == 1
    assert launch(root, "--set=speculative_config=null", **speculative()).config is None
    write(root, **speculative())
    for override, length in (('{"speculative_config": {"max_draft_len": 2}}', 2), ('{"speculative_config": null}', 0)):
        for args, environ in (
            (("--override-engine-args", override), {}),
            ((), {"DYN_TRTLLM_OVERRIDE_ENGINE_ARGS": override}),
        ):
            made = parse([*DYNAMO, *args], environ, (1, 3), root)
            assert (made.form, made.max_draft) == (Form.DYNAMO, length)


def test_the_same_schedule_means_the_opposite_before_and_since_1_3(root):
    table = {"decoding_type": "NGram", "max_draft_len": 4, "draft_len_schedule": {1: 4, 4: 2, 8: 0}}
    lower = launch(root, version=(1, 2), speculative_config=table).drafts()
    assert [lower.choose(batch) for batch in (1, 3, 4, 7, 8, 99)] == [4, 4, 2, 2, 0, 0]
    upper = launch(
        root, version=(1, 3), speculative_config={**table, "draft_len_schedule": {4: 4, 8: 2, 32: 1}}
    ).drafts()
    assert [upper.choose(batch) for batch in (1, 4, 5, 8, 9, 32, 33)] == [4, 4, 2, 2, 1, 1, 0]


def test_one_model_accepts_and_ignores_a_schedule_before_1_3(root):
    for more in ({"draft_len_schedule": {1: 3, 8: 0}}, {"max_concurrency": 8}):
        made = launch(root, version=(1, 2), **speculative(**more)).drafts()
        assert made.choose(100) == 3
    two = launch(root, version=(1, 2), **speculative(max_concurrency=8, eagle3_one_model=False)).drafts()
    assert (two.choose(8), two.choose(9)) == (3, 0)


def test_max_concurrency_is_one_band_since_1_3(root):
    made = launch(root, **speculative(max_concurrency=8)).drafts()
    assert (made.choose(8), made.choose(9)) == (3, 0)


def test_where_0_is_unsafe_the_floor_is_1(root):
    table = {4: 3, 8: 0}
    assert launch(root, **speculative(draft_len_schedule=table)).drafts().choose(8) == 0
    for kind in ("PARD", "Draft_Target", "MTP"):
        made = launch(root, **speculative(decoding_type=kind, draft_len_schedule=table)).drafts()
        assert (made.choose(8), made.choose(99)) == (1, 1)


def test_auto_is_the_n_gram_heuristic(root):
    made = launch(root, speculative_config={"decoding_type": "AUTO"}).drafts()
    assert [made.choose(batch) for batch in (4, 5, 32, 33)] == [5, 3, 3, 0]
    assert made.drafts_free


@pytest.mark.parametrize(
    ("config", "version"),
    [
        ({"no_such_key": 1}, (1, 3)),
        ({"max_draft_len": 0}, (1, 3)),
        ({"decoding_type": "Eagle9"}, (1, 3)),
        ({"draft_len_schedule": {4: 2}}, (1, 3)),
        ({"draft_len_schedule": {0: 3}}, (1, 3)),
        ({"draft_len_schedule": {4: 3, 8: 9}}, (1, 3)),
        ({"draft_len_schedule": {4: 3}, "max_concurrency": 4}, (1, 3)),
        ({"draft_len_schedule": {4: 3}}, (1, 2)),
    ],
)
def test_what_the_strict_classes_refuse_ends_the_start(root, config, version):
    with pytest.raises(LaunchError):
        launch(root, version=version, **speculative(**config))


@given(st.dictionaries(st.integers(1, 40), st.integers(0, 4), min_size=1, max_size=5), st.booleans())
def test_schedules_are_step_functions_of_the_batch(tmp_path_factory, table, upper):
    folder = tmp_path_factory.mktemp("c")
    (folder / "config").mkdir()
    first = 1 if not upper else min(table)
    table = {**table, first: 4}
    config = {"decoding_type": "NGram", "max_draft_len": 4, "draft_len_schedule": table}
    drafts = launch(folder, version=(1, 3) if upper else (1, 2), speculative_config=config).drafts()
    for batch in range(1, 50):
        if upper:
            expected = next((table[key] for key in sorted(table) if batch <= key), 0)
        else:
            expected = table[max(key for key in table if key <= batch)]
        assert drafts.choose(batch) == expected


def test_the_gate_ignores_requests_that_never_decoded(root):
    gate = launch(root, **speculative(acceptance_window=1, acceptance_length_threshold=2.0)).drafts()
    gate.ended(Request(1, 1, 1, 0.0))
    assert not gate.closed
    gate.ended(Request(1, 1, 9, 0.0, verify_steps=8, accepted_tokens=2))
    assert gate.closed
    assert gate.choose(1) == 0
