"""`crossover emulate` as a process, as the stand-in kubelet starts it: start-up states, inspection, SIGTERM, exit statuses."""

import asyncio
import json
import os
import signal
import sys

import aiohttp
import pytest
from tests.emulate.serving import ADDRESS

SPEC = json.dumps({"method": "eagle3", "num_speculative_tokens": 3})
COMMANDS = {
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path=m", "--enable-metrics", "--port={port}"),
    "vllm": ("vllm", "serve", "m", "--port={port}", "--shutdown-timeout=30", "--speculative-config", SPEC),
    "trtllm": ("trtllm-serve", "m", "--host=0.0.0.0", "--port={port}", "--set", "return_perf_metrics=true"),
}
PORTS = {"sglang": 31801, "vllm": 31802, "trtllm": 31803}


async def start(engine, *command, flags="--startup-seconds 0.6 --drain-poll-seconds 0.05"):
    words = ["-m", "crossover", "emulate", engine, "--address", ADDRESS, "--", *command]
    env = {**os.environ, "EMULATE_FLAGS": flags}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, *words, env=env, stdout=pipe, stderr=pipe)


async def status(session, url):
    try:
        async with session.get(url) as answer:
            return answer.status
    except aiohttp.ClientConnectorError:
        return 0


async def inspected(base):
    words = ["-m", "crossover", "inspect", base, "--json"]
    made = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    out, _ = await made.communicate()
    return made.returncode, json.loads(out)


@pytest.mark.parametrize("engine", COMMANDS)
async def test_it_starts_is_inspected_and_drains(engine):
    port = PORTS[engine]
    base = f"http://{ADDRESS}:{port}"
    process = await start(engine, *(word.replace("{port}", str(port)) for word in COMMANDS[engine]))
    try:
        async with aiohttp.ClientSession() as session:
            seen = []
            while not seen or seen[-1] != 200:
                found = await status(session, base + "/v1/models")
                seen += [] if seen and seen[-1] == found else [found]
                await asyncio.sleep(0.01)
                assert process.returncode is None
            assert seen[0] == 0, "nobody listens while it loads"
            assert (503 in seen) == (engine != "vllm"), seen
            returned, found = await inspected(base)
            assert (returned, found["engine"].lower().replace("tensorrtllm", "trtllm")) == (0, engine)
            assert [scheduler["running_requests"] for scheduler in found["schedulers"]] == [0]
            body = {"model": "m", "prompt": "a", "max_tokens": 150}
            running = asyncio.create_task(session.post(base + "/v1/completions", json=body))
            while not json.loads(await (await session.get(base + "/emulator/truth")).text())["ranks"][0]["running"]:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = await running
            assert (await answer.json())["usage"]["completion_tokens"] == 150, "what ran was finished"
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("engine", "command", "code", "said"),
    [
        ("sglang", ("-m", "sglang.launch_server", "--speculative-algorithm=NONE"), 1, "NONE"),
        ("vllm", ("vllm", "serve", "m", "--speculative-config", '{"method": "eagle3"}'), 1, "num_speculative_tokens"),
        ("trtllm", ("trtllm-serve", "m", "--set", "speculative_config.decoding_type=Eagle9"), 1, "decoding_type"),
        ("nothing", (), 2, "nothing"),
    ],
)
async def test_what_the_server_refuses_ends_it_with_its_message(engine, command, code, said):
    process = await start(engine, *command, flags="--startup-seconds 0.1")
    _, errors = await process.communicate()
    assert process.returncode == code
    assert said in errors.decode()


async def test_a_flag_that_cannot_be_used_is_named():
    process = await start("vllm", flags="--acceptance 2")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert "--acceptance" in errors.decode()
