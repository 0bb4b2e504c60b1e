"""Counters to rates: resets survived, gaps not guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.builders import pod

from crossover.api.fleet import EngineType, PodReading, SchedulerReading
from crossover.observe.fleet import startup_seconds
from crossover.observe.rates import pod_rates, was_reset


def reading(at, *schedulers):
    return PodReading(EngineType.SGLANG, None, "/metrics", at, schedulers)


def scheduler(tokens=None, name="dp0", **more):
    return SchedulerReading(name, output_tokens_total=tokens, **more)


def test_a_rate_is_growth_over_time():
    history = [reading(t, scheduler(100.0 * t)) for t in (0.0, 5.0, 10.0)]
    assert pod_rates(history).output_tokens_per_second == 100.0


def test_ranks_are_added_up():
    history = [reading(t, scheduler(10.0 * t), scheduler(30.0 * t, "dp1")) for t in (0.0, 5.0)]
    assert pod_rates(history).output_tokens_per_second == 40.0


def test_a_reset_loses_its_own_step_only():
    history = [
        reading(0.0, scheduler(0.0)),
        reading(5.0, scheduler(500.0)),
        reading(10.0, scheduler(30.0)),
        reading(15.0, scheduler(530.0)),
    ]
    assert pod_rates(history).output_tokens_per_second == 100.0
    assert was_reset(history[1], history[2])
    assert not was_reset(history[0], history[1])


def test_one_reading_gives_no_rate_but_the_gauge():
    history = [reading(0.0, scheduler(500.0, output_tokens_per_second=42.0))]
    assert pod_rates(history).output_tokens_per_second == 42.0
    assert pod_rates([reading(0.0, scheduler(500.0))]).output_tokens_per_second is None


def test_acceptance_comes_from_counters_where_there_are_some():
    history = [
        reading(
            0.0, scheduler(drafts_total=0.0, accepted_tokens_total=0.0, acceptance_length=9.0, running_requests=1.0)
        ),
        reading(5.0, scheduler(drafts_total=100.0, accepted_tokens_total=150.0)),
    ]
    assert pod_rates(history).acceptance_length == 2.5


def test_time_per_output_token_is_the_mean_of_the_requests_that_ended():
    history = [
        reading(0.0, scheduler(time_per_output_token_seconds_sum=1.0, time_per_output_token_count=100.0)),
        reading(5.0, scheduler(time_per_output_token_seconds_sum=1.5, time_per_output_token_count=110.0)),
    ]
    assert pod_rates(history).time_per_output_token_seconds == pytest.approx(0.05)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12))
def test_a_rate_is_never_negative(values):
    history = [reading(float(5 * i), scheduler(value)) for i, value in enumerate(values)]
    rate = pod_rates(history).output_tokens_per_second
    assert rate is None or rate >= 0


def test_start_up_time_is_the_median_of_pods_that_were_never_restarted():
    pods = [pod(f"p{i}", ready_at_seconds=pod().created_at_seconds + seconds) for i, seconds in enumerate((10, 20, 90))]
    broken = pod("r", ready_at_seconds=pod().created_at_seconds + 999, restarts=3)
    assert startup_seconds([*pods, broken]) == 20
    assert startup_seconds([pod(ready_at_seconds=None)]) is None
