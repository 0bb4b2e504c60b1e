"""Simple mode's draft length, rule by rule."""

from dataclasses import replace

import pytest

from crossover.api.decision import Change, DecisionReason, Lever, Memory
from crossover.api.intent import LeverChoice, SpeculationPolicy
from crossover.decide import plan
from crossover.decide.schedule import describe, of_threshold, same
from tests.decide.fleets import EAGLE, FOLLOWS, INTENT, NOW, OFF, ON, RESTART_ONLY, fleet, run, speculation

R = DecisionReason
TURNED_OFF = Memory(changes=(Change(NOW - 5000, "draft", 7, 0),))


def held_above(seconds=60.0, **more):
    """Load above the threshold, without a break, up to NOW."""
    return [fleet(40.0, 40.0, 40.0, at=NOW - seconds + 5 * n, **more) for n in range(int(seconds / 5) + 1)]


def held_below(seconds=60.0, **more):
    return [fleet(10.0, 10.0, at=NOW - seconds + 5 * n, settings=OFF, **more) for n in range(int(seconds / 5) + 1)]


def test_off_after_the_load_stayed_above_for_the_window():
    decisions, _ = run(Memory(), INTENT, held_above())
    assert [decision.draft.target for decision in decisions[:-1]] == [None] * 12
    assert {decision.draft.reason for decision in decisions[:-1]} == {R.STABILIZING}
    last = decisions[-1].draft
    assert (last.current, last.target, last.lever, last.reason) == (7, 0, Lever.RESTART, R.ABOVE_CROSSOVER)
    assert "40.0 running per scheduler" in last.message
    assert "above 32 for 60 s" in last.message


def test_a_dip_starts_the_window_again():
    ticks = held_above()
    ticks[6] = fleet(32.0, 32.0, 32.0, at=ticks[6].at_seconds)
    decisions, _ = run(Memory(), INTENT, ticks)
    assert {decision.draft.target for decision in decisions} == {None}


def test_an_unknown_load_starts_the_window_again():
    ticks = held_above()
    ticks[6] = fleet(None, None, None, at=ticks[6].at_seconds)
    decisions, _ = run(Memory(), INTENT, ticks)
    assert {decision.draft.target for decision in decisions} == {None}


def test_on_again_after_the_load_stayed_below():
    decisions, _ = run(TURNED_OFF, INTENT, held_below())
    last = decisions[-1].draft
    assert (last.current, last.target, last.lever, last.reason) == (0, 7, Lever.RESTART, R.BELOW_CROSSOVER)


def test_between_the_thresholds_nothing_changes_in_either_state():
    for settings, memory in ((ON, Memory()), (OFF, TURNED_OFF)):
        ticks = [fleet(25.0, 25.0, at=NOW + 5 * n, settings=settings) for n in range(100)]
        decisions, _ = run(memory, INTENT, ticks)
        assert {(decision.draft.target, decision.draft.reason) for decision in decisions} == {(None, R.STEADY)}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"pending": 1}, R.FROZEN_PODS_PENDING),
        ({"terminating": 1}, R.FROZEN_PODS_TERMINATING),
        ({"rollout_in_progress": True}, R.FROZEN_ROLLOUT),
        ({"desired": 4}, R.FROZEN_PODS_PENDING),
        ({"desired": 2}, R.FROZEN_PODS_TERMINATING),
    ],
)
def test_no_change_while_anything_is_moving(more, reason):
    decisions, _ = run(Memory(), INTENT, held_above(**more), apply=False)
    assert (decisions[-1].draft.target, decisions[-1].draft.reason) == (None, reason)


def test_no_change_while_a_ready_pod_is_unknown():
    ticks = [fleet(40.0, 40.0, None, at=NOW + 5 * n) for n in range(20)]
    decisions, _ = run(Memory(), INTENT, ticks)
    assert (decisions[-1].draft.target, decisions[-1].draft.reason) == (None, R.METRICS_UNKNOWN)


