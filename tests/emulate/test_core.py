"""The scheduler of the emulators: nothing is lost, no limit is passed, counters agree with each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.decide.step_model import PRESETS, acceptance_length
from crossover.emulate.core import EngineCore


def core(**more):
    given = {
        "max_running_requests": 8,
        "kv_capacity_tokens": 4000,
        "draft_length": lambda batch, _: 3,
        "speculates": True,
        "acceptance": 0.67,
        "acceptance_spread": 0.0,
    }
    return EngineCore(PRESETS["8b-h100"], **(given | more))


def drain(engine, seconds=10_000.0):
    engine.advance(seconds)
    assert engine.idle


requests = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 120)), min_size=1, max_size=30)


@given(requests, st.integers(0, 5), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_every_request_gets_exactly_its_tokens_and_no_limit_is_passed(sizes, draft, limit):
    largest = 0

    def watch(engine, step):
        nonlocal largest
        largest = max(largest, len(engine.running))

    engine = core(
        draft_length=lambda batch, _: draft, max_running_requests=limit, kv_capacity_tokens=1500, on_step=watch
    )
    made = [engine.submit(0.0, tokens_in, tokens_out) for tokens_in, tokens_out in sizes]
    drain(engine)
    assert [request.emitted_tokens for request in made] == [tokens_out for _, tokens_out in sizes]
    assert engine.counters.finished == len(made)
    assert largest <= limit


@given(requests, st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_counters_agree_with_each_other(sizes, draft):
    engine = core(draft_length=lambda batch, _: draft)
    for tokens_in, tokens_out in sizes:
        engine.submit(0.0, tokens_in, tokens_out)
    drain(engine)
    c = engine.counters
    assert c.output_tokens == sum(tokens_out for _, tokens_out in sizes)
    assert c.draft_tokens == draft * c.drafts
    assert c.accepted_tokens == sum(c.accepted_by_position)
    assert c.accepted_by_position == sorted(c.accepted_by_position, reverse=True)
    assert c.drafts == (c.request_steps if draft else 0)
    assert c.output_tokens <= c.request_steps + c.accepted_tokens


def test_the_acceptance_length_is_the_formulas():
    engine = core(max_running_requests=32, kv_capacity_tokens=10**7)
    for _ in range(32):
        engine.submit(0.0, 10, 20_000)
    engine.advance(60.0)
    c = engine.counters
    assert c.output_tokens / c.request_steps == pytest.approx(acceptance_length(0.67, 3), rel=0.02)


def test_the_same_seed_gives_the_same_run():
    runs = []
    for _ in range(2):
        engine = core(seed=7)
        for _ in range(10):
            engine.submit(0.0, 50, 100)
        engine.advance(3.0)
        runs.append(engine.counters)
    assert runs[0] == runs[1]


def test_advancing_in_pieces_is_advancing_at_once():
    whole, pieces = core(), core()
    for engine in (whole, pieces):
        for _ in range(12):
            engine.submit(0.0, 100, 200)
    whole.advance(2.0)
    for tick in range(200):
        pieces.advance(tick * 0.01)
    pieces.advance(2.0)
    assert whole.counters == pieces.counters


def test_a_live_cap_evicts_nobody_and_holds_newcomers_back():
    engine = core(max_running_requests=64, kv_capacity_tokens=10**6)
    for _ in range(20):
        engine.submit(0.0, 10, 5_000)
    engine.advance(0.2)
    engine.running_cap = 4
    engine.submit(0.2, 10, 10)
    engine.advance(0.4)
    assert (len(engine.running), len(engine.waiting)) == (20, 1)
    engine.running_cap = None
    engine.advance(0.6)
    assert len(engine.waiting) == 0


def test_kv_pressure_retracts_the_newest_and_it_still_finishes():
    engine = core(max_running_requests=8, kv_capacity_tokens=600)
    made = [engine.submit(0.0, 50, 200) for _ in range(8)]
    drain(engine)
    assert engine.counters.retractions > 0
    assert all(request.emitted_tokens == 200 for request in made)


def test_an_aborted_request_is_gone_at_once():
    engine = core()
    request = engine.submit(0.0, 10, 10_000)
    engine.advance(0.1)
    engine.abort(request, 0.1)
    assert engine.counters.aborted == 1
    engine.advance(1.0)
    assert engine.idle
