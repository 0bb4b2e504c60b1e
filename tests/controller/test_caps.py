"""Keeping a live cap on a fleet's pods: once, again after a restart, gone with its reason, refused aloud."""

import json
from dataclasses import replace

import pytest
from tests.decide.fleets import NOW, fleet

from crossover.api.decision import CapDecision, DecisionReason
from crossover.api.fleet import Capability, EngineType
from crossover.controller.caps import LOOK_AGAIN_SECONDS, Caps
from crossover.engines.contract import Answer
from crossover.report.texts import Reason

LIMIT = 64
ABLE = Capability(
    EngineType.SGLANG, "0.5.23", None, live_running_cap="x", running_cap=LIMIT, running_cap_at_start=LIMIT
)


class Server:
    """A pod that takes what it is asked for, unless told otherwise."""

    def __init__(self):
        self.cap, self.posts, self.status, self.ignores = LIMIT, 0, 200, False

    async def get(self, path):
        state = {"pp_max_micro_batch_size": self.cap, "effective_max_running_requests_per_dp": LIMIT}
        return Answer(path, self.status, json.dumps({"internal_states": [state]}).encode())

    async def post(self, path, body):
        self.posts += 1
        if not self.ignores:
            self.cap = json.loads(body)["server_args"]["pp_max_micro_batch_size"]
        return Answer(path, 200, b"[true]")


class Fleet:
    """Two pods and the caps kept on them."""

    def __init__(self):
        self.servers = {"127.1.0.1": Server(), "127.1.0.2": Server()}
        self.caps, self.now = Caps(), NOW
        base = fleet(10, 10, capability=ABLE)
        self.pods = tuple(replace(pod, address=f"127.1.0.{n}") for n, pod in enumerate(base.pods, 1))
        self.base = base

    async def tick(self, wanted, *, seconds=5.0):
        self.now += seconds
        decision = None
        if wanted != "off":
            decision = CapDecision(None, wanted, DecisionReason.ADMISSION_BREAKS_TARGET, "80 ms, target 40 ms")
        snapshot = replace(self.base, pods=self.pods, at_seconds=self.now)
        return await self.caps.keep(lambda address, port: self.servers[address], snapshot, decision)

    @property
    def in_force(self):
        return [server.cap for server in self.servers.values()]

    @property
    def posts(self):
        return sum(server.posts for server in self.servers.values())


@pytest.fixture
def two():
    return Fleet()


async def test_a_new_cap_goes_to_every_pod_once_and_is_told_once(two):
    done, problems = await two.tick(32)
    assert (two.in_force, problems) == ([32, 32], ())
    (told,) = done
    assert (told.summary, told.reason) == ("running cap none -> 32", Reason.RUNNING_CAP_CHANGED)
    assert "80 ms" in told.message
    assert await two.tick(32) == ((), ())
    assert two.posts == 2


async def test_a_fleet_without_a_cap_is_not_even_asked(two):
    for server in two.servers.values():
        server.status = 500
    assert await two.tick(None) == ((), ())
    assert await two.tick("off") == ((), ())


async def test_after_a_restart_of_the_container_it_is_put_back_and_told(two):
    await two.tick(32)
    two.servers["127.1.0.1"].cap = LIMIT
    two.pods = (replace(two.pods[0], restarts=1), two.pods[1])
    done, _ = await two.tick(32)
    assert two.in_force == [32, 32]
    assert [item.reason for item in done] == [Reason.RUNNING_CAP_PUT_BACK]
    assert two.pods[0].name in done[0].summary


async def test_a_process_replaced_inside_its_container_is_noticed_by_what_it_says_of_itself(two):
    await two.tick(32)
    two.servers["127.1.0.1"].cap = LIMIT
    two.pods = (replace(two.pods[0], capability=replace(ABLE, max_running_requests=1)), two.pods[1])
    await two.tick(32)
    assert two.in_force == [32, 32]


async def test_it_is_looked_at_again_now_and_then(two):
    await two.tick(32)
    two.servers["127.1.0.2"].cap = 50
    await two.tick(32, seconds=LOOK_AGAIN_SECONDS)
    assert two.in_force == [32, 32]


async def test_a_new_pod_gets_it(two):
    two.pods, late = two.pods[:1], two.pods[1]
    await two.tick(32)
    two.pods = (*two.pods, late)
    await two.tick(32)
    assert two.in_force == [32, 32]


async def test_taken_away_when_nobody_needs_it_or_allows_it(two):
    await two.tick(32)
    done, _ = await two.tick(None)
    assert two.in_force == [LIMIT, LIMIT]
    assert done[0].summary == "running cap 32 -> none"
    await two.tick(32)
    await two.tick("off")
    assert two.in_force == [LIMIT, LIMIT]


async def test_taken_away_also_from_a_pod_that_could_not_be_reached_at_first(two):
    await two.tick(32)
    two.servers["127.1.0.1"].status = 503
    await two.tick("off")
    assert two.in_force == [32, LIMIT]
    two.servers["127.1.0.1"].status = 200
    await two.tick("off", seconds=60)
    assert two.in_force == [LIMIT, LIMIT]


async def test_left_over_from_before_a_restart_of_the_operator_it_goes(two):
    two.servers["127.1.0.1"].cap = 20
    two.pods = (replace(two.pods[0], capability=replace(ABLE, running_cap=20)), two.pods[1])
    await two.tick(None)
    assert two.in_force == [LIMIT, LIMIT]


async def test_gone_with_the_model_autoscaler(two):
    await two.tick(32)
    assert two.caps.any_held
    await two.caps.release(lambda address, port: two.servers[address])
    assert two.in_force == [LIMIT, LIMIT]
    assert not two.caps.any_held


@pytest.mark.parametrize(
    ("change", "words"),
    [({"status": 401}, "Crossover reads no Secrets"), ({"ignores": True}, "does not show it afterwards")],
)
async def test_a_server_that_does_not_take_it_is_named_with_the_fix_and_not_asked_all_the_time(two, change, words):
    for name, value in change.items():
        setattr(two.servers["127.1.0.1"], name, value)
    _, (problem,) = await two.tick(32)
    assert problem.reason == Reason.RUNNING_CAP_REFUSED
    assert words in problem.message
    assert two.pods[0].name in problem.message
    before = two.posts
    _, problems = await two.tick(32)
    assert problems == (problem,)
    assert two.posts == before


async def test_an_engine_without_the_knob_is_left_alone(two):
    able = Capability(EngineType.VLLM, "0.33.0", None)
    two.pods = tuple(replace(pod, capability=able) for pod in two.pods)
    assert await two.tick(32) == ((), ())
