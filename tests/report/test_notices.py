"""What decisions notice beyond their action reaches the user: a condition, an Event, a metric. Once, and until it is over."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from tests.report.builders import NOW, capability, decision, facts, pod, snapshot

from crossover.api.decision import DecisionReason, Lever, Memory, Notice
from crossover.api.intent import Intent, ReplicaIntent, SpeculationIntent
from crossover.decide.notices import notices
from crossover.report.events import of_tick
from crossover.report.metrics import OperatorMetrics
from crossover.report.status import build, worth_writing

KINDS = [
    (DecisionReason.THRESHOLD_LATCHES, "SpeculationManaged"),
    (DecisionReason.THRESHOLD_CYCLES, "SpeculationManaged"),
    (DecisionReason.CALIBRATION_DRIFT, "Calibrated"),
]


def tick(*told, previous=None, at=NOW, **more):
    decided = replace(decision(lever=Lever.RESTART, draft_reason=DecisionReason.STEADY), notices=told)
    return facts(
        snapshot=snapshot(pod(capability=capability())),
        decision=decided,
        at_seconds=at,
        previous=previous or {},
        calibrated=True,
        **more,
    )


def condition(status, kind):
    return next(item for item in status["conditions"] if item["type"] == kind)


@pytest.mark.parametrize(("reason", "kind"), KINDS)
def test_a_notice_is_a_condition_s_reason_and_message_and_a_warning_told_once(reason, kind):
    notice = Notice(reason, "what was seen, and what a calibration would change")
    quiet = build(tick(), {})
    given = tick(notice, previous=quiet, at=NOW + 10)
    status = build(given, {})
    shown = condition(status, kind)
    assert (shown["status"], shown["reason"], shown["message"]) == ("True", reason, notice.message)
    assert worth_writing(quiet, status, 1), "written at once"
    (event,) = of_tick(given, status["conditions"])
    assert (event.type, event.reason, event.note) == ("Warning", reason, notice.message)

    again = tick(notice, previous=status, at=NOW + 20)
    assert of_tick(again, build(again, {})["conditions"]) == []
    assert not worth_writing(status, build(again, {}), 10)

    over = tick(previous=status, at=NOW + 30)
    (event,) = of_tick(over, build(over, {})["conditions"])
    assert event.type == "Normal"


def test_a_notice_is_told_on_the_first_visit_too():
    """The operator was restarted, or took the fleet over from another."""
    given = tick(Notice(DecisionReason.CALIBRATION_DRIFT, "draft-3 steps take 22 % longer than calibrated"))
    assert [event.reason for event in of_tick(given, build(given, {})["conditions"])] == ["CalibrationDrift"]


def test_a_notice_does_not_make_the_fleet_unready_and_does_not_hide_a_fault():
    notice = Notice(DecisionReason.THRESHOLD_CYCLES, "cycles")
    assert condition(build(tick(notice), {}), "Ready")["status"] == "True"
    lost = replace(
        tick(notice),
        decision=replace(decision(lever=Lever.NONE, draft_reason=DecisionReason.NO_LEVER), notices=(notice,)),
    )
    assert condition(build(lost, {}), "SpeculationManaged")["reason"] == "NoLever"


def test_without_a_calibration_there_is_no_condition_about_one():
    kinds = [item["type"] for item in build(replace(tick(), calibrated=False), {})["conditions"]]
    assert "Calibrated" not in kinds


def test_the_metric_is_one_while_it_lasts_and_goes_with_the_fleet():
    metrics = OperatorMetrics()
    metrics.record("models", "llama", tick(Notice(DecisionReason.THRESHOLD_LATCHES, "latches")))
    series = 'crossover_notice{name="llama",namespace="models",reason="ThresholdLatches"} '
    assert series + "1.0" in generate_latest(metrics.registry).decode()
    metrics.record("models", "llama", tick())
    assert series + "0.0" in generate_latest(metrics.registry).decode()
    metrics.forget("models", "llama")
    assert "ThresholdLatches" not in generate_latest(metrics.registry).decode()


def test_what_decide_notices_is_what_report_knows():
    """A latch and a drift at once, as `decide` words them."""
    memory = Memory(latched=DecisionReason.THRESHOLD_LATCHES, correction={"draft-3": 1.3})
    intent = Intent(ReplicaIntent(1, 8), SpeculationIntent(disable_above_running_requests=32))
    given = tick(*notices(memory, intent))
    status = build(given, {})
    assert "a calibration would raise disableAboveRunningRequests" in condition(status, "SpeculationManaged")["message"]
    assert "draft-3 steps take 30% longer than calibrated" in condition(status, "Calibrated")["message"]
