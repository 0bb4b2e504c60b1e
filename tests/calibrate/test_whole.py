"""From addresses to an answer on virtual time: describe, sweep, measure, fit; and servers that fail in the middle."""

import httpx
import pytest

from crossover.calibrate.contract import Ask, DoneReason, FailureReason, MeasureFailure, Precision, Server, SweepPlan
from crossover.calibrate.measure import describe, measure
from crossover.calibrate.result import summarise
from crossover.calibrate.runner import Swept, sweep_servers
from crossover.calibrate.workload import Workload
from crossover.decide.crossings import Verdict
from crossover.decide.step_model import PRESETS, acceptance_length
from crossover.decide.variant import OFF, Variant
from tests.calibrate.virtual import LoopClock, Truth, VirtualServer, run

V7 = Variant(7)
LOAD = Workload.fixed(100, 200)


def hidden_crossings(truths, context, acceptance, largest):
    off, drafting = truths[OFF], truths[V7]
    length = acceptance_length(acceptance, 7)
    found, before, running = [], None, 1.0
    while running <= largest:
        kv = running * context
        pays = length * off.step_seconds(running, kv) > drafting.step_seconds(running, kv)
        if before is not None and pays != before:
            found.append(running)
        before, running = pays, running * 1.001
    return found


def calibrated(servers, plan, *, swept=None, ends_at=None, precision=None):
    """One run over virtual servers by variant."""
    swept = swept or Swept()
    precision = precision or Precision(relative_error=0.005, most_seconds=20)

    async def whole():
        clients = {variant: httpx.AsyncClient(transport=server) for variant, server in servers.items()}
        described = {variant: await describe(Server("http://virtual"), http=clients[variant]) for variant in servers}
        assert {item.variant for item in described.values()} == set(servers)

        async def one(item, running):
            return await measure(
                item,
                running,
                LOAD,
                http=clients[item.variant],
                precision=precision,
                cpu_seconds=lambda: 0.0,
                seed=len(swept.measured),
            )

        await sweep_servers(described, plan, one, swept, clock=LoopClock(), ends_at=ends_at)
        for client in clients.values():
            await client.aclose()

    run(whole())
    return swept


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_crossover_of_hidden_servers_is_found(engine):
    """Through HTTP, streams, counters and luck with drafts: within 5 % of what was hidden, 24 points at most."""
    truths = {variant: Truth(variant, PRESETS["70b-a100-tp4"]) for variant in (OFF, V7)}
    servers = {variant: VirtualServer(truth, engine) for variant, truth in truths.items()}
    swept = calibrated(servers, SweepPlan((OFF, V7), largest_running_requests=96))
    assert len(swept.points) <= 24
    result = summarise(swept.points)
    (crossover,) = result.crossovers
    (expected,) = hidden_crossings(truths, result.profile.context_tokens, 0.67, 96)
    (crossing,) = crossover.crossings
    assert crossing.running_requests == pytest.approx(expected, rel=0.05)
    assert result.verdict.startswith("Draft 7 pays up to ")


def test_fault_crash_in_mid_sweep_keeps_what_was_measured():
    """The drafting server dies for good: the other is measured on, the failure is kept, no question is asked twice."""
    servers = {OFF: VirtualServer(Truth(OFF)), V7: VirtualServer(Truth(V7), dies_at=30.0)}
    swept = calibrated(servers, SweepPlan((OFF, V7), largest_running_requests=16, most_points=12))
    assert swept.done is not None
    assert [failure.reason for _, failure in swept.failures] == [FailureReason.SERVER_DIED]
    assert {point.off for point in swept.points} >= {True}
    assert len(swept.points) == len(swept.measured)


def test_points_that_are_there_already_are_not_measured_again():
    servers = {OFF: VirtualServer(Truth(OFF)), V7: VirtualServer(Truth(V7))}
    plan = SweepPlan((OFF, V7), ladder=(1, 4))
    first = calibrated(servers, plan)
    servers = {OFF: VirtualServer(Truth(OFF)), V7: VirtualServer(Truth(V7))}
    again = calibrated(servers, plan, swept=Swept(points=list(first.points)))
    assert again.measured == []
    assert again.done.reason is DoneReason.LADDER_MEASURED


def test_time_that_is_over_ends_it():
    servers = {OFF: VirtualServer(Truth(OFF)), V7: VirtualServer(Truth(V7))}
    swept = calibrated(servers, SweepPlan((OFF, V7)), ends_at=20.0)
    assert swept.done.reason is DoneReason.TIME_SPENT
    assert swept.points


def test_unusable_numbers_are_kept_out_of_the_curves_and_not_asked_for_again():
    servers = {OFF: VirtualServer(Truth(OFF), foreign=4), V7: VirtualServer(Truth(V7))}
    swept = calibrated(servers, SweepPlan((OFF, V7), ladder=(2, 8)))
    assert len(swept.measured) == 4
    assert {point.off for point in swept.points} == {False}
    assert swept.skip == {Ask(OFF, 2), Ask(OFF, 8)}


def test_a_failure_that_may_pass_is_tried_once_more():
    calls = []

    async def one(item, running):
        calls.append(running)
        raise MeasureFailure(FailureReason.OVERLOADED, "busy")

    swept = Swept()

    async def whole():
        await sweep_servers({OFF: None}, SweepPlan((OFF,), ladder=(1, 2)), one, swept, clock=LoopClock())

    run(whole())
    assert calls == [1, 1, 2, 2]
    assert len(swept.failures) == 4
    assert swept.done.reason is DoneReason.LADDER_MEASURED


def test_never_pays_on_hidden_servers():
    servers = {OFF: VirtualServer(Truth(OFF, acceptance=0.05)), V7: VirtualServer(Truth(V7, acceptance=0.05))}
    swept = calibrated(servers, SweepPlan((OFF, V7), largest_running_requests=32, most_points=14))
    result = summarise(swept.points)
    assert result.crossovers[0].verdict is Verdict.NEVER_PAYS
    assert "run without it" in result.verdict
