"""The live cap against the emulated SGLang: read back before it is believed, in every version that has the knob."""

import json

import pytest

from crossover.act.live import CapOutcome, hold
from crossover.emulate.load import ClosedLoop
from crossover.engines import ENGINES
from crossover.engines.contract import Answer
from crossover.engines.sglang import ENGINE
from crossover.observe.scraper import Scraper
from tests.emulate.serving import make, serving, until

KNOB = ENGINE.running_cap


def sglang(*args, **options):
    command = ["python3", "-m", "sglang.launch_server", "--model-path=tiny", "--enable-metrics", *args]
    return serving(make("sglang", command, None, **{"time_scale": 20.0, **options}))


def door_to(scraper, client):
    return scraper.door(client.base.split("//")[1].split(":")[0], int(client.base.rsplit(":", 1)[1]))


@pytest.mark.parametrize("version", ["0.5.3", "0.5.14", "0.5.23"])
async def test_a_cap_is_set_read_back_and_taken_away_again(version):
    async with sglang("--max-running-requests=64", server_version=version) as client, Scraper() as scraper:
        door = door_to(scraper, client)
        done = await hold(door, KNOB, 16)
        assert (done.outcome, done.cap) == (CapOutcome.APPLIED, 16)
        assert [core.running_cap for core in client.server.cores] == [16]
        assert (await hold(door, KNOB, 16)).outcome is CapOutcome.IN_FORCE
        gone = await hold(door, KNOB, None)
        assert (gone.outcome, gone.cap) == (CapOutcome.APPLIED, 64)


async def test_newcomers_wait_and_nobody_is_evicted():
    async with (
        sglang("--max-running-requests=64") as client,
        ClosedLoop(lambda: [client.base], output_tokens=400) as load,
        Scraper() as scraper,
    ):
        load.set_concurrency(32)
        (core,) = client.server.cores
        await until(lambda: len(core.running) == 32)
        await hold(door_to(scraper, client), KNOB, 8)
        assert len(core.running) > 8
        await until(lambda: len(core.running) <= 8)
        await until(lambda: len(core.waiting) > 0)
        assert load.tally.failed == 0


async def test_every_data_parallel_rank_gets_it():
    async with sglang("--dp-size=2", "--max-running-requests=64") as client, Scraper() as scraper:
        assert (await hold(door_to(scraper, client), KNOB, 8)).outcome is CapOutcome.APPLIED
        assert [core.running_cap for core in client.server.cores] == [8, 8]


async def test_a_cap_above_the_limit_is_the_limit():
    async with sglang("--max-running-requests=64") as client, Scraper() as scraper:
        assert (await hold(door_to(scraper, client), KNOB, 500)).cap == 64


async def test_a_server_with_a_key_refuses_and_that_is_said():
    async with sglang("--api-key=secret") as client, Scraper() as scraper:
        assert (await hold(door_to(scraper, client), KNOB, 8)).outcome is CapOutcome.UNAUTHORIZED


async def test_a_version_without_the_knob_has_none():
    async with sglang(server_version="0.4.6") as client, Scraper() as scraper:
        assert (await hold(door_to(scraper, client), KNOB, 8)).outcome is CapOutcome.UNSUPPORTED


async def test_nobody_there_is_unreachable():
    async with Scraper(timeout_seconds=0.5) as scraper:
        assert (await hold(scraper.door("127.99.9.9", 9), KNOB, 8)).outcome is CapOutcome.UNREACHABLE


class Liar:
    """SGLang before 0.5.15: true for a key that it ignored."""

    def __init__(self):
        state = {"pp_max_micro_batch_size": 64, "effective_max_running_requests_per_dp": 64}
        self.info = {"max_running_requests": 64, "internal_states": [state], "api_key": "secret"}

    async def get(self, path):
        return Answer(path, 200, json.dumps(self.info).encode())

    async def post(self, path, body):
        return Answer(path, 200, b"[true]")


async def test_set_internal_state_that_says_true_and_does_nothing_is_not_believed():
    done = await hold(Liar(), KNOB, 16)
    assert (done.outcome, done.cap) == (CapOutcome.NOT_TAKEN, 64)
    assert "secret" not in repr(done)


async def test_a_cap_that_the_user_started_the_server_with_is_what_comes_back():
    liar = Liar()
    liar.info["pp_max_micro_batch_size"] = 48
    assert KNOB.state(await liar.get("/server_info")).at_start == 48


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"internal_states": [null]}', b'{"internal_states": [{"pp_max_micro_batch_size": 0}]}'],
)
def test_a_server_that_shows_no_state_has_no_knob(body):
    """internal_states[0] is null with data parallelism in some builds."""
    assert KNOB.state(Answer("/server_info", 200, body)) is None


def test_pipeline_stages_share_the_limit():
    state = {"pp_max_micro_batch_size": 32, "effective_max_running_requests_per_dp": 64}
    answer = Answer("/server_info", 200, json.dumps({"pp_size": 2, "internal_states": [state]}).encode())
    assert KNOB.state(answer).most == 32


def test_only_sglang_has_such_a_knob():
    assert [engine.type for engine in ENGINES.values() if engine.running_cap is not None] == [ENGINE.type]
