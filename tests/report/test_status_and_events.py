"""Status is written when it says something new; Events tell changes only."""

from dataclasses import replace

from tests.report.builders import NOW, capability, decision, facts, pod, reading, snapshot

from crossover.api.decision import DecisionReason, Lever
from crossover.api.fleet import ScrapeFault
from crossover.api.intent import Mode
from crossover.report.events import of_tick
from crossover.report.facts import Done
from crossover.report.status import build, worth_writing


def steady(running=30.0, at=NOW, previous=None, **more):
    given = {
        "snapshot": snapshot(pod(read=reading(running), capability=capability())),
        "decision": decision(),
        "at_seconds": at,
        "previous": previous or {},
    }
    return facts(**(given | more))


def test_a_steady_fleet_writes_nothing():
    first = build(steady(), {})
    for seconds in (5, 60, 3600):
        again = build(steady(running=31.0 + seconds % 3, at=NOW + seconds, previous=first), {})
        assert not worth_writing(first, again, seconds)


def test_a_load_that_moved_is_refreshed_but_not_with_every_scrape():
    first = build(steady(), {})
    moved = build(steady(running=60.0, previous=first), {})
    assert not worth_writing(first, moved, 5)
    assert worth_writing(first, moved, 31)


def test_a_new_decision_or_condition_is_written_at_once():
    first = build(steady(), {})
    decided = build(steady(previous=first, decision=decision(target=5, reason=DecisionReason.ABOVE_TARGET)), {})
    assert worth_writing(first, decided, 1)
    lost = steady(previous=first, snapshot=snapshot(pod(read=False, fault=ScrapeFault.TIMED_OUT)))
    assert worth_writing(first, build(lost, {}), 1)


def test_unknown_numbers_are_left_out_of_the_status():
    shown = build(steady(snapshot=snapshot(pod(read=False))), {})["fleet"]
    assert shown == {"pods": "1 ready, 0 pending, 0 terminating, 1 unknown", "engine": "SGLang 0.5.23"}


def test_the_last_decision_carries_action_reason_and_numbers():
    given = steady(decision=decision(target=5, reason=DecisionReason.ABOVE_TARGET))
    last = build(given, {})["lastDecision"]
    assert last["action"] == "replicas 3 -> 5"
    assert last["reason"] == "AboveTarget"
    assert "target 32" in last["message"]


def test_recent_decisions_are_what_was_done_newest_first_and_ten_at_most():
    status = {}
    for step in range(14):
        done = (Done("replicas", f"replicas {step} -> {step + 1}", "load"),)
        status = build(steady(at=NOW + step, previous=status, done=done), {})
    recent = status["recentDecisions"]
    assert len(recent) == 10
    assert recent[0]["summary"] == "08:00:13 replicas 13 -> 14: load"


def test_a_fault_outside_keeps_the_fleet_numbers_as_they_were():
    first = build(steady(), {})
    blind = build(steady(previous=first, snapshot=None, decision=None), {})
    assert blind["fleet"] == first["fleet"]
    assert blind["lastDecision"] == first["lastDecision"]


def events(given):
    return of_tick(given, build(given, {})["conditions"])


def test_a_steady_fleet_has_no_events():
    first = build(steady(), {})
    assert events(steady(previous=first)) == []


def test_what_was_done_is_an_event():
    done = (Done("replicas", "replicas 3 -> 5", "41.0 running per replica"),)
    (event,) = events(steady(previous=build(steady(), {}), done=done))
    assert (event.type, event.reason) == ("Normal", "Scaled")
    assert event.note == "replicas 3 -> 5: 41.0 running per replica"


def test_what_the_engine_did_by_itself_is_an_event_with_its_own_reason():
    done = (Done("draft", "draft 3 -> 0 by the engine", "36.0 running per scheduler", "DraftLengthChanged"),)
    (event,) = events(steady(previous=build(steady(), {}), done=done))
    assert (event.type, event.reason) == ("Normal", "DraftLengthChanged")


def test_a_schedule_about_to_be_written_is_no_warning():
    needed = decision(draft_reason=DecisionReason.SCHEDULE_NEEDED, draft_target=3)
    assert [event for event in events(steady(decision=needed)) if event.type == "Warning"] == []


def test_metrics_lost_is_a_warning_once_and_their_return_is_normal():
    first = build(steady(), {})
    lost = steady(previous=first, snapshot=snapshot(pod(read=False, fault=ScrapeFault.TIMED_OUT)))
    warnings = events(lost)
    assert {event.type for event in warnings} == {"Warning"}
    assert "MetricsAvailable" in {event.action for event in warnings}
    after = build(lost, {})
    assert events(replace(lost, previous=after)) == []
    assert {event.type for event in events(steady(previous=after))} == {"Normal"}


def test_advice_is_told_once():
    would = decision(target=5, reason=DecisionReason.ABOVE_TARGET, lever=Lever.NONE)
    given = steady(mode=Mode.ADVISORY, decision=would, previous={"conditions": build(steady(), {})["conditions"]})
    told = [event for event in events(given) if event.reason == "Decided"]
    assert len(told) == 1
    assert told[0].note.startswith("would: replicas 3 -> 5")
    again = replace(given, previous=build(given, {}))
    assert [event for event in events(again) if event.reason == "Decided"] == []
