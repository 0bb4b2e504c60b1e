"""Conditions, one table per type."""

from dataclasses import replace

import pytest
from tests.report.builders import INTENT, NOW, capability, decision, facts, pod, snapshot

from crossover.api.decision import DecisionReason, Lever
from crossover.api.fleet import EngineType, PodPhase, ScrapeFault, SpeculationSettings
from crossover.api.intent import Intent, Mode, ReplicaIntent, SpeculationIntent, SpeculationPolicy
from crossover.report.conditions import compute
from crossover.report.facts import Problem
from crossover.report.texts import ConditionType


def conditions(given, previous=()):
    return {item["type"]: item for item in compute(given, previous)}


def verdict(given, kind):
    item = conditions(given)[kind]
    return item["status"], item["reason"]


def test_a_healthy_fleet_is_ready_and_effective():
    given = facts(snapshot=snapshot(pod(capability=capability())), decision=decision())
    result = {kind: item["status"] for kind, item in conditions(given).items()}
    assert result == {
        "TargetResolved": "True",
        "MetricsAvailable": "True",
        "SpeculationManaged": "True",
        "ScalingActive": "True",
        "ScalingLimited": "False",
        "Effective": "True",
        "Ready": "True",
    }


def test_all_known_conditions_are_set_on_the_first_visit_even_when_nothing_is_known():
    given = facts(intent=None)
    assert set(conditions(given)) == {str(kind) for kind in ConditionType} - {"Calibrated"}
    assert conditions(given)["Ready"]["status"] == "Unknown"


@pytest.mark.parametrize(
    ("pods", "status", "reason", "words"),
    [
        ([pod(read=False, fault=ScrapeFault.METRICS_OFF)], "False", "MetricsOff", "--enable-metrics"),
        ([pod(), pod("llama-2", read=False, fault=ScrapeFault.TIMED_OUT)], "False", "SomePodsUnknown", "llama-2"),
        ([pod(age=31.0, fault=ScrapeFault.HTTP_STATUS, fault_detail="HTTP 503")], "False", "HTTPStatus", "HTTP 503"),
        ([pod(phase=PodPhase.PENDING, read=False)], "Unknown", "NoReadyPods", "unknown, not zero"),
        ([pod()], "True", "AllPodsRead", "1 of 1"),
    ],
)
def test_metrics_available(pods, status, reason, words):
    given = facts(snapshot=snapshot(*pods), decision=decision())
    item = conditions(given)["MetricsAvailable"]
    assert (item["status"], item["reason"]) == (status, reason)
    assert words in item["message"]


def test_every_scrape_fault_names_the_pod_and_a_fix():
    for fault in ScrapeFault:
        given = facts(snapshot=snapshot(pod("llama-9", read=False, fault=fault)), decision=decision())
        message = conditions(given)["MetricsAvailable"]["message"]
        assert "llama-9" in message
        assert ":" in message.split("llama-9", 1)[1]


def test_a_schedule_that_the_engine_ignores_is_not_managed():
    given = facts(snapshot=snapshot(pod(capability=capability(follows=False))), decision=decision())
    assert verdict(given, "SpeculationManaged") == ("False", "ScheduleIgnoredByEngine")
    assert conditions(given)["Ready"]["status"] == "False"


def test_an_engine_is_not_said_to_ignore_a_schedule_that_nobody_wrote():
    """The best schedule gains nothing over a fixed draft length, so none is written."""
    plain = SpeculationSettings(EngineType.SGLANG, enabled=True, draft_tokens=3)
    seen = snapshot(pod(capability=capability(follows=False)), settings=plain)
    given = facts(snapshot=seen, decision=decision(draft_reason=DecisionReason.STEADY))
    assert verdict(given, "SpeculationManaged") == ("True", "NothingToDo")
    assert conditions(given)["Ready"]["status"] == "True"


