"""Demand: what users ask for, against arrivals that are known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.decision import Memory
from crossover.decide.demand import FAST, MEDIUM, SLOW, observe_demand
from crossover.decide.load import measure
from tests.decide.fleets import NOW, fleet, pod
from tests.decide.fluid import FluidFleet


def estimates(fleet_model, arrivals, seconds, tick=5.0, event=None):
    """Demand estimates over time while requests arrive at ``arrivals(t)`` per second."""
    memory, found, elapsed = Memory(), [], 0.0
    while elapsed < seconds:
        if event is not None:
            event(fleet_model, elapsed)
        for _ in range(int(tick)):
            fleet_model.step(arrivals(elapsed))
            elapsed += 1.0
        snapshot = fleet_model.snapshot()
        demand, memory = observe_demand(snapshot, measure(snapshot), memory)
        found.append((elapsed, demand))
    return found


def at(found, second):
    return next(demand for elapsed, demand in found if elapsed >= second)


def test_a_steady_fleet_shows_its_arrivals():
    found = estimates(FluidFleet(), lambda t: 16.0, 600)
    assert at(found, 500).now == pytest.approx(16 * 250, rel=0.02)
    assert at(found, 595).forecast == pytest.approx(16 * 250, rel=0.05)


def test_overload_is_seen_although_the_fleet_serves_less():
    """One pod can serve about 1.8k tok/s with drafts of 7; 4k are asked for."""
    found = estimates(FluidFleet(desired=1), lambda t: 16.0, 300)
    last = found[-1][1]
    assert last.served < 2000
    assert last.now == pytest.approx(4000, rel=0.05)
    assert last.backlog_tokens > 0


def test_a_surge_shows_within_two_ticks():
    found = estimates(FluidFleet(), lambda t: 4.0 if t < 300 else 40.0, 320)
    assert at(found, 310).now > 0.7 * 10_000


def test_one_noisy_sample_is_no_surge():
    """Twenty requests that arrive between two looks and are gone at the next."""
    memory = Memory()
    for n in range(60):
        snapshot = flat(100.0, waiting=0.0, at=NOW + 5 * n)
        steady, memory = observe_demand(snapshot, measure(snapshot), memory, output_tokens=250.0)
    spike = flat(100.0, waiting=10.0, at=NOW + 300)
    after, _ = observe_demand(spike, measure(spike), memory, output_tokens=250.0)
    sample = steady.now + 250.0 * 20 / 5
    assert after.now - steady.now <= 0.2 * (sample - steady.now)


def flat(rate, *, waiting, at):
    pods = tuple(replace(pod(f"r{n}", 20.0, waiting), output_tokens_per_second=rate) for n in range(2))
    return replace(fleet(20.0, 20.0, at=at), pods=pods)


def test_a_ramp_is_forecast_at_start_up_time():
    """10 to 40 requests/s in an hour; in two minutes from minute 40 it is 1 request/s more."""
    found = estimates(FluidFleet(desired=8), lambda t: 10 + 30 * t / 3600, 2400)
    last = found[-1][1]
    truth = (10 + 30 * (2400 + last.horizon_seconds) / 3600) * 250
    assert last.forecast == pytest.approx(truth, rel=0.03)
    assert last.now < last.forecast


def test_a_step_is_no_ramp():
    found = estimates(FluidFleet(desired=8), lambda t: 8.0 if t < 600 else 24.0, 1800)
    assert max(demand.forecast for elapsed, demand in found if elapsed > 640) < 1.3 * 24 * 250


def test_a_scale_event_does_not_look_like_demand():
    def grow(model, elapsed):
        if elapsed == 600:
            model.desired = 8

    found = estimates(FluidFleet(desired=4), lambda t: 16.0, 1200, event=grow)
    assert all(demand.now == pytest.approx(4000, rel=0.1) for elapsed, demand in found if elapsed > 300)


def test_a_dead_pod_does_not_look_like_less_demand():
    def die(model, elapsed):
        if elapsed == 600:
            model.kill(model.serving[0])

    found = estimates(FluidFleet(desired=4), lambda t: 16.0, 900, event=die)
    assert min(demand.now for elapsed, demand in found if elapsed > 300) > 0.75 * 4000


def test_pods_that_cannot_be_read_are_taken_to_serve_like_the_others():
    def blind(model, elapsed):
        if elapsed == 300:
            model.blind = {model.pods[0].name}

    found = estimates(FluidFleet(desired=4), lambda t: 16.0, 600, event=blind)
    assert all(demand.now == pytest.approx(4000, rel=0.1) for elapsed, demand in found if elapsed > 250)


def test_nothing_known_is_unknown_and_leaves_the_averages_alone():
    snapshot = flat(100.0, waiting=0.0, at=NOW)
    _, memory = observe_demand(snapshot, measure(snapshot), Memory())
    nothing = fleet(None, None, at=NOW + 5)
    demand, after = observe_demand(nothing, measure(nothing), memory)
    assert demand is None
    assert after == memory


def test_an_engine_without_token_rates_is_read_by_its_tpot_or_by_the_profile():
    by_tpot = replace(fleet(20.0), pods=(replace(pod("a", 20.0), time_per_output_token_seconds=0.02),))
    demand, _ = observe_demand(by_tpot, measure(by_tpot), Memory())
    assert demand.served == pytest.approx(1000.0)
    silent = fleet(20.0)
    assert observe_demand(silent, measure(silent), Memory())[0] is None
    by_curve, _ = observe_demand(silent, measure(silent), Memory(), served_by=lambda pod: 700.0)
    assert by_curve.served == 700.0


def test_a_hidden_queue_makes_it_a_lower_bound():
    full = replace(pod("a", 20.0, None, max_running_requests=20.0), output_tokens_per_second=500.0)
    snapshot = replace(fleet(20.0), pods=(full,))
    assert observe_demand(snapshot, measure(snapshot), Memory())[0].lower_bound


@given(
    st.lists(
        st.tuples(st.floats(0, 1e4), st.floats(0, 500), st.sampled_from([1.0, 5.0, 90.0])), min_size=1, max_size=30
    )
)
def test_averages_stay_within_what_was_seen_and_never_below_zero(series):
    memory, now = Memory(), NOW
    for rate, waiting, seconds in series:
        now += seconds
        snapshot = flat(rate, waiting=waiting, at=now)
        demand, memory = observe_demand(snapshot, measure(snapshot), memory, output_tokens=100.0)
        assert demand.now >= 0
        assert demand.forecast >= 0
    assert all(memory.observations[name] >= 0 for name in (FAST, MEDIUM, SLOW))
