"""Measuring on virtual time: what comes out against the truth that was put in, and every fault by its name."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from crossover.api.fleet import EngineType
from crossover.calibrate.contract import (
    CaveatCode,
    FailureReason,
    MeasureFailure,
    Phase,
    Precision,
    Route,
    Server,
)
from crossover.calibrate.measure import describe, measure
from crossover.calibrate.workload import Workload
from crossover.decide.step_model import PRESETS
from crossover.decide.variant import GATED, OFF, Variant
from tests.calibrate.virtual import Truth, VirtualServer, run

LOAD = Workload.fixed(100, 200)
SECRET = "secret detail"


def truth(draft=3, **more):
    return Truth(Variant(draft) if draft else OFF, **more)


def measured(server, running, *, workload=LOAD, cpu=lambda: 0.0, precision=None, progress=None, **about):
    """describe and measure on one virtual server."""

    async def both():
        async with httpx.AsyncClient(transport=server) as http:
            described = await describe(Server("http://virtual", **about), http=http)
            return described, await measure(
                described, running, workload, http=http, cpu_seconds=cpu, precision=precision, progress=progress
            )

    return run(both())


def failure(server, running=4, **about):
    """The failure, and the promise that it carries nothing that the server said."""
    with pytest.raises(MeasureFailure) as caught:
        measured(server, running, precision=Precision(most_seconds=60), **about)
    assert SECRET not in str(caught.value)
    assert "models" not in str(caught.value) or "/v1/models" in str(caught.value)
    return caught.value


def codes(found):
    return {caveat.code for caveat in found.caveats}


# -- the numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize("running", [1, 16])
def test_step_time_batch_and_acceptance_are_the_truths(engine, draft, running):
    hidden = truth(draft)
    described, found = measured(VirtualServer(hidden, engine), running)
    assert described.variant == hidden.variant
    point = found.point
    assert point.running_requests == pytest.approx(running, rel=0.01)
    assert point.asked_running_requests == running
    expected = hidden.step_seconds(point.running_requests, point.running_requests * point.context_tokens)
    assert point.step_seconds == pytest.approx(expected, rel=0.03), "prompts take some of the time"
    if draft:
        accepted = sum(0.67**place for place in range(1, 4))
        assert point.acceptance_length == pytest.approx(1 + accepted, rel=3 * point.acceptance_error)
        assert point.acceptance_error < 0.06
    else:
        assert point.acceptance_length == 1.0
        assert point.off
    assert point.output_tokens_per_second == pytest.approx(found.client_tokens_per_second, rel=0.03)
    per_token = point.running_requests / point.output_tokens_per_second
    assert found.time_per_output_token.mean == pytest.approx(per_token, rel=0.05)
    assert found.time_to_first_token.mean is not None
    assert not codes(found) - {CaveatCode.NO_STEADY_STATE}


def test_acceptance_per_position_where_it_is_served():
    _, found = measured(VirtualServer(truth(3)), 16)
    assert found.point.acceptance_by_position == pytest.approx((0.67, 0.67**2, 0.67**3), rel=0.06)


def test_many_requests_stream_only_in_part_and_the_batch_is_still_right():
    """Beyond 16 streams the others come in one piece; first tokens are known from those that stream."""
    _, found = measured(VirtualServer(truth(0)), 64, precision=Precision(relative_error=0.02))
    assert found.point.running_requests == pytest.approx(64, rel=0.01)


def test_it_stops_early_when_the_answer_is_clear_and_late_when_it_is_not():
    _, sure = measured(VirtualServer(truth(0)), 8)
    _, noisy = measured(VirtualServer(truth(0, noise=0.4)), 8)
    assert sure.seconds < noisy.seconds
    assert sure.point.relative_error <= 0.005


def test_what_does_not_become_steady_is_said():
    slow = truth(0, factor=lambda variant, running: 1.0, noise=0.9)
    _, found = measured(VirtualServer(slow), 4, precision=Precision(relative_error=0.001, most_seconds=8))
    assert CaveatCode.NO_STEADY_STATE in codes(found)
    assert found.is_usable


def test_a_counter_that_moves_only_when_requests_end_is_not_trusted():
    """As older SGLang and trtllm-serve count. The clients' rate is used, and nobody else is blamed for the difference."""
    hidden = truth(0)
    _, found = measured(VirtualServer(hidden, "sglang", lumpy=True), 8)
    expected = hidden.step_seconds(8, 8 * found.point.context_tokens)
    assert found.point.step_seconds == pytest.approx(expected, rel=0.03)
    assert found.point.output_tokens_per_second == found.client_tokens_per_second
    assert not codes(found) & {CaveatCode.OTHER_TRAFFIC, CaveatCode.SEVERAL_SERVERS}