def test_at_most_one_change_per_dwell():
    memory = Memory(changes=(Change(NOW - 800, "draft", 0, 7),))
    decisions, _ = run(memory, INTENT, held_above())
    assert (decisions[-1].draft.target, decisions[-1].draft.reason) == (None, R.DWELLING)
    assert "dwells 100 s more" in decisions[-1].draft.message


def test_the_two_loops_never_act_on_the_same_sample():
    decisions, _ = run(Memory(), INTENT, held_above())
    last = decisions[-1]
    assert last.draft.target == 0
    assert (last.replicas.target, last.replicas.recommended) == (None, 4)
    assert last.replicas.reason is R.FROZEN_ROLLOUT


def test_ranks_are_compared_with_the_threshold_one_by_one():
    """Two ranks with 20 each are a batch of 20, not of 40."""
    snapshot = fleet(20.0)
    two = replace(snapshot.pods[0].reading, schedulers=snapshot.pods[0].reading.schedulers * 2)
    ticks = [
        replace(snapshot, at_seconds=NOW + 5 * n, pods=(replace(snapshot.pods[0], reading=two),)) for n in range(20)
    ]
    decisions, _ = run(Memory(), INTENT, ticks)
    assert decisions[-1].draft.reason is R.STEADY
    assert decisions[-1].numbers["running_requests_per_scheduler"] == 20


def test_a_template_that_never_had_speculation_has_no_lever():
    decisions, _ = run(Memory(), INTENT, held_below())
    assert (decisions[-1].draft.target, decisions[-1].draft.reason) == (None, R.NO_LEVER)


def test_a_threshold_above_the_engines_own_limit_says_that_it_is_never_reached():
    snapshot = fleet(10.0, capability=replace(RESTART_ONLY, max_running_requests=24))
    assert "never reached: the engine runs at most 24" in plan(snapshot, INTENT, Memory()).draft.message


def test_thresholds_the_wrong_way_round_change_nothing_and_name_the_fields():
    wrong = speculation(disable_above_running_requests=20, enable_below_running_requests=32)
    decisions, _ = run(Memory(), wrong, held_above())
    assert {decision.draft.target for decision in decisions} == {None}
    assert "enableBelowRunningRequests 32 is above disableAboveRunningRequests 20" in decisions[-1].draft.message


@pytest.mark.parametrize(
    ("intent", "reason"),
    [
        (replace(INTENT, speculation=None), R.HELD_BY_POLICY),
        (speculation(policy=SpeculationPolicy.HOLD), R.HELD_BY_POLICY),
        (speculation(disable_above_running_requests=None), R.HELD_BY_POLICY),
    ],
)
def test_what_is_not_ours_is_left_alone(intent, reason):
    decisions, _ = run(Memory(), intent, held_above())
    assert {(decision.draft.target, decision.draft.reason) for decision in decisions} == {(None, reason)}


# -- the engine's own schedule ----------------------------------------------------------------------------------------


def eagle(*running, **more):
    return fleet(*running, **({"capability": FOLLOWS, "settings": EAGLE} | more))


def test_a_fleet_that_can_follow_a_schedule_gets_one_written_once():
    first = plan(eagle(10.0, 10.0), INTENT, Memory()).draft
    assert (first.target, first.lever, first.reason) == (3, Lever.ENGINE_SCHEDULE, R.SCHEDULE_NEEDED)
    assert first.schedule == ((1, 3), (33, 0))
    written = eagle(10.0, 10.0, settings=replace(EAGLE, schedule=first.schedule))
    after = plan(written, INTENT, Memory()).draft
    assert (after.target, after.reason) == (None, R.ENGINE_FOLLOWS_SCHEDULE)


def test_where_a_scheduled_zero_is_not_safe_the_schedule_ends_at_one():
    unsafe = eagle(10.0, capability=replace(FOLLOWS, zero_is_safe=None))
    assert plan(unsafe, INTENT, Memory()).draft.schedule == ((1, 3), (33, 1))


def test_a_schedule_that_could_only_say_one_is_no_lever():
    only_one = eagle(10.0, capability=replace(FOLLOWS, zero_is_safe=False), settings=replace(EAGLE, draft_tokens=1))
    assert plan(only_one, INTENT, Memory()).draft.lever is Lever.RESTART


