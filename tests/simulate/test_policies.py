"""Peers' policies by their published arithmetic, as tables."""

from dataclasses import replace

import pytest

from crossover.simulate.fleet import Physics
from crossover.simulate.observation import Observation
from crossover.simulate.plant import plant
from crossover.simulate.policies import dynamo, peers, wva
from crossover.simulate.policies.base import HPABehavior, hpa_pods_metric, keda_average_value
from crossover.simulate.traces import Bin, Trace

SEEN = Observation(
    at_seconds=0.0,
    ready=4,
    pending=0,
    running=128.0,
    waiting=0.0,
    kv_usage=0.5,
    max_running_requests=256,
    kv_capacity_tokens=400_000,
    draft_tokens=3,
    output_rate=4000.0,
    arrival_rate=20.0,
    input_rate=20_000.0,
    mean_input=1000.0,
    mean_output=200.0,
    mean_context=1100.0,
    tpot_seconds=0.02,
    acceptance_length=2.2,
)


@pytest.mark.parametrize(
    ("ready", "pending", "running", "target", "wanted"),
    [
        (4, 0, 128, 32, 4),  # ratio 1
        (4, 0, 140, 32, 4),  # 1.09: within tolerance
        (4, 0, 160, 32, 5),
        (4, 0, 64, 32, 2),
        (4, 2, 160, 32, 6),  # unready pods count as idle: 160 / 6 / 32 = 0.83 turns the direction: no change
        (4, 4, 320, 32, 10),  # 320 / 8 / 32 = 1.25
        (1, 0, 1, 32, 1),
    ],
)
def test_hpa_pods_metric(ready, pending, running, target, wanted):
    assert hpa_pods_metric(replace(SEEN, ready=ready, pending=pending, running=float(running)), target) == wanted


@pytest.mark.parametrize(
    ("total", "replicas", "target", "wanted"),
    [(128, 4, 32, 4), (140, 4, 32, 4), (150, 4, 32, 5), (10, 4, 32, 1), (0, 4, 32, 1)],
)
def test_keda_average_value(total, replicas, target, wanted):
    assert keda_average_value(total, replicas, target) == wanted


def test_hpa_behavior_doubles_or_adds_four_in_15_seconds_and_waits_300_to_shrink():
    behavior = HPABehavior()
    assert behavior.shape(0.0, 2, 50) == 6
    assert behavior.shape(15.0, 6, 50) == 12
    assert behavior.shape(30.0, 12, 5) == 12
    assert behavior.shape(300.0, 12, 5) == 12
    assert behavior.shape(331.0, 12, 5) == 5


def test_kpa_panics_at_twice_the_count_and_never_shrinks_in_panic():
    policy = peers.KPA(32.0)
    assert policy.decide(replace(SEEN, running=128.0)) == 4
    busy = policy.decide(replace(SEEN, at_seconds=2.0, running=900.0))
    assert busy >= 8
    assert policy.decide(replace(SEEN, at_seconds=8.0, running=10.0)) >= busy - 13
    assert policy.decide(replace(SEEN, at_seconds=4.0, running=10.0)) >= 8


def test_kpa_halves_at_most():
    assert peers.KPA(32.0).decide(replace(SEEN, ready=8, running=1.0)) == 4


@pytest.mark.parametrize(("takes_min", "wanted"), [(True, 3), (False, 4)])
def test_aibrix_apa_takes_the_min_as_shipped(takes_min, wanted):
    policy = peers.APA(32.0, down_takes_min=takes_min)
    assert policy.decide(replace(SEEN, at_seconds=0.0, running=128.0)) == 4
    assert policy.decide(replace(SEEN, at_seconds=170.0, running=64.0)) == wanted


@pytest.mark.parametrize(
    ("kv", "waiting", "wanted"), [(0.75, 0, 5), (0.50, 12, 5), (0.50, 0, 3), (0.60, 0, 4), (0.85, 0, 5)]
)
def test_wva_v1_keeps_a_tenth_of_kv_and_three_of_the_queue_spare(kv, waiting, wanted):
    policy = wva.Saturation(0.0)
    policy._behavior.shape = lambda now, current, value: value
    assert policy.decide(replace(SEEN, kv_usage=kv, waiting=float(waiting))) == wanted