def test_progress_is_told():
    seen = []
    measured(VirtualServer(truth(0)), 8, progress=seen.append)
    assert {item.phase for item in seen} == {Phase.WARMING_UP, Phase.MEASURING}
    assert all(0 <= item.share <= 1 for item in seen)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS, Route.GENERATE])
def test_every_route(route):
    _, found = measured(VirtualServer(truth(3), "sglang"), 4, route=route)
    assert found.requests > 0
    assert found.point.acceptance_length == pytest.approx(2.42, rel=0.05)


def test_lengths_of_a_trace():
    workload = Workload.of_trace("t_s,input_tokens,output_tokens\n0,374,44\n1,50,180\n2,90,90\n")
    _, found = measured(VirtualServer(truth(0)), 8, workload=workload)
    assert found.point.context_tokens == pytest.approx(workload.context_tokens, rel=0.1)


def test_a_limit_of_the_server_is_met_and_said():
    _, found = measured(VirtualServer(truth(0), limit=8), 24)
    assert CaveatCode.LIMIT_MET in codes(found)
    assert found.point.running_requests == pytest.approx(8, rel=0.02)
    assert found.is_usable


def test_cancelling_leaves_nothing_running():
    server = VirtualServer(truth(0))

    async def stop():
        async with httpx.AsyncClient(transport=server) as http:
            described = await describe(Server("http://virtual"), http=http)
            task = asyncio.ensure_future(measure(described, 8, LOAD, http=http, cpu_seconds=lambda: 0.0))
            await asyncio.sleep(2)
            assert server.running
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(1)
            return len(server.running) + len(server.waiting)

    assert run(stop()) == 0


# -- what a server is --------------------------------------------------------------------------------------------------


def test_a_gated_engine_is_told_from_one_without_speculation():
    """Its counters of drafts exist and stand still."""
    described, found = measured(VirtualServer(Truth(GATED)), 4)
    assert described.variant == GATED
    assert not found.point.off
    assert found.point.draft_tokens == 0


def test_what_the_caller_knows_is_not_asked():
    server = VirtualServer(truth(3))
    described, _ = measured(server, 2, engine=EngineType.VLLM, variant=Variant(3))
    assert described.variant == Variant(3)


# -- faults ------------------------------------------------------------------------------------------------------------


def test_fault_metrics_off():
    """Nothing tells the draft length: refused; told by the caller, it is measured by the clients' clock, and that is said."""
    found = failure(VirtualServer(truth(3), metrics=False), engine=EngineType.VLLM)
    assert found.reason is FailureReason.METRICS_OFF
    assert "--disable-log-stats" in found.message
    _, alone = measured(VirtualServer(truth(3), metrics=False), 8, engine=EngineType.VLLM, variant=Variant(3))
    assert CaveatCode.METRICS_OFF in codes(alone)
    assert alone.is_usable
    _, seen = measured(VirtualServer(truth(3)), 8)
    assert alone.point.output_tokens_per_second == pytest.approx(seen.point.output_tokens_per_second, rel=0.05)
    assert alone.point.step_seconds is None, "without acceptance there is no step time"


def test_fault_wrong_model():
    found = failure(VirtualServer(truth(0)), model="another")
    assert found.reason is FailureReason.WRONG_MODEL
    assert "'another'" in found.message


