"""Lengths of requests by percentile: in the spec, in what is sent, in what the profile knows, and what is refused."""

import pytest
from pydantic import ValidationError
from tests.controller.manifests import calibration
from tests.controller.test_calibration_steps import KEY, World
from typer.testing import CliRunner

from crossover.api.resources import CalibrationSpec
from crossover.api.resources.calibration import WorkloadSpec
from crossover.cli import app
from crossover.controller.calibration.environment import asked_digest
from crossover.controller.calibration.lengths import lengths_of, mean_output_tokens

HALF, MOST = {"percentile": 50, "tokens": 100}, {"percentile": 90, "tokens": 500}
OLDER = "4e0dd435395e7746"
BOTH = {"outputPercentiles": [{"percentile": 0, "tokens": 100}, {"percentile": 100, "tokens": 300}]}


def test_lengths_are_drawn_between_the_percentiles():
    found = lengths_of(WorkloadSpec(inputTokens=64, **BOTH))
    outputs = sorted(wanted for _, wanted in found.pairs)
    assert {given for given, _ in found.pairs} == {64}
    assert (outputs[0], outputs[len(outputs) // 2], outputs[-1]) == pytest.approx((100, 200, 300), abs=2)
    assert found.mean_output_tokens == pytest.approx(200, abs=1)


async def test_a_fleet_knows_how_long_answers_are_as_far_as_the_spec_tells():
    for workload, tokens in (({"outputTokens": 80}, 80), (BOTH, 200), ({"traceRef": {"name": "t", "key": "t"}}, None)):
        world = World(workload=workload)
        await world.ticks()
        assert world.store.resolve(*KEY).output_tokens == (None if tokens is None else pytest.approx(tokens, abs=1))
    assert mean_output_tokens(WorkloadSpec()) == 256


def test_a_calibration_of_an_older_operator_is_not_measured_anew():
    """The digest of what was asked for, as an operator without percentiles wrote it."""
    spec = CalibrationSpec.model_validate({"targetRef": {"name": "llama"}, "engine": {"type": "SGLang"}})
    assert asked_digest(spec) == OLDER
    other = CalibrationSpec.model_validate(
        {"targetRef": {"name": "llama"}, "engine": {"type": "SGLang"}, "workload": BOTH}
    )
    assert asked_digest(other) != OLDER


REFUSED = [[MOST, {"percentile": 99, "tokens": 400}], [HALF, {"percentile": 50, "tokens": 120}]]


@pytest.mark.parametrize("given", REFUSED)
def test_lengths_that_fall_are_refused(given):
    with pytest.raises(ValidationError, match="must not fall"):
        WorkloadSpec(inputPercentiles=given)


@pytest.mark.xdist_group("controller")
def test_the_api_server_refuses_the_same(space):
    for name in ("inputPercentiles", "outputPercentiles"):
        for given in REFUSED:
            with pytest.raises(Exception, match="must not fall"):
                space.plane.apply(calibration(space.namespace, workload={name: given}, suspend=True))
    space.plane.apply(calibration(space.namespace, workload={"inputPercentiles": [MOST, HALF], **BOTH}, suspend=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("50", "--input-percentiles"),
        ("50:many", "percentile:tokens"),
        ("50:10,99:5", "must not fall"),
        ("150:10", "0 and 100"),
    ],
)
def test_the_command_line_says_what_is_wrong(text, words):
    result = CliRunner().invoke(app, ["calibrate", "http://127.0.0.1:9", "--input-percentiles", text])
    assert result.exit_code == 2
    assert words in result.output
