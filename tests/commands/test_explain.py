"""`crossover explain`: what status says, the decision again, and the loads that would change it, against the thresholds and
the HPA's arithmetic of the spec."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.decide.fluid import FluidFleet
from tests.decide.truth import points
from typer.testing import CliRunner

from crossover.api.decision import DecisionReason, Memory
from crossover.api.fleet import EngineType
from crossover.api.intent import Mode
from crossover.api.resources import ModelAutoscalerSpec
from crossover.commands.explain import app
from crossover.decide import plan, to_json, with_changes
from crossover.decide.profile import fit_profile
from crossover.decide.tables import write_points
from crossover.report.facts import TickFacts
from crossover.report.reasons import MEANING, as_table
from crossover.report.status import build
from crossover.report.texts import Reason

SPEC = {
    "scaleTargetRef": {"name": "llama"},
    "replicas": {"min": 1, "max": 8, "targetRunningRequests": 40},
    "speculation": {
        "threshold": {"disableAboveRunningRequests": 32, "enableBelowRunningRequests": 20},
        "maxDraftTokens": 7,
    },
}
CALIBRATED = {
    "scaleTargetRef": {"name": "llama"},
    "objectives": {"timePerOutputTokenMilliseconds": 50},
    "replicas": {"min": 1, "max": 20},
    "speculation": {"calibrationRef": {"name": "llama-h100"}, "maxDraftTokens": 7},
}


def saved(fleet, spec=SPEC, ticks=20, profile=None):
    """The object as the operator would have left it after some ticks of a steady fleet."""
    intent, memory = ModelAutoscalerSpec.model_validate(spec).to_intent(), Memory()
    for _ in range(ticks):
        for _ in range(15):
            fleet.step(fleet.demand / fleet.output_tokens)
        snapshot = fleet.snapshot()
        decision = plan(snapshot, intent, memory, profile)
        fleet.carry_out(decision)
        memory = with_changes(decision.memory, decision, replicas=True, draft=True)
    facts = TickFacts(
        snapshot.at_seconds, 1, Mode.ACTIVE, intent, "Deployment llama", "app=llama", 30000, EngineType.SGLANG, "0.5.23",
        snapshot, decision, calibrated=profile is not None,
    )  # fmt: skip
    body = {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "ModelAutoscaler",
        "metadata": {"name": "llama", "namespace": "models"},
        "spec": spec,
        "status": build(facts, to_json(memory)),
    }
    return body, decision


def steady(demand, desired=3, **more):
    fleet = FluidFleet(desired=desired, **more)
    fleet.demand = demand
    return fleet.warm(demand)


def explained(tmp_path, body, *arguments, status=0):
    path = tmp_path / "mas.yaml"
    path.write_text(json.dumps(body))
    result = CliRunner().invoke(app, ["--file", str(path), "--json", *arguments])
    assert status is None or result.exit_code == status, result.output
    return json.loads(result.stdout)


def turn(document, what):
    (found,) = [item for item in document["would_change"] if item["what"].startswith(what)]
    return found


@pytest.fixture
def calm(tmp_path):
    body, decision = saved(steady(2_000.0))
    return explained(tmp_path, body), decision


def test_the_decision_again_is_the_decision(calm):
    document, decision = calm
    again = document["decided_again"]
    assert (again["draft"]["reason"], again["draft"]["current"]) == (str(decision.draft.reason), decision.draft.current)
    assert again["replicas"]["recommended"] == decision.replicas.recommended
    seen = decision.numbers["running_requests_per_scheduler"]
    assert again["numbers"]["running_requests_per_scheduler"] == pytest.approx(seen, abs=0.06)
    assert document["last_decision"]["meaning"]


def test_the_load_that_switches_off_is_the_threshold(calm):
    found = turn(calm[0], "draft 7 -> 0")
    assert found["running_requests_per_scheduler"] == pytest.approx(32, rel=0.01)
    assert found["after_seconds"] == 60, "the threshold's stabilization window"
    assert found["reason"] == "AboveCrossover"


def test_the_load_that_adds_replicas_is_the_target_and_its_tolerance(calm):
    found = turn(calm[0], "replicas 3 -> 4")
    assert found["running_requests_per_scheduler"] == pytest.approx(40 * 1.1, rel=0.01)
    assert found["after_seconds"] == 0


def test_what_was_weighed_and_lost_has_its_numbers(calm):
    document, decision = calm
    lost = {item["what"]: item["lost_because"] for item in document["decided_again"]["alternatives"]}
    running = 3 * decision.numbers["demand_requests_per_replica"]
    assert lost["4 replicas"].startswith(f"{running / 4:.1f} requests per replica")
    assert lost["2 replicas"].startswith(f"{running / 2:.1f} requests per replica")
    assert "off above 32" in lost["draft 0 by a restart"]


def test_an_engine_that_follows_a_schedule_turns_by_itself(tmp_path):
    fleet = steady(2_000.0, follows=True)
    fleet.settings = replace(fleet.settings, schedule=((1, 7), (33, 0)))
    body, _ = saved(fleet)
    document = explained(tmp_path, body, status=1)
    assert document["ready"]["reason"] == "ScheduleIgnoredByEngine", "these pods never say that they follow it"
    found = turn(document, "draft 7 -> 0 by the engine")
    assert found["running_requests_per_scheduler"] == 33


def test_conditions_that_stop_it_are_listed(tmp_path):
    body, _ = saved(steady(2_000.0))
    body["spec"] = {**SPEC, "mode": "Advisory"}
    effective = next(item for item in body["status"]["conditions"] if item["type"] == "Effective")
    effective |= {"status": "False", "reason": "Advisory"}
    stopped = explained(tmp_path, body)["stopped_by"]
    assert [item["type"] for item in stopped] == ["Effective"]


def test_calibrated_mode_needs_the_points_and_says_so(tmp_path):
    profile = fit_profile(points())
    body, decision = saved(steady(6_000.0), CALIBRATED, ticks=120, profile=profile)
    without = explained(tmp_path, body)
    assert without["decided_again"] is None
    assert "--points" in without["taken_for_granted"][-1]
    table = tmp_path / "points.csv"
    table.write_text(write_points(points()))
    document = explained(tmp_path, body, "--points", str(table))
    again = document["decided_again"]
    assert again["replicas"]["recommended"] == decision.replicas.recommended
    weighed = {item["what"].split(" on ")[0] for item in again["alternatives"]}
    assert weighed < {"off", "draft 1", "draft 3", "draft 7"}
    assert len(weighed) == 3, "all but the one that won"
    more = [
        item for item in document["would_change"] if item["what"].startswith("replicas") and item["load_factor"] > 1
    ]
    best = again["numbers"]["capacity_tokens_per_second_per_replica"]
    assert more[0]["demand_tokens_per_second"] >= 0.85 * best * again["replicas"]["current"] * 0.99


def test_a_calibration_saved_with_it_is_used(tmp_path):
    body, _ = saved(steady(6_000.0), CALIBRATED)
    given = [
        {
            "runningRequests": str(point.running_requests),
            "draftTokens": point.draft_tokens,
            "off": point.off,
            "stepMilliseconds": f"{1000 * point.step_seconds:.3f}",
            "acceptanceLength": f"{point.acceptance_length:.3f}",
            "contextTokens": 512,
        }
        for point in points()
    ]
    calibration = {
        "kind": "Calibration",
        "metadata": {"name": "llama-h100", "namespace": "models", "uid": "1", "generation": 1},
        "spec": {"points": given},
    }
    document = explained(tmp_path, {"kind": "List", "items": [body, calibration]})
    assert document["decided_again"] is not None, document["taken_for_granted"]
    apart = tmp_path / "cal.yaml"
    apart.write_text(yaml.safe_dump(calibration))
    assert explained(tmp_path, body, "--calibration", str(apart)) == document
    apart.write_text(yaml.safe_dump({**calibration, "metadata": {"name": "other"}}))
    wrong = CliRunner().invoke(app, ["--file", str(tmp_path / "mas.yaml"), "--calibration", str(apart)])
    assert wrong.exit_code == 2
    assert "calibrationRef.name is llama-h100" in wrong.output


def test_with_a_stale_calibration_it_decides_as_carefully_as_the_operator(tmp_path, measured):
    """Load for one replica on three pods: they stay, because nobody knows what this machine can do."""
    table = measured[2]
    idle, _ = saved(steady(300.0, desired=4), CALIBRATED, ticks=4, profile=fit_profile(points()))
    fresh = explained(tmp_path, idle, "--points", str(table), "--pods", "6")
    stale = [
        {**item, "status": "False", "reason": "CalibrationStale"} if item["type"] == "Calibrated" else item
        for item in idle["status"]["conditions"]
    ]
    aged = {**idle, "status": {**idle["status"], "conditions": stale}}
    document = explained(tmp_path, aged, "--points", str(table), "--pods", "6", status=None)
    assert fresh["asked"]["if_it_lasts"][-1]["replicas"]["recommended"] < 6
    assert all(then["replicas"]["desired"] >= 6 for then in document["asked"]["if_it_lasts"])
    assert document["decided_again"]["draft"]["reason"] == "HeldByPolicy"
    assert any("is stale" in line for line in document["taken_for_granted"])
    assert not any(item["what"].startswith("replicas") and item["load_factor"] < 1 for item in document["would_change"])


def test_a_condition_that_stops_it_is_exit_status_1(tmp_path):
    body, _ = saved(steady(2_000.0))
    ready = next(item for item in body["status"]["conditions"] if item["type"] == "Ready")
    ready |= {"status": "False", "reason": "TargetClaimed", "message": "delete one of the two"}
    assert explained(tmp_path, body, status=1)["ready"]["reason"] == "TargetClaimed"


def test_asked_at_a_load_above_the_threshold_it_switches_off_after_the_window(tmp_path):
    body, _ = saved(steady(2_000.0))
    document = explained(tmp_path, body, "--running", "36")["asked"]
    assert (document["running_requests_per_scheduler"], document["pods"]) == (36, 3)
    assert document["decision"]["draft"]["reason"] == "Stabilizing"
    (off,) = [then for then in document["if_it_lasts"] if then["draft"]["target"] is not None]
    assert (off["after_seconds"], off["draft"]["current"], off["draft"]["target"]) == (60, 7, 0)
    lost = {item["what"] for item in document["decision"]["alternatives"]}
    assert {"4 replicas", "2 replicas"} <= lost
    assert explained(tmp_path, body)["asked"] is None


def test_asked_at_a_load_of_two_targets_it_doubles_the_pods(tmp_path):
    body, _ = saved(steady(2_000.0))
    for pods in (2, 3):
        document = explained(tmp_path, body, "--running", "80", "--pods", str(pods))["asked"]
        assert document["decision"]["replicas"]["current"] == pods
        assert document["decision"]["replicas"]["recommended"] == 2 * pods, "80 of a target of 40"


def test_asked_on_fewer_pods_the_requests_stay_in_simple_mode(tmp_path):
    body, decision = saved(steady(2_000.0))
    document = explained(tmp_path, body, "--pods", "1")["asked"]
    total = decision.numbers["running_requests"]
    assert document["running_requests_per_scheduler"] == pytest.approx(total, rel=0.02)
    assert any("stays" in text for text in document["taken_for_granted"])


@pytest.fixture
def measured(tmp_path):
    profile = fit_profile(points())
    body, decision = saved(steady(6_000.0), CALIBRATED, ticks=120, profile=profile)
    table = tmp_path / "points.csv"
    table.write_text(write_points(points()))
    return body, decision, table


def test_asked_on_other_pods_the_demand_stays_with_a_calibration(tmp_path, measured):
    body, decision, table = measured
    demand = decision.numbers["demand_tokens_per_second"]
    count = decision.replicas.current + 2
    document = explained(tmp_path, body, "--points", str(table), "--pods", str(count))["asked"]
    assert document["decision"]["numbers"]["demand_tokens_per_second"] == pytest.approx(demand, rel=0.05)
    assert document["running_requests_per_scheduler"] < decision.numbers["running_requests_per_scheduler"]
    assert document["decision"]["replicas"]["recommended"] == pytest.approx(decision.replicas.recommended, abs=1)


def test_asked_on_too_few_pods_for_the_demand_it_says_what_they_serve(tmp_path, measured):
    body, _, table = measured
    document = explained(tmp_path, body, "--points", str(table), "--pods", "1")["asked"]
    assert document["decision"] is None
    assert "without end" in document["taken_for_granted"][0]


def test_the_calibration_is_shown_as_the_operator_reads_it(tmp_path, measured):
    body, decision, table = measured
    told = explained(tmp_path, body, "--points", str(table))["calibration"]
    most = max(item["tokens_per_second"] or 0 for item in told["capacity"])
    capacity = decision.numbers["capacity_tokens_per_second_per_replica"]
    assert most >= capacity * 0.98
    assert {item["draft_tokens"] for item in told["crossovers"]} == {1, 3, 7}
    path = tmp_path / "mas.yaml"
    text = CliRunner().invoke(app, ["--file", str(path), "--points", str(table), "--running", "30"]).output
    assert "tok/s per scheduler" in text
    assert "Asked: " in text


def test_as_text_it_tells_the_story(tmp_path):
    body, _ = saved(steady(2_000.0))
    path = tmp_path / "mas.yaml"
    path.write_text(json.dumps(body))
    text = CliRunner().invoke(app, ["--file", str(path)]).output
    for words in ("Last decision", "Decided again", "Weighed and lost", "What would change it", "draft 7 -> 0"):
        assert words in text


def test_a_fleet_that_was_never_seen_is_told_with_status_one(tmp_path):
    path = tmp_path / "mas.yaml"
    path.write_text(yaml.safe_dump({"kind": "ModelAutoscaler", "metadata": {"name": "x"}, "spec": SPEC}))
    result = CliRunner().invoke(app, ["--file", str(path)])
    assert result.exit_code == 1
    assert "has not seen this fleet yet" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is neither YAML nor JSON"),
        ("kind: Deployment", "holds 0 ModelAutoscalers"),
        ("just text", "holds 0 ModelAutoscalers"),
        (
            "kind: ModelAutoscaler\nspec: {replicas: {max: 2}, scaleTargetRef: {name: a}}\nstatus: {conditions: 5}",
            "status.conditions: 5",
        ),
        (
            "kind: ModelAutoscaler\nmetadata: 5\nspec: {replicas: {max: 2}, scaleTargetRef: {name: a}}",
            "metadata: must be an object",
        ),
        ("kind: ModelAutoscaler\nspec: {replicas: {min: 9, max: 2}, scaleTargetRef: {name: a}}", "spec.replicas"),
    ],
)
def test_input_that_cannot_be_used_says_why(tmp_path, text, words):
    path = tmp_path / "mas.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["--file", str(path)])
    assert result.exit_code == 2
    assert words in result.output


def test_either_a_name_or_a_file(tmp_path):
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["--file", str(tmp_path / "none.yaml")]).exit_code == 2
    away = CliRunner().invoke(app, ["llama", "--kubeconfig", str(tmp_path / "none")])
    assert away.exit_code == 2
    assert "KUBECONFIG" in away.output


def test_every_reason_has_a_meaning():
    assert set(MEANING) == set(DecisionReason)
    assert all(says and todo for says, todo in MEANING.values())


def test_the_documentation_has_that_table():
    page = (Path(__file__).parents[2] / "docs" / "decision.md").read_text()
    assert as_table() in page


@pytest.mark.parametrize("reason", [*DecisionReason, *Reason], ids=str)
def test_every_reason_a_user_may_read_is_in_the_documentation(reason):
    pages = [Path(__file__).parents[2] / "docs" / name for name in ("decision.md", "troubleshooting.md")]
    text = "\n".join(page.read_text() for page in pages)
    assert re.search(rf"(?<![\w-]){reason}(?!\w)", text), f"{reason}: add it to docs/troubleshooting.md"


def test_every_key_of_its_json_is_in_the_documentation(calm):
    page = (Path(__file__).parents[2] / "docs" / "decision.md").read_text()
    assert [key for key in calm[0] if f"`{key}`" not in page] == []