def test_fault_auth_missing():
    server = VirtualServer(truth(0), token="t0k3n")
    found = failure(server)
    assert found.reason is FailureReason.UNAUTHORIZED
    assert "--token-file" in found.message
    _, good = measured(VirtualServer(truth(0), token="t0k3n"), 4, token="t0k3n")
    assert good.requests


def test_a_token_is_never_shown():
    assert "t0k3n" not in repr(Server("http://virtual", token="t0k3n"))


def test_fault_429_for_a_while_is_retried_with_backoff():
    _, found = measured(VirtualServer(truth(0), busy_until=6.0), 8, variant=OFF)
    assert CaveatCode.RETRIED in codes(found)
    assert found.point.running_requests == pytest.approx(8, rel=0.02)


def test_fault_429_for_ever_is_overloaded():
    found = failure(VirtualServer(truth(0), busy_until=1e9))
    assert found.reason is FailureReason.OVERLOADED
    assert found.is_retriable


def test_fault_crash_in_mid_sweep():
    found = failure(VirtualServer(truth(0), dies_at=3.0))
    assert found.reason is FailureReason.SERVER_DIED
    silent = failure(VirtualServer(truth(0), dies_at=3.0, metrics=False), engine=EngineType.VLLM, variant=OFF)
    assert silent.reason is FailureReason.SERVER_DIED


def test_fault_never_up():
    found = failure(VirtualServer(truth(0), dies_at=0.0))
    assert found.reason is FailureReason.UNREACHABLE
    assert found.is_retriable


def test_fault_restarted_while_it_was_measured():
    """Answers go on, but the counters begin again: the mean would be over two processes."""
    server = VirtualServer(truth(0))

    async def both():
        async with httpx.AsyncClient(transport=server) as http:
            described = await describe(Server("http://virtual"), http=http)
            asyncio.get_running_loop().call_later(2.0, setattr, server, "tokens", 0)
            return await measure(described, 4, LOAD, http=http, cpu_seconds=lambda: 0.0)

    with pytest.raises(MeasureFailure) as caught:
        run(both())
    assert caught.value.reason is FailureReason.SERVER_DIED


def test_fault_other_traffic():
    _, found = measured(VirtualServer(truth(0), foreign=6), 16)
    assert CaveatCode.OTHER_TRAFFIC in codes(found)
    assert not found.is_usable


def test_fault_the_address_balances_over_several_servers():
    """The counters that answer are those of one of them."""
    _, found = measured(VirtualServer(truth(0), hidden_share=0.5), 8)
    assert CaveatCode.SEVERAL_SERVERS in codes(found)
    assert not found.is_usable


def test_fault_generator_is_the_bottleneck():
    """This process uses a whole core: the server could do more."""
    spent = iter(range(10**6))
    _, found = measured(VirtualServer(truth(0)), 4, cpu=lambda: float(next(spent) * 100))
    assert CaveatCode.GENERATOR_IS_BOTTLENECK in codes(found)
    assert not found.is_usable


def test_fault_too_long_for_the_context():
    class Strict(VirtualServer):
        async def generate(self, path, body):
            return httpx.Response(400, text="secret detail of the server")

    found = failure(Strict(truth(0)), variant=OFF)
    assert found.reason is FailureReason.REJECTED


def test_fault_not_an_engine():
    class Web(VirtualServer):
        def get(self, path):
            return httpx.Response(200, text="<html>secret detail of the server</html>")

    assert failure(Web(truth(0))).reason is FailureReason.WRONG_ENGINE


def test_fault_no_answer_within_the_time():
    stuck = truth(0, factor=lambda variant, running: 1e4)
    found = failure(VirtualServer(stuck), variant=OFF)
    assert found.reason is FailureReason.NO_PROGRESS


def test_prefill_heavy_load_keeps_the_decode_batch_apart():
    """Most of a request's life is its prompt: the batch that decodes is smaller than the requests in flight."""
    slow_prompt = replace(truth(0), model=PRESETS["8b-h100"])
    _, found = measured(VirtualServer(slow_prompt), 8, workload=Workload.fixed(1500, 10))
    assert found.point.running_requests < 8
    assert found.point.asked_running_requests == 8
