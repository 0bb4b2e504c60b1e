"""The Calibration's schema on the API server and its model accept and refuse the same objects; points survive the trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.controller.manifests import calibration

from crossover.api.invalid import explain
from crossover.api.points import CalibrationPoint
from crossover.api.resources import Calibration
from crossover.api.resources.calibration import PointSpec

pytestmark = pytest.mark.xdist_group("controller")

PATH = "/apis/crossover.dev/v1alpha1/namespaces/default/calibrations?dryRun=All&fieldValidation=Strict"
POINT = {"runningRequests": 8, "draftTokens": 3, "stepMilliseconds": 9.5, "acceptanceLength": 2.4}


def of(**spec):
    return calibration("default", **spec)


def with_point(**changes):
    point = {key: value for key, value in {**POINT, **changes}.items() if value is not None}
    return of(points=[point])


VALID = {
    "as it is": of(),
    "points only": of(targetRef=None, points=[POINT]),
    "a rate instead of a step": with_point(stepMilliseconds=None, outputTokensPerSecond=900),
    "off": with_point(draftTokens=0, off=True, acceptanceLength=1),
    "draft lengths": of(draftTokens=[1, 3, 5], includeGated=True),
    "a trace": of(workload={"traceRef": {"name": "lengths", "key": "trace.csv"}}),
    "a key": of(apiKeySecretRef={"name": "key", "key": "token"}),
}
INVALID = {
    "neither target nor points": of(targetRef=None),
    "a point without a measure": with_point(stepMilliseconds=None),
    "off with a draft": with_point(off=True),
    "acceptance below one": with_point(acceptanceLength=0.5),
    "no running requests": with_point(runningRequests=0),
    "no rate": with_point(outputTokensPerSecond=0),
    "no loads": of(runningRequests=[]),
    "a load of zero": of(runningRequests=[0]),
    "too many draft lengths": of(draftTokens=list(range(1, 10))),
    "a draft of zero": of(draftTokens=[0]),
    "too few points": of(maxPoints=3),
    "an answer of one token": of(workload={"inputTokens": 8, "outputTokens": 1}),
    "a live cap": of(engine={"type": "SGLang", "liveCap": "Auto"}),
    "an unknown field": of(minutes=3),
}


@pytest.mark.parametrize("name", VALID)
def test_the_model_accepts(name):
    Calibration.model_validate(VALID[name])


@pytest.mark.parametrize("name", INVALID)
def test_the_model_refuses_and_names_the_field(name):
    with pytest.raises(ValidationError) as refused:
        Calibration.model_validate(INVALID[name])
    assert all(item.path.startswith("spec") and item.fix for item in explain(refused.value))


def test_the_api_server_agrees_with_the_model_on_every_object(rig):
    verdicts = {}
    for name, manifest in {**VALID, **INVALID}.items():
        try:
            rig.request("POST", PATH, manifest)
            verdicts[name] = True
        except OSError:
            verdicts[name] = False
    assert verdicts == {name: name in VALID for name in verdicts}


def test_defaults_of_the_schema_are_the_defaults_of_the_model(rig):
    bare = of(engine=None, workload=None, runningRequests=None)
    stored = rig.request("POST", PATH, bare)
    assert Calibration.model_validate(stored).spec == Calibration.model_validate(bare).spec


number = st.floats(0.5, 5000).map(lambda value: float(f"{value:.6g}"))


@given(
    st.builds(
        CalibrationPoint,
        running_requests=number,
        draft_tokens=st.integers(1, 16),
        context_tokens=st.none() | number,
        step_seconds=number.map(lambda value: value / 1000),
        output_tokens_per_second=st.none() | number,
        acceptance_length=st.none() | st.floats(1, 17).map(lambda value: float(f"{value:.6g}")),
        relative_error=st.none() | st.floats(0.0001, 0.9).map(lambda value: float(f"{value:.4g}")),
        verified_tokens=st.none() | st.integers(1, 64),
        asked_running_requests=st.none() | st.integers(1, 1000),
    )
)
def test_a_point_in_status_is_the_point_that_was_measured(point):
    text = PointSpec.of_point(point).model_dump_json(by_alias=True, exclude_none=True)
    back = PointSpec.model_validate_json(text).to_point()
    assert back.step_seconds == pytest.approx(point.step_seconds, rel=1e-5)
    assert back.relative_error == (
        None if point.relative_error is None else pytest.approx(point.relative_error, rel=1e-5)
    )
    for name in ("running_requests", "draft_tokens", "context_tokens", "output_tokens_per_second", "acceptance_length"):
        assert getattr(back, name) == getattr(point, name)
    assert (back.off, back.verified_tokens, back.asked_running_requests) == (
        False,
        point.verified_tokens,
        point.asked_running_requests,
    )
