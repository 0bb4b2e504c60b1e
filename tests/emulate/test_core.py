"""The scheduler of the emulators: nothing is lost, no limit is passed, counters agree with each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.decide.step_model import acceptance_length
from crossover.emulate.core import EngineCore, TooLongError
from crossover.emulate.drafts import Fixed, Off, Scheduled
from crossover.emulate.requests import Limits
from crossover.emulate.truth import Truth


def core(drafts=None, *, running=8, kv=4000, truth=None, limits=None, **more):
    truth = truth or Truth(acceptance=(0.67,), acceptance_spread=0.0)
    return EngineCore(truth, Limits(running, kv, **(limits or {})), drafts or Fixed(3), **more)


def drain(engine, seconds=10_000.0):
    engine.advance(seconds)
    assert engine.idle


requests = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 120)), min_size=1, max_size=30)


@given(requests, st.integers(0, 5), st.integers(1, 12), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_request_gets_exactly_its_tokens_and_no_limit_is_passed(sizes, draft, limit, mixed, reserves):
    most_running = most_tokens = 0

    def watch(engine, step):
        nonlocal most_running, most_tokens
        most_running, most_tokens = max(most_running, len(engine.running)), max(most_tokens, engine.kv_tokens)
        assert engine.kv_tokens == sum(request.kv_tokens for request in engine.running)

    limits = {"mixed": mixed, "reserves_output": reserves, "prefill_tokens_per_step": 256}
    engine = core(Fixed(draft), running=limit, kv=1500, limits=limits, on_step=watch)
    made = [engine.submit(0.0, tokens_in, tokens_out) for tokens_in, tokens_out in sizes]
    drain(engine)
    assert [request.emitted_tokens for request in made] == [tokens_out for _, tokens_out in sizes]
    assert engine.counters.finished == len(made)
    assert engine.kv_tokens == 0
    assert most_running <= limit
    assert most_tokens <= 1500
    if reserves:
        assert engine.counters.retractions == 0


@given(requests, st.integers(0, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_counters_agree_with_each_other(sizes, draft, mixed):
    engine = core(Fixed(draft), limits={"mixed": mixed})
    for tokens_in, tokens_out in sizes:
        engine.submit(0.0, tokens_in, tokens_out)
    drain(engine)
    c = engine.counters
    assert c.output_tokens == sum(tokens_out for _, tokens_out in sizes)
    assert c.draft_tokens == draft * c.drafts
    assert c.accepted_tokens == sum(c.accepted_by_position)
    assert c.accepted_by_position == sorted(c.accepted_by_position, reverse=True)
    assert c.drafts == (c.request_steps if draft else 0)
    assert c.first_tokens == len(sizes) + c.retractions
    assert c.output_tokens - c.first_tokens <= c.request_steps + c.accepted_tokens


def test_the_acceptance_length_is_the_formulas():
    engine = core(running=32, kv=10**7)
    for _ in range(32):
        engine.submit(0.0, 10, 20_000)
    engine.advance(60.0)
    c = engine.counters
    assert (c.output_tokens - c.first_tokens) / c.request_steps == pytest.approx(acceptance_length(0.67, 3), rel=0.02)


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
    engine = core(running=64, kv=10**6)
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
    engine = core(running=8, kv=600)
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


@pytest.mark.parametrize("wanted", [1.0, 1.6, 2.75, 4.0])
def test_forced_acceptance_is_met_whatever_the_draft(wanted):
    engine = core(running=32, kv=10**7, truth=Truth(acceptance=(0.1,), forced_acceptance_length=wanted))
    for _ in range(32):
        engine.submit(0.0, 10, 5_000)
    engine.advance(20.0)
    c = engine.counters
    assert 1 + c.accepted_tokens / c.drafts == pytest.approx(wanted, rel=0.02)


def test_acceptance_by_position_follows_the_list_and_its_last_goes_on():
    engine = core(Fixed(4), running=32, kv=10**7, truth=Truth(acceptance=(0.8, 0.5), acceptance_spread=0.0))
    for _ in range(32):
        engine.submit(0.0, 10, 10_000)
    engine.advance(20.0)
    by_position = engine.counters.accepted_by_position
    conditional = [
        now / before for now, before in zip(by_position, [engine.counters.drafts, *by_position], strict=False)
    ]
    assert conditional == pytest.approx([0.8, 0.5, 0.5, 0.5], rel=0.05)


def test_a_tree_verifies_its_whole_size_and_accepts_along_one_path():
    chain, tree = core(Fixed(5), running=64, kv=10**7), core(Fixed(5, tree=32), running=64, kv=10**7)
    for engine in (chain, tree):
        for _ in range(64):
            engine.submit(0.0, 10, 1_000)
        engine.advance(2.0)
    assert tree.counters.decode_steps < 0.7 * chain.counters.decode_steps
    assert tree.counters.draft_tokens == 5 * tree.counters.drafts


def test_zero_that_costs_like_a_draft_is_as_slow_as_that_draft_without_its_tokens():
    def steps(drafts, **truth):
        engine = core(drafts, running=64, kv=10**7, truth=Truth(acceptance=(0.0,), acceptance_spread=0.0, **truth))
        for _ in range(64):
            engine.submit(0.0, 10, 10_000)
        engine.advance(3.0)
        return engine.counters.decode_steps

    gated = Scheduled(((1, 0),))
    assert steps(Off()) > steps(gated) > steps(Scheduled(((1, 0),)), zero_costs_as=3)
    assert steps(gated, zero_costs_as=3) == pytest.approx(steps(Fixed(3)), rel=0.02)
    assert steps(gated, zero_is_free=True) == steps(Off())


def test_requests_that_lived_through_zero_accept_less_if_the_truth_says_so():
    def length(gap):
        truth = Truth(acceptance=(0.8,), acceptance_spread=0.0, zero_gap_acceptance=gap)
        engine = core(Scheduled(((1, 3), (5, 0))), running=8, kv=10**7, truth=truth)
        for size in (40, 40, 40, 40, 4_000, 4_000):
            engine.submit(0.0, 10, size)
        engine.advance(30.0)
        return 1 + engine.counters.accepted_tokens / engine.counters.drafts

    assert length(0.4) < 0.7 * length(1.0)


def test_noise_scatters_steps_but_keeps_their_median():
    def times(noise):
        seen = []
        engine = core(truth=Truth(step_noise=noise), on_step=lambda _, step: seen.append(step.seconds))
        engine.submit(0.0, 10, 1_000)
        engine.advance(5.0)
        return sorted(seen)

    quiet, noisy = times(0.0), times(0.2)
    assert noisy[-1] / noisy[0] > 2
    assert noisy[len(noisy) // 2] == pytest.approx(quiet[len(quiet) // 2], rel=0.05)


def test_a_prompt_larger_than_the_cache_is_refused():
    with pytest.raises(TooLongError):
        core(kv=100).submit(0.0, 100, 1)


def test_paused_nothing_moves_and_nothing_is_lost():
    engine = core()
    request = engine.submit(0.0, 10, 1_000)
    engine.advance(0.1)
    engine.pause()
    engine.advance(0.2)
    emitted = request.emitted_tokens
    engine.advance(5.0)
    assert request.emitted_tokens == emitted
    engine.retract_all()
    assert (len(engine.running), len(engine.waiting)) == (0, 1)
    engine.resume(5.0)
    drain(engine)
    assert request.emitted_tokens == 1_000


@given(requests, st.lists(st.tuples(st.sampled_from(["abort", "retract", "tick"]), st.integers(0, 29)), max_size=20))
@settings(max_examples=40, deadline=None)
def test_no_order_of_aborts_and_retractions_loses_or_invents_tokens(sizes, events):
    engine, now = core(running=4, kv=1500), 0.0
    made = [engine.submit(0.0, tokens_in, tokens_out) for tokens_in, tokens_out in sizes]
    for kind, which in events:
        now += 0.011
        if kind == "abort":
            engine.abort(made[which % len(made)], now)
        elif kind == "retract":
            engine.retract_all()
            engine.advance(now)
        else:
            engine.advance(now)
        assert engine.kv_tokens == sum(request.kv_tokens for request in engine.running)
    drain(engine)
    assert engine.kv_tokens == 0
    for request, (_, tokens_out) in zip(made, sizes, strict=True):
        assert request.aborted or request.emitted_tokens == tokens_out
    assert engine.counters.output_tokens == sum(request.emitted_tokens for request in made)