def test_a_schedule_about_to_be_written_does_not_make_the_fleet_unready():
    needed = decision(draft_reason=DecisionReason.SCHEDULE_NEEDED, draft_target=3)
    given = facts(snapshot=snapshot(pod(capability=capability())), decision=needed)
    assert conditions(given)["Ready"]["status"] == "True"


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [(None, "NotManaged"), (SpeculationIntent(policy=SpeculationPolicy.HOLD), "OnHold")],
)
def test_speculation_left_alone_on_request_is_no_fault(speculation, reason):
    given = facts(
        intent=Intent(ReplicaIntent(1, 8, 32), speculation),
        snapshot=snapshot(pod()),
        decision=decision(lever=Lever.NONE),
    )
    assert verdict(given, "SpeculationManaged") == ("False", reason)
    assert conditions(given)["Ready"]["status"] == "True"


@pytest.mark.parametrize("mode", [Mode.ADVISORY, Mode.PAUSED])
def test_advisory_and_paused_say_that_nothing_is_changed(mode):
    given = facts(mode=mode, snapshot=snapshot(pod(capability=capability())), decision=decision())
    assert verdict(given, "Effective") == ("False", str(mode))
    assert verdict(given, "ScalingActive") == ("False", str(mode))
    assert conditions(given)["Ready"]["status"] == "True"


def test_no_lever_is_a_fault_with_its_reason():
    given = facts(snapshot=snapshot(pod()), decision=decision(lever=Lever.NONE, draft_reason=DecisionReason.NO_LEVER))
    assert verdict(given, "SpeculationManaged") == ("False", "NoLever")
    assert conditions(given)["Ready"]["status"] == "False"


def test_a_fleet_without_a_replica_target_is_ready():
    given = facts(
        intent=replace(INTENT, replicas=ReplicaIntent(1, 8)),
        snapshot=snapshot(pod(capability=capability())),
        decision=decision(),
    )
    assert verdict(given, "ScalingActive") == ("False", "NoReplicaTarget")
    assert conditions(given)["Ready"]["status"] == "True"


def test_a_limit_is_shown_and_does_not_make_the_fleet_unready():
    limited = decision(limited=DecisionReason.LIMITED_BY_MAX)
    given = facts(snapshot=snapshot(pod(capability=capability())), decision=limited)
    assert verdict(given, "ScalingLimited") == ("True", "LimitedByMax")
    assert conditions(given)["Ready"]["status"] == "True"


def test_the_first_problem_of_a_condition_is_shown_and_sums_up_in_ready():
    given = facts(
        snapshot=snapshot(pod()),
        decision=decision(),
        problems=(
            Problem(ConditionType.SCALING_ACTIVE, "ForeignAutoscaler", "HorizontalPodAutoscaler x scales it too"),
            Problem(ConditionType.SCALING_ACTIVE, "Other", "later"),
        ),
    )
    assert verdict(given, "ScalingActive") == ("False", "ForeignAutoscaler")
    assert conditions(given)["Ready"]["reason"] == "ForeignAutoscaler"


def test_a_fault_outside_is_unknown_not_false():
    given = facts(problems=(Problem(ConditionType.TARGET_RESOLVED, "TargetUnreadable", "HTTP 503", transient=True),))
    assert verdict(given, "TargetResolved") == ("Unknown", "TargetUnreadable")
    assert conditions(given)["Ready"]["status"] == "Unknown"


def test_the_transition_time_moves_only_with_the_status():
    good = facts(snapshot=snapshot(pod(capability=capability())), decision=decision())
    first = compute(good, [])
    later = compute(replace(good, at_seconds=NOW + 60), first)
    assert [c["lastTransitionTime"] for c in later] == [c["lastTransitionTime"] for c in first]
    bad = facts(
        at_seconds=NOW + 120, snapshot=snapshot(pod(read=False, fault=ScrapeFault.TIMED_OUT)), decision=decision()
    )
    turned = {c["type"]: c["lastTransitionTime"] for c in compute(bad, later)}
    assert turned["MetricsAvailable"] == "2027-01-15T08:02:00Z"
    assert turned["TargetResolved"] == "2027-01-15T08:00:00Z"


def test_messages_fit_the_schema():
    long = facts(
        snapshot=snapshot(*(pod(f"llama-{'x' * 240}-{i}", read=False, fault=ScrapeFault.TIMED_OUT) for i in range(9))),
        decision=decision(),
    )
    assert all(len(item["message"]) <= 1024 for item in compute(long, []))
