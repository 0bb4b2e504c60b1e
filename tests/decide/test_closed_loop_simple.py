"""Simple mode on a fleet that answers back: no cycle at any threshold, and the truth told about a wrong one."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crossover.api.decision import DecisionReason
from crossover.api.intent import Intent, ReplicaIntent, SpeculationIntent
from crossover.decide.step_model import PRESETS
from tests.decide.fluid import FluidFleet, draft_changes, replica_changes, run_loop
from tests.decide.truth import crossing

MODEL = PRESETS["70b-a100-tp4"]
CROSSOVER = crossing(MODEL, 7, 512.0)
AT_CROSSOVER = FluidFleet().rate_at(CROSSOVER, 7, False)
"""Output tokens/s of one pod at its crossover."""


def intent(above, hysteresis=1.5, **replicas):
    bounds = {"min": 1, "max": 1} | replicas
    return Intent(
        ReplicaIntent(**bounds),
        SpeculationIntent(
            disable_above_running_requests=above,
            enable_below_running_requests=max(1, round(above / hysteresis)),
            max_draft_tokens=7,
            stabilization_window_seconds=30.0,
            min_dwell_seconds=120.0,
        ),
    )


def one_pod(**more):
    return FluidFleet(**({"desired": 1, "startup": 40.0, "drain": 20.0} | more))


@settings(max_examples=150)
@example(threshold=4.0, demand=0.875, hysteresis=1.0, acceptance=0.55)
@given(
    threshold=st.floats(0.25, 4.0),
    demand=st.floats(0.3, 2.0),
    hysteresis=st.floats(1.0, 2.0),
    acceptance=st.sampled_from([0.55, 0.67, 0.75]),
)
def test_no_cycle_on_constant_demand_for_any_threshold(threshold, demand, hysteresis, acceptance):
    """From 0.25x to 4x the true crossover; two hours; at most one change, whatever the hysteresis."""
    moments = run_loop(
        one_pod(acceptance=acceptance),
        intent(max(2, round(threshold * CROSSOVER)), hysteresis),
        lambda t: demand * AT_CROSSOVER,
        7200,
    )
    assert len(draft_changes(moments)) <= 1


def test_without_the_recognition_a_threshold_of_twice_the_crossover_would_cycle(monkeypatch):
    """The trap is real: the same fleet, the same threshold, the rule taken out."""
    held = run_loop(one_pod(), intent(round(2 * CROSSOVER)), lambda t: 1.2 * AT_CROSSOVER, 7200)
    monkeypatch.setattr("crossover.decide.draft.would_cycle", lambda *_: None)
    cycling = run_loop(one_pod(), intent(round(2 * CROSSOVER)), lambda t: 1.2 * AT_CROSSOVER, 7200)
    assert len(draft_changes(held)) == 1
    assert len(draft_changes(cycling)) > 10


def test_a_threshold_that_cycles_is_recognised_and_explained():
    moments = run_loop(one_pod(), intent(round(2 * CROSSOVER)), lambda t: 1.2 * AT_CROSSOVER, 3600)
    last = moments[-1].decision
    assert last.draft.reason is DecisionReason.THRESHOLD_CYCLES
    assert "and would again" in last.draft.message
    (notice,) = last.notices
    assert notice.reason is DecisionReason.THRESHOLD_CYCLES
    assert f"The crossover lies below {round(2 * CROSSOVER)}" in notice.message
    assert moments[-1].running < CROSSOVER * 1.5, "it stays in the better state"


def test_a_threshold_that_latches_is_recognised_and_explained():
    """Half the crossover: off at 24 running, and the batch grows to 40 at the same demand."""
    demand = AT_CROSSOVER * 0.84
    moments = run_loop(one_pod(), intent(round(0.5 * CROSSOVER)), lambda t: demand * min(1.0, 0.5 + t / 3600), 7200)
    assert [target for _, target in draft_changes(moments)] == [0]
    (notice,) = moments[-1].decision.notices
    assert notice.reason is DecisionReason.THRESHOLD_LATCHES
    assert "The crossover lies above" in notice.message


def test_at_the_right_threshold_there_is_nothing_to_tell():
    moments = run_loop(one_pod(), intent(round(CROSSOVER)), lambda t: 1.3 * AT_CROSSOVER, 3600)
    assert [target for _, target in draft_changes(moments)] == [0]
    assert moments[-1].decision.notices == ()


def test_a_real_change_of_load_still_switches_back():
    """Up over the threshold for half an hour, then down to a third: off and on again, once each."""

    def load(t):
        return AT_CROSSOVER * (1.3 if t < 1800 else 0.4)

    moments = run_loop(one_pod(), intent(round(CROSSOVER)), load, 5400)
    assert [target for _, target in draft_changes(moments)] == [0, 7]


def test_after_a_cycle_was_recognised_a_lower_load_switches_on_again():
    def load(t):
        return AT_CROSSOVER * (1.2 if t < 3600 else 0.5)

    moments = run_loop(one_pod(), intent(round(2 * CROSSOVER)), load, 7200)
    assert [target for _, target in draft_changes(moments)] == [0, 7]
    assert moments[-1].decision.notices == ()


@pytest.mark.parametrize("target", [24, 48, 96])
def test_replicas_settle_on_constant_demand_and_draft_and_replicas_do_not_chase_each_other(target):
    """Replicas follow running requests, running requests follow the draft length."""
    wanted = intent(round(CROSSOVER), min=1, max=20, target_running_requests=target)
    moments = run_loop(one_pod(desired=3), wanted, lambda t: 5 * AT_CROSSOVER, 10_800)
    late = [m for m in moments if m.at > 5400]
    assert len(draft_changes(moments)) <= 2
    assert len(replica_changes(late)) == 0