def test_the_schedule_is_not_written_while_pods_are_pending():
    decision = plan(eagle(10.0, pending=1), INTENT, Memory()).draft
    assert (decision.target, decision.reason) == (None, R.FROZEN_PODS_PENDING)


def test_what_the_engine_does_by_itself_is_told_with_its_batch_and_since_when():
    written = replace(EAGLE, schedule=((1, 3), (33, 0)))
    ticks = [eagle(20.0, 20.0, at=NOW, draft=3.0, settings=written)]
    ticks += [eagle(41.0, 41.0, at=NOW + 5 * n, draft=0.0, settings=written) for n in range(1, 8)]
    decisions, _ = run(Memory(), INTENT, ticks)
    last = decisions[-1]
    assert (last.draft.current, last.draft.target, last.draft.reason) == (0, None, R.ENGINE_FOLLOWS_SCHEDULE)
    assert "draft 0 in force for 30 s at 41.0 running per scheduler" in last.draft.message
    assert last.replicas.target == 3, "replicas act on their own condition in the same tick"


def test_a_fleet_of_two_draft_lengths_shows_both():
    written = replace(EAGLE, schedule=((1, 3), (33, 0)))
    snapshot = eagle(20.0, 40.0, settings=written)
    low, high = snapshot.pods
    pods = tuple(
        replace(item, reading=replace(item.reading, schedulers=(replace(item.reading.schedulers[0], draft_tokens=k),)))
        for item, k in ((low, 3.0), (high, 0.0))
    )
    decision = plan(replace(snapshot, pods=pods), INTENT, Memory()).draft
    assert decision.current is None
    assert "now 0 on 1, 3 on 1 schedulers" in decision.message


def test_an_engine_that_adapts_by_itself_and_takes_no_schedule_is_not_fought():
    own = fleet(40.0, capability=replace(RESTART_ONLY, adapts_by_itself=True))
    assert plan(own, INTENT, Memory()).draft.reason is R.NO_LEVER


def test_lever_engine_schedule_without_a_schedule_says_why():
    only = speculation(lever=LeverChoice.ENGINE_SCHEDULE)
    decision = plan(fleet(40.0), only, Memory()).draft
    assert decision.reason is R.NO_LEVER
    assert "support EAGLE and EAGLE3, not NGRAM" in decision.message


def test_lever_restart_is_obeyed_where_a_schedule_would_do():
    assert plan(eagle(10.0), speculation(lever=LeverChoice.RESTART), Memory()).draft.lever is Lever.RESTART


@pytest.mark.parametrize(
    ("asked", "found", "padding", "equal"),
    [
        (((1, 3), (33, 0)), ((1, 3), (33, 0)), (), True),
        (((1, 3), (33, 0)), ((1, 3), (40, 0)), (24, 32, 40, 48), True),
        (((1, 3), (31, 0)), ((1, 3), (40, 0)), (24, 32, 40, 48), True),
        (((1, 3), (33, 0)), ((1, 3), (48, 0)), (24, 32, 40, 48), True),
        (((1, 3), (33, 0)), ((1, 3), (56, 0)), (24, 32, 40, 48, 56), False),
        (((1, 3), (33, 0)), ((1, 3), (32, 0)), (24, 32, 40), False),
        (((1, 3), (33, 0)), ((1, 3), (33, 1)), (), False),
        (((1, 3), (33, 0)), (), (), False),
        (((1, 3), (20, 3), (33, 0)), ((1, 3), (33, 0)), (), True),
    ],
)
def test_a_schedule_read_back_counts_as_the_one_asked_for(asked, found, padding, equal):
    assert same(asked, found, padding) is equal


def test_schedules_read_as_a_sentence():
    assert describe(of_threshold(32, 3, zero_is_safe=True)) == "draft 3 up to 32 running requests, 0 above"
    assert describe(((1, 7), (9, 3), (33, 1))) == "draft 7 up to 8, 3 up to 32 running requests, 1 above"
    assert describe(((1, 3),)) == "draft 3 at any load"
