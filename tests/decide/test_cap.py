"""The live cap: down while admission breaks the TPOT target, up when there is room, gone when nobody needs it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import Capability, EngineType
from crossover.api.intent import Intent, LiveCapPolicy, Objectives, ReplicaIntent, SpeculationIntent
from crossover.decide import plan
from crossover.decide.memory import from_json, to_json
from tests.decide.fleets import NOW, fleet

LIMIT = 64
ABLE = Capability(
    EngineType.SGLANG, "0.5.23", None, live_running_cap="pp_max_micro_batch_size", running_cap_at_start=LIMIT
)
TARGET = 0.040
INTENT = Intent(ReplicaIntent(1, 1), None, Objectives(TARGET), LiveCapPolicy.AUTO)


def seen(running, tpot, *, waiting=0.0, at=NOW, capability=ABLE, **more):
    """One pod whose batch over served rate is ``tpot`` seconds."""
    base = fleet(running, at=at, capability=capability, waiting=waiting, **more)
    rate = running / tpot if tpot else None
    pods = [replace(pod, output_tokens_per_second=rate) for pod in base.pods[:1]]
    return replace(base, pods=(*pods, *base.pods[1:]))


def run(snapshots, intent=INTENT, memory=None):
    memory, decisions = memory or Memory(), []
    for snapshot in snapshots:
        decision = plan(snapshot, intent, memory)
        memory = decision.memory
        decisions.append(decision)
    return decisions


def series(running, tpot, seconds, *, step=5, start=0, **more):
    return [seen(running, tpot, at=NOW + start + t, **more) for t in range(0, seconds, step)]


def test_nobody_who_did_not_ask_gets_a_cap():
    for intent in (replace(INTENT, live_cap=LiveCapPolicy.OFF), replace(INTENT, objectives=Objectives())):
        assert all(decision.cap is None for decision in run(series(64, 0.08, 120), intent))


def test_a_target_missed_for_long_enough_brings_the_cap_down_once_per_settling_time():
    decisions = run(series(64, 0.08, 40))
    changes = [(d.at_seconds - NOW, d.cap.current, d.cap.wanted) for d in decisions if d.cap.is_change]
    assert changes == [(15, None, 32)]
    assert decisions[3].cap.reason is DecisionReason.ADMISSION_BREAKS_TARGET
    assert "80 ms at 64 running, target 40 ms" in decisions[3].cap.message


def test_a_short_spike_changes_nothing():
    spike = [*series(64, 0.08, 10), *series(64, 0.03, 60, start=10)]
    assert not any(decision.cap.is_change for decision in run(spike))


def test_it_never_goes_below_a_quarter_of_the_limit_and_says_so():
    decisions = run(series(64, 4.0, 400))
    assert min(d.cap.wanted or LIMIT for d in decisions) == LIMIT // 4
    assert "cannot go lower" in run(series(16, 4.0, 100, start=500), memory=decisions[-1].memory)[-1].cap.message


def test_it_never_hides_the_load_from_the_speculation_threshold():
    """Capped below `disableAbove`, the batch could never pass it."""
    managed = replace(INTENT, speculation=SpeculationIntent(disable_above_running_requests=40))
    assert min(d.cap.wanted or LIMIT for d in run(series(64, 4.0, 400), managed)) == 41


def test_room_raises_a_cap_that_binds_and_takes_away_one_that_nobody_needs():
    capped = Memory(running_cap=24)
    raised = run(series(24, 0.02, 70, waiting=5.0), memory=capped)[-1]
    assert raised.cap.wanted == 30
    assert run(series(5, 0.02, 70), memory=capped)[-1].cap.wanted is None
    assert run(series(20, 0.02, 70), memory=capped)[-1].cap.wanted == 24


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"rollout_in_progress": True}, DecisionReason.FROZEN_ROLLOUT),
        ({"capability": replace(ABLE, live_running_cap=None)}, DecisionReason.NO_LEVER),
        ({"capability": None}, DecisionReason.METRICS_UNKNOWN),
        ({"capability": replace(ABLE, running_cap_at_start=None)}, DecisionReason.METRICS_UNKNOWN),
    ],
)
def test_what_holds_it(more, reason):
    decision = run(series(64, 0.08, 100, **more), memory=Memory(running_cap=40))[-1]
    assert (decision.cap.wanted, decision.cap.reason) == (40, reason)


def test_unknown_tpot_or_an_unreadable_pod_keeps_the_cap_as_it_is():
    unknown = [replace(s, pods=(replace(s.pods[0], output_tokens_per_second=None),)) for s in series(64, 0.08, 100)]
    assert run(unknown, memory=Memory(running_cap=40))[-1].cap.wanted == 40
    blind = [
        replace(s, pods=(*s.pods, replace(s.pods[0], uid="b", name="b", reading=None))) for s in series(64, 0.08, 100)
    ]
    assert run(blind, memory=Memory(running_cap=40))[-1].cap.wanted == 40


def test_starting_pods_do_not_hold_it_back_they_are_why_it_is_needed():
    assert run(series(64, 0.08, 40, pending=2))[-1].cap.wanted == 32


def test_switched_off_takes_it_away():
    off = replace(INTENT, live_cap=LiveCapPolicy.OFF)
    first, second = run(series(64, 0.08, 10), off, memory=Memory(running_cap=40))
    assert (first.cap.current, first.cap.wanted) == (40, None)
    assert second.cap is None


def test_a_gap_in_watching_begins_the_wait_again():
    snapshots = [*series(64, 0.08, 15), *series(64, 0.08, 5, start=3600)]
    assert not run(snapshots)[-1].cap.is_change


def test_it_survives_a_restart_of_the_operator():
    assert from_json(to_json(Memory(running_cap=40))).running_cap == 40
    assert from_json({"runningCap": "x"}).running_cap is None


@given(st.floats(0.004, 0.030), st.floats(0.0002, 0.002), st.integers(8, 200))
@settings(max_examples=60)
def test_closed_loop_it_comes_down_to_the_batch_that_meets_the_target_and_never_far_below(base, slope, demand):
    """The plant: TPOT = base + slope x batch, and the batch is what is asked for, up to the cap."""
    meets = (TARGET - base) / slope
    memory, cap = Memory(), None
    for tick in range(240):
        batch = min(demand, LIMIT, cap or LIMIT)
        waiting = max(0.0, demand - batch)
        snapshot = seen(float(batch), base + slope * batch, waiting=waiting, at=NOW + 5 * tick)
        decision = plan(snapshot, INTENT, memory)
        memory, cap = decision.memory, decision.cap.wanted
    batch = min(demand, LIMIT, cap or LIMIT)
    if meets >= LIMIT // 4:
        assert base + slope * batch <= 1.06 * TARGET
    assert cap is None or cap >= min(LIMIT // 4, int(meets) - 1)
    if cap is not None:
        assert cap >= min(int(0.85 * meets), LIMIT - 1, demand)
