"""Points written by one command are read by every other one, in every form; what cannot be read says why."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from crossover.api.points import CalibrationPoint
from crossover.api.resources import CalibrationSpec
from crossover.calibrate.result import summarise
from crossover.cli import app
from crossover.commands import point_files
from crossover.decide.step_model import PRESETS, acceptance_length
from crossover.decide.tables import TableError

MODEL = PRESETS["70b-a100-tp4"]


def seconds(b, k):
    return MODEL.step_seconds(b, k, 512.0 * b, off=not k)


POINTS = [
    CalibrationPoint(
        float(b),
        k,
        not k,
        context_tokens=512.0,
        step_seconds=seconds(b, k),
        acceptance_length=acceptance_length(0.7, k),
        acceptance_by_position=tuple(0.7**n for n in range(1, k + 1)),
        relative_error=0.01,
        asked_running_requests=b,
    )
    for b in (1, 8, 32, 128)
    for k in (0, 3)
]
FORMS = ("csv", "json", "yaml")


def nearly(one, two, *, positions):
    assert (one.draft_tokens, one.off, one.interpolated) == (two.draft_tokens, two.off, two.interpolated)
    assert one.asked_running_requests == two.asked_running_requests
    for name in ("running_requests", "context_tokens", "step_seconds", "acceptance_length", "relative_error"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-4), name
    if positions:
        assert one.acceptance_by_position == pytest.approx(two.acceptance_by_position, abs=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read(tmp_path, form):
    path = tmp_path / f"points.{form}"
    point_files.write(path, POINTS)
    for one, two in zip(point_files.read(path), POINTS, strict=True):
        nearly(one, two, positions=form != "csv")


@given(
    st.floats(0.5, 1e4),
    st.integers(0, 16),
    st.floats(1e-4, 10),
    st.one_of(st.none(), st.floats(1.0, 1e6)),
    st.booleans(),
)
def test_any_point_survives_every_form(tmp_path_factory, running, draft, seconds, context, interpolated):
    point = CalibrationPoint(running, draft, context_tokens=context, step_seconds=seconds, interpolated=interpolated)
    for form in FORMS:
        path = tmp_path_factory.getbasetemp() / f"one.{form}"
        point_files.write(path, [point])
        (back,) = point_files.read(path)
        assert back.step_seconds == pytest.approx(seconds, rel=1e-4)
        assert (back.context_tokens is None) == (context is None)
        assert (back.draft_tokens, back.interpolated) == (draft, interpolated)


def test_the_manifest_is_one_that_the_api_takes(tmp_path):
    path = tmp_path / "Llama 70B_h100.yaml"
    point_files.write(path, POINTS)
    body = yaml.safe_load(path.read_text())
    assert body["metadata"]["name"] == "llama-70b-h100"
    assert len(CalibrationSpec.model_validate(body["spec"]).points) == len(POINTS)


def test_a_calibration_as_kubectl_prints_it_is_read_from_its_status(tmp_path):
    given_points = point_files.manifest("x", POINTS)["spec"]["points"]
    body = {"kind": "Calibration", "spec": {"targetRef": {"name": "llama"}}, "status": {"points": given_points}}
    for name, document in (("cal.yaml", body), ("cal.json", {"kind": "List", "items": [body]})):
        path = tmp_path / name
        path.write_text(json.dumps(document))
        assert len(point_files.read(path)) == len(POINTS)


@pytest.mark.parametrize("form", FORMS)
def test_fit_says_the_same_of_every_form(tmp_path, form):
    path, other = tmp_path / f"points.{form}", tmp_path / "again.json"
    point_files.write(path, POINTS)
    result = CliRunner().invoke(app, ["fit", str(path), "--json", "--out", str(other)])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["crossovers"]
    pays = [b for b in range(1, 129) if acceptance_length(0.7, 3) * seconds(b, 0) > seconds(b, 3)]
    assert found["crossings"][0]["running_requests"] == pytest.approx(max(pays), rel=0.06)
    assert len(point_files.read(other)) == len(POINTS)


def test_fit_gives_the_schedule_that_calibrate_gives_of_the_same_points(tmp_path):
    """Also where the 0 inside of the engine was not measured, and is taken from a process without speculation."""
    path = tmp_path / "points.csv"
    point_files.write(path, POINTS)
    document = json.loads(CliRunner().invoke(app, ["fit", str(path), "--json"]).stdout)
    told = summarise(point_files.read(path))
    assert [tuple(entry) for entry in document["schedule"]] == list(told.schedule)
    assert told.schedule[-1][1] == 0
    assert document["schedule_zero_is_assumed"] is told.zero_is_assumed is True


def test_a_sweep_of_another_server_goes_on_in_json(tmp_path):
    """`calibrate --out` reads what it wrote."""
    path = tmp_path / "points.json"
    point_files.write(path, [replace(POINTS[0], acceptance_by_position=())])
    point_files.write(path, [*point_files.read(path), POINTS[1]])
    assert len(point_files.read(path)) == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "neither JSON nor YAML"),
        ("a.json", "[]", "holds no points"),
        ("a.json", '{"points": [1]}', "holds no points"),
        ("a.json", '[{"running_requests": 1, "draft": 3}]', "point 1"),
        ("a.json", '[{"running_requests": 0, "draft_tokens": 3, "step_seconds": 1}]', "above 0"),
        ("a.json", '[{"running_requests": "many", "draft_tokens": 3, "step_seconds": 1}]', "points:"),
        ("a.json", '[{"running_requests": 1, "draft_tokens": 3}]', "stepMilliseconds or outputTokensPerSecond"),
        ("a.yaml", "kind: Calibration\nspec: {targetRef: {name: x}}\n", "no points yet"),
        ("a.yaml", "kind: List\nitems: []\n", "0 Calibrations"),
        ("a.yaml", "kind: Calibration\nstatus: {points: [{runningRequests: 1}]}\n", "status.points"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TableError, match=words):
        point_files.read(path)
    result = CliRunner().invoke(app, ["fit", str(path)])
    assert result.exit_code == 2
    assert str(path) in result.output.replace("\n", "")
