"""The fleet model: requests are conserved, limits hold, and a steady state is Little's law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.simulate.fleet import Fleet, Physics
from crossover.simulate.plant import plant
from crossover.simulate.policies.own import best_table, steady_tpot
from crossover.simulate.traces import Bin, Trace

PHYSICS = Physics(plant("8b-h100", 0.63))
OFF = lambda running: (0, True)  # noqa: E731
K3 = lambda running: (3, False)  # noqa: E731

bins = st.lists(st.tuples(st.floats(0, 200), st.integers(1, 2000), st.integers(1, 500)), min_size=1, max_size=60)


@given(bins, st.integers(1, 5))
def test_no_request_is_lost_or_invented_and_no_limit_is_passed(loads, replicas):
    fleet = Fleet(PHYSICS, replicas, K3, seed=1)
    served = 0.0
    for requests, tokens_in, tokens_out in loads:
        served += sum(item.requests for item in fleet.step(Bin(requests, tokens_in, tokens_out), 1.0))
        assert fleet.state.running <= replicas * PHYSICS.max_running_requests + 1e-6
        assert fleet.state.running >= 0
    arrived = sum(requests for requests, _, _ in loads)
    assert served + fleet.state.waiting + fleet.state.dropped == pytest.approx(arrived, abs=1e-6)


def settled(rate, table, seconds=600, dt=1.0):
    fleet = Fleet(PHYSICS, 1, table, seed=1)
    load = Bin(rate * dt, 200, 150)
    for _ in range(int(seconds / dt)):
        fleet.step(load, dt)
    return fleet.state


@pytest.mark.parametrize("rate", [2.0, 10.0, 30.0])
def test_a_steady_state_is_littles_law(rate):
    """b = rate x output length x TPOT."""
    state = settled(rate, OFF)
    assert state.running == pytest.approx(rate * 150 * state.tpot_seconds, rel=0.02)
    assert state.output_rate == pytest.approx(rate * 150, rel=0.02)


@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_the_steady_state_does_not_depend_on_the_bin(rate):
    assert settled(rate, K3, dt=0.5).tpot_seconds == pytest.approx(settled(rate, K3, dt=5.0).tpot_seconds, rel=0.02)


def test_the_clairvoyant_plans_steady_state_is_the_fleets():
    trace = Trace("t", 1.0, tuple(Bin(20.0, 200, 150) for _ in range(600)))
    table = [0] * 257
    fleet = Fleet(PHYSICS, 1, lambda running: (0, False), seed=1)
    for item in trace.bins:
        fleet.step(item, 1.0)
    assert steady_tpot(PHYSICS, table, trace, 20.0) == pytest.approx(fleet.state.tpot_seconds, rel=0.05)


def test_more_requests_than_the_batch_limit_pass_through_a_long_bin():
    """Ten seconds of 60 requests/s of half a second each need 30 places, not 600."""
    fleet = Fleet(PHYSICS, 1, OFF, seed=1)
    for _ in range(20):
        fleet.step(Bin(600.0, 10, 60), 10.0)
    assert fleet.state.waiting == 0
    assert fleet.state.running < 100


def test_new_replicas_come_after_their_start_up_time_and_cost_from_the_start():
    fleet = Fleet(Physics(PHYSICS.plant, startup_median_seconds=50.0, startup_sigma=0.0), 1, OFF, seed=1)
    fleet.scale(3)
    ready = []
    for _ in range(60):
        fleet.step(Bin(0, 0, 1), 1.0)
        ready.append(fleet.state.ready)
    assert ready[48] == 1
    assert ready[51] == 3
    assert fleet.state.gpu_seconds == pytest.approx(60 + 2 * 60, abs=2)


def test_the_best_table_falls_with_the_batch():
    table = best_table(PHYSICS.plant, PHYSICS, 5, 500)
    assert table[1] > 0 == table[-1]
    assert table == sorted(table, reverse=True)
