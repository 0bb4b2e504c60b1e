"""Faults that all emulated servers share, as the scraper and the adapters meet them. None of them crashes anybody."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from tests.emulate.serving import make, serving, until

from crossover.engines import ENGINES
from crossover.observe.scraper import Scraper, Unusable

COMMANDS = {
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path=m", "--enable-metrics"),
    "vllm": ("vllm", "serve", "m"),
    "trtllm": ("trtllm-serve", "m", "--host=0.0.0.0", "--set", "return_perf_metrics=true"),
}
TYPES = {"sglang": "SGLang", "vllm": "VLLM", "trtllm": "TensorRTLLM"}


def server(engine, **options):
    return serving(make(engine, COMMANDS[engine], **{"time_scale": 10.0, **options}))


async def scraped(client, engine, timeout_seconds=0.5):
    """The reading of our own scraper and adapter, or why there is none."""
    adapter = ENGINES[TYPES[engine]]
    host, port = client.base.removeprefix("http://").split(":")
    async with Scraper(timeout_seconds=timeout_seconds) as scraper:
        try:
            answers = await scraper.first_group(host, int(port), adapter.load_paths(None))
        except Unusable as unusable:
            return str(unusable.fault)
    reading = adapter.read(answers, 0.0, None)
    return str(reading.fault) if reading.fault is not None else reading


def completion(tokens):
    return {"model": "m", "prompt": "a b", "max_tokens": tokens}


@pytest.mark.parametrize("engine", COMMANDS)
@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("html", "NotMetrics"),
        ("http-503", "HTTPStatus"),
        ("metrics-off", "MetricsOff"),
        ("hang", "TimedOut"),
        ("huge", "TooLarge"),
        ("close", "Unreachable"),
    ],
)
async def test_a_fault_of_the_endpoint_is_told_by_its_name(engine, fault, seen):
    async with server(engine, fault=fault) as client:
        assert await scraped(client, engine) == seen
        await client.post("/emulator/faults", {"faults": []})
        assert not isinstance(await scraped(client, engine), str)


@pytest.mark.parametrize("engine", COMMANDS)
@pytest.mark.parametrize("status", [429, 503])
async def test_requests_are_refused_while_metrics_go_on(engine, status):
    async with server(engine, fault=f"refuse-{status}") as client:
        assert (await client.post("/v1/completions", completion(2)))[0] == status
        assert not isinstance(await scraped(client, engine), str)
        await client.post("/emulator/faults", {"faults": []})
        assert (await client.post("/v1/completions", completion(2)))[0] == 200


@pytest.mark.parametrize("engine", COMMANDS)
async def test_a_page_that_ends_in_the_middle_gives_no_wrong_number(engine):
    async with server(engine, fault="truncated") as client:
        await client.post("/v1/completions", completion(20))
        found = await scraped(client, engine)
    if not isinstance(found, str):
        for scheduler in found.schedulers:
            assert scheduler.running_requests in (None, 0)


@pytest.mark.parametrize("engine", COMMANDS)
async def test_a_hanging_engine_keeps_its_requests_and_goes_on(engine):
    async with server(engine) as client:
        post = asyncio.create_task(client.post("/v1/completions", completion(3000)))
        core = client.server.cores[0]
        await until(lambda: core.counters.output_tokens > 3)
        await client.post("/emulator/faults", {"faults": ["hang-engine"]})
        await asyncio.sleep(0.05)
        tokens = core.counters.output_tokens
        await asyncio.sleep(0.1)
        assert core.counters.output_tokens == tokens
        assert len(core.running) == 1
        await client.post("/emulator/faults", {"faults": []})
        status, text = await post
    assert status == 200
    assert json.loads(text)["usage"]["completion_tokens"] == 3000


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
async def test_stale_gauges_keep_what_they_show(engine):
    async with server(engine) as client:
        view = client.server.views[0]
        posts = [asyncio.create_task(client.post("/v1/completions", completion(4000))) for _ in range(5)]
        name = "num_running_reqs" if engine == "sglang" else "num_requests_running"
        await until(lambda: view.gauges.get(name) == 5)
        await client.post("/emulator/faults", {"faults": ["stale-gauges"]})
        client.server.abort_all()
        await asyncio.gather(*posts)
        await client.post("/v1/completions", completion(200))
        assert view.gauges[name] == 5
        await client.post("/emulator/faults", {"faults": []})
        await client.post("/v1/completions", completion(200))
        await until(lambda: view.gauges[name] == 0)


@pytest.mark.parametrize("engine", COMMANDS)
async def test_a_stream_that_its_client_leaves_is_aborted(engine):
    async with server(engine) as client:
        body = {**completion(100_000), "stream": True}
        with contextlib.suppress(aiohttp.ClientError, asyncio.CancelledError):
            async with client.session.post("/v1/completions", json=body) as answer:
                await answer.content.readany()
        await until(lambda: client.server.idle)
        assert client.server.cores[0].counters.aborted == 1


@pytest.mark.parametrize("engine", COMMANDS)
async def test_a_prompt_larger_than_the_cache_is_refused(engine):
    async with server(engine, kv_tokens=64) as client:
        status, text = await client.post("/v1/completions", {"model": "m", "prompt": "a " * 80, "max_tokens": 1})
    assert status == 400
    assert "message" in json.loads(text)["error"]


@pytest.mark.parametrize("engine", COMMANDS)
async def test_witnesses_learn_when_the_batch_passed_a_key(engine):
    async with server(engine, watch="3") as client:
        await asyncio.gather(*(client.post("/v1/completions", completion(200)) for _ in range(5)))
        await client.post("/v1/completions", completion(20))
        truth = json.loads((await client.get("/emulator/truth"))[1])
    crossings = truth["ranks"][0]["crossings"]
    assert [(item["key"], item["above"]) for item in crossings] == [(3, True), (3, False)]
    assert crossings[0]["at"] < crossings[1]["at"]
    assert truth["ranks"][0]["finished_total"] == 6
