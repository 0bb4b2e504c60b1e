"""What is said about points: the verdict, the schedule in the engine's words, capacity, import and export."""

from dataclasses import replace

import pytest

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.api.points import CalibrationPoint
from crossover.calibrate.result import as_document, from_csv, from_json, summarise, to_csv, to_json
from crossover.decide.profile import ProfileError
from crossover.decide.variant import GATED, OFF, Variant
from crossover.engines.contract import ConfigFile
from tests.calibrate.sweeps import NONE, SCENES, Scene, sweep
from tests.decide.truth import points

CHAIN = SCENES["chain of 3, 70B on A100"]
EAGLE = Capability(
    EngineType.SGLANG,
    "0.5.23",
    "EAGLE",
    max_draft_tokens=3,
    schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE,
    zero_is_safe=True,
    batch_padding=(1, 2, 4, 8, 16, 32, 64, 80, 96, 128),
)


def result_of(scene: Scene, **more):
    return summarise(sweep(scene, noise=0.0).points, **more)


def test_one_draft_that_crosses():
    result = result_of(CHAIN)
    truth = CHAIN.crossings(Variant(3), OFF)[0]
    assert result.verdict.startswith(f"Draft 3 pays up to {truth:.0f} (")
    assert "output tokens/s at 1" in result.verdict


def test_never_and_always():
    assert result_of(NONE["never pays"][0]).verdict.endswith("run without it.")
    assert result_of(NONE["always pays"][0]).verdict.endswith("leave it on.")


def test_a_curve_that_crosses_twice():
    verdict = result_of(SCENES["twice: mixture of experts, chain of 7"]).verdict
    assert verdict.startswith("Draft 7 pays from ")
    assert " to " in verdict


def test_several_drafts_are_said_as_a_schedule():
    result = result_of(SCENES["five variants"])
    assert result.verdict.startswith("Best inside the engine: draft 7 up to ")
    assert "draft 3 pays up to" in result.verdict
    assert not result.zero_is_assumed


def test_the_schedule_is_rendered_for_the_engine():
    result = result_of(CHAIN, capability=EAGLE)
    assert isinstance(result.rendered, ConfigFile)
    assert '"candidate_steps"' in result.rendered.content
    assert result.schedule[0] == (1, 3)
    assert result.schedule[-1][1] == 0
    assert result.zero_is_assumed, "no gated engine was measured"


def test_a_zero_that_is_not_safe_is_not_scheduled():
    result = result_of(CHAIN, capability=replace(EAGLE, zero_is_safe=False))
    assert all(draft > 0 for _, draft in result.schedule)


def test_an_engine_that_takes_no_schedule_says_why():
    refusing = replace(EAGLE, schedule_dialect=None, schedule_refusal="adaptive steps need topk 1")
    result = result_of(CHAIN, capability=refusing)
    assert result.rendered is None
    assert result.refusal == "adaptive steps need topk 1"


def test_capacity_of_gated_and_off_is_told_apart():
    result = summarise(points(), tpot_seconds=0.05)
    by_variant = {item.variant: item for item in result.capacities}
    assert by_variant[OFF].tokens_per_second != by_variant[GATED].tokens_per_second
    assert all(item.time_per_output_token_seconds <= 0.0501 for item in result.capacities)


def test_a_limit_of_a_server_bounds_its_capacity():
    free, bound = summarise(points()), summarise(points(), limits={OFF: 48.0})
    capacity = {item.variant: item.running_requests for item in bound.capacities}
    assert capacity[OFF] <= 48
    assert {item.variant: item.running_requests for item in free.capacities}[OFF] > 48


def test_nothing_to_compare_is_said():
    only = [CalibrationPoint(b, 3, step_seconds=0.01 + b / 1000, acceptance_length=2.4) for b in (1, 8, 32)]
    assert "without speculation" in summarise(only).verdict
    zero = [CalibrationPoint(b, 0, True, step_seconds=0.01 + b / 1000) for b in (1, 8, 32)]
    assert "No draft length" in summarise(zero).verdict
    with pytest.raises(ProfileError):
        summarise([])


def test_points_survive_csv_and_json():
    measured = sweep(CHAIN, noise=0.01).points
    measured = [replace(point, acceptance_error=0.02) for point in measured]
    assert from_json(to_json(measured)) == measured
    for one, two in zip(measured, from_csv(to_csv(measured)), strict=True):
        assert two.asked_running_requests == one.asked_running_requests
        assert two.step_seconds == pytest.approx(one.step_seconds, rel=1e-5)
        assert two.acceptance_length == pytest.approx(one.acceptance_length, rel=1e-5)
        assert (two.off, two.draft_tokens) == (one.off, one.draft_tokens)
    with pytest.raises(ValueError, match="point 1"):
        from_json([{"running_requests": 1, "draft": 3}])


def test_the_document_holds_what_was_said():
    document = as_document(result_of(CHAIN, capability=EAGLE))
    assert document["crossovers"][0]["against"] == "off"
    assert document["schedule_zero_is_assumed"] is True
    assert '"candidate_steps"' in document["rendered"]
    assert len(document["points"]) <= 24