def test_wva_holds_while_pods_are_pending():
    assert wva.Saturation(0.0).decide(replace(SEEN, kv_usage=0.95, pending=1)) is None


def test_dynamo_load_adds_one_above_its_kv_and_takes_one_below_60_percent():
    policy = dynamo.Load(0.0)
    assert policy.decide(replace(SEEN, kv_usage=0.9, waiting=400.0)) == 5
    assert policy.decide(replace(SEEN, kv_usage=0.5)) == 3
    assert policy.decide(replace(SEEN, kv_usage=0.7)) == 4
    assert policy.decide(replace(SEEN, kv_usage=0.5, pending=1)) is None


def test_keda_only_is_the_larger_of_kv_and_queued_prefill():
    policy = peers.KEDAOnly(0.0)
    assert policy.decide(replace(SEEN, kv_usage=0.8, waiting=0.0)) == 4
    assert policy.decide(replace(SEEN, at_seconds=15.0, kv_usage=0.8, waiting=200.0)) == 8


def test_ray_acts_only_when_it_has_held_30_seconds_up_or_600_down():
    policy = peers.Ray(16.0)
    assert policy.decide(replace(SEEN, running=128.0)) is None
    assert policy.decide(replace(SEEN, at_seconds=20.0, running=128.0)) is None
    assert policy.decide(replace(SEEN, at_seconds=31.0, running=128.0)) == 8


def steady_trace(rate=20.0):
    return Trace("t", 1.0, tuple(Bin(rate, 1000, 200) for _ in range(60)))


def informed():
    return (Physics(plant("8b-h100", 0.63)), steady_trace())


def test_wva_queueing_keeps_two_thirds_of_the_rate_that_its_formula_allows():
    physics, trace = informed()
    alpha, beta, gamma = (physics.plant.step_seconds(b, 0, kv, False) for b, kv in ((1, 0.0), (128, 0.0), (1, 1e5)))
    beta, gamma = (beta - alpha) / 127, (gamma - alpha) / 1e5
    prefill = physics.plant.prefill_seconds(8192) / 8192
    highest = (2 / 3) / (beta * 200 + prefill * 1000 + gamma * 201 * 1100)
    policy = wva.Queueing(physics, trace)
    policy._behavior.shape = lambda now, current, value: value
    seen = replace(SEEN, mean_input=1000.0, mean_output=200.0)
    assert policy.decide(replace(seen, arrival_rate=2.9 * highest)) == 3
    assert policy.decide(replace(seen, arrival_rate=3.1 * highest)) == 4


def test_dynamo_sla_adds_above_a_target_takes_below_80_percent_of_both_and_keeps_its_floor():
    physics, trace = informed()
    target = physics.tpot_target_seconds
    calm = replace(SEEN, arrival_rate=0.1, mean_input=500.0, waiting=0.0)
    policy = dynamo.SLA(physics, trace)
    assert policy.decide(replace(calm, tpot_seconds=1.1 * target)) == 5
    assert policy.decide(replace(calm, tpot_seconds=0.9 * target)) == 4
    assert policy.decide(replace(calm, tpot_seconds=0.7 * target)) == 3
    busy = dynamo.SLA(physics, trace)
    assert busy.decide(replace(calm, arrival_rate=1000.0, tpot_seconds=0.7 * target)) > 4


INFORMED = [lambda target: wva.Queueing(*informed()), lambda target: dynamo.SLA(*informed())]


@pytest.mark.parametrize("make", [peers.HPA, peers.KEDA, peers.KPA, wva.Tokens, peers.KEDAOnly, peers.Ray, *INFORMED])
def test_lost_metrics_change_nothing(make):
    assert make(32.0).decide(replace(SEEN, known=False)) is None
