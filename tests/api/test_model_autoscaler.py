"""The schema on the API server and the pydantic models accept and refuse the same objects."""

import copy

import pytest
from pydantic import ValidationError
from tests.controller.manifests import autoscaler

from crossover.api import intent
from crossover.api.invalid import explain
from crossover.api.resources import ModelAutoscaler
from crossover.api.resources.behavior import tolerance_share

pytestmark = pytest.mark.xdist_group("controller")


def changed(path, value):
    """A valid object with one field changed; ``...`` removes it."""
    made = copy.deepcopy(autoscaler("ns", "x"))
    *parents, last = path.split(".")
    node = made["spec"]
    for name in parents:
        node = node.setdefault(name, {})
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return made


VALID = {
    "as it is": changed("mode", "Active"),
    "advisory": changed("mode", "Advisory"),
    "no speculation": changed("speculation", ...),
    "no target of running requests": changed("replicas.targetRunningRequests", ...),
    "threshold pair equal": changed("speculation.threshold.enableBelowRunningRequests", 32),
    "threshold alone": changed("speculation.threshold.enableBelowRunningRequests", ...),
    "min is max": changed("replicas.min", 6),
    "tolerance as decimal": changed("replicas.behavior.scaleUp", {"tolerance": "0.05"}),
    "tolerance as milli": changed("replicas.behavior.scaleUp", {"tolerance": "50m"}),
    "policies": changed(
        "replicas.behavior.scaleUp",
        {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}], "selectPolicy": "Min"},
    ),
    "disabled": changed("replicas.behavior.scaleDown", {"selectPolicy": "Disabled"}),
    "by a calibration": changed("speculation", {"calibrationRef": {"name": "cal"}}),
    "utilization": changed("replicas.utilizationPercent", 70),
    "fallback": changed("replicas.fallback", {"replicas": 4}),
    "another kind": changed("scaleTargetRef", {"apiVersion": "a.b/v1", "kind": "Thing", "name": "x"}),
}
INVALID = {
    "a threshold and a calibration": changed("speculation.calibrationRef", {"name": "cal"}),
    "neither threshold nor calibration": changed("speculation", {"policy": "Auto"}),
    "utilization above 100": changed("replicas.utilizationPercent", 101),
    "no target": changed("scaleTargetRef", ...),
    "no replicas": changed("replicas", ...),
    "no max": changed("replicas.max", ...),
    "min above max": changed("replicas.min", 7),
    "zero min": changed("replicas.min", 0),
    "huge max": changed("replicas.max", 10001),
    "negative target": changed("replicas.targetRunningRequests", -1),
    "text for a number": changed("replicas.max", "many"),
    "unknown mode": changed("mode", "Dry"),
    "unknown engine": changed("engine.type", "Ollama"),
    "port out of range": changed("engine.port", 70000),
    "container is no label": changed("engine.container", "Server!"),
    "threshold pair the wrong way round": changed("speculation.threshold.enableBelowRunningRequests", 33),
    "no threshold": changed("speculation.threshold", ...),
    "draft of zero": changed("speculation.maxDraftTokens", 0),
    "stale before the next look": changed("metrics.staleAfterSeconds", 2) | {},
    "interval of zero": changed("metrics.intervalSeconds", 0),
    "fallback above max": changed("replicas.fallback", {"replicas": 7}),
    "fallback below min": changed("replicas", {"min": 3, "max": 6, "fallback": {"replicas": 2}}),
    "policy without period": changed("replicas.behavior.scaleUp", {"policies": [{"type": "Pods", "value": 1}]}),
    "period too long": changed(
        "replicas.behavior.scaleUp", {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}
    ),
    "window too long": changed("replicas.behavior.scaleDown.stabilizationWindowSeconds", 3601),
    "tolerance as text": changed("replicas.behavior.scaleUp", {"tolerance": "little"}),
    "surge of zero": changed("speculation.restart.maxSurge", 0),
    "name too long": changed("scaleTargetRef.name", "x" * 254),
    "unknown lever": changed("speculation.lever", "Magic"),
}
INVALID["stale before the next look"]["spec"]["metrics"]["intervalSeconds"] = 2


@pytest.mark.parametrize("name", VALID)
def test_models_accept(name):
    ModelAutoscaler.model_validate(VALID[name])


@pytest.mark.parametrize("name", INVALID)
def test_models_refuse_and_name_the_field(name):
    with pytest.raises(ValidationError) as refused:
        ModelAutoscaler.model_validate(INVALID[name])
    assert all(item.path.startswith("spec") and item.fix for item in explain(refused.value))


def test_the_api_server_agrees_with_the_models_on_every_object(rig):
    accepted = {**VALID, **INVALID}
    verdicts = {}
    for name, manifest in accepted.items():
        manifest["metadata"] = {"name": "x", "namespace": "default"}
        path = "/apis/crossover.dev/v1alpha1/namespaces/default/modelautoscalers?dryRun=All&fieldValidation=Strict"
        try:
            rig.request("POST", path, manifest)
            verdicts[name] = True
        except OSError:
            verdicts[name] = False
    assert verdicts == {name: name in VALID for name in accepted}


def test_unknown_fields_are_refused_by_both(rig):
    made = changed("replicas.maximum", 3)
    made["metadata"] = {"name": "x", "namespace": "default"}
    with pytest.raises(ValidationError):
        ModelAutoscaler.model_validate(made)
    path = "/apis/crossover.dev/v1alpha1/namespaces/default/modelautoscalers?dryRun=All&fieldValidation=Strict"
    with pytest.raises(OSError, match="400"):
        rig.request("POST", path, made)


def test_defaults_of_the_schema_are_the_defaults_of_the_models(rig):
    bare = {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "ModelAutoscaler",
        "metadata": {"name": "bare", "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"name": "x"},
            "replicas": {"max": 2},
            "speculation": {"threshold": {"disableAboveRunningRequests": 9}},
        },
    }
    stored = rig.request("POST", "/apis/crossover.dev/v1alpha1/namespaces/default/modelautoscalers?dryRun=All", bare)
    assert ModelAutoscaler.model_validate(stored).spec == ModelAutoscaler.model_validate(bare).spec


def test_the_target_cannot_be_changed(space):
    space.plane.apply(autoscaler(space.namespace, "llama"))
    other = autoscaler(space.namespace, "llama", target="other")
    with pytest.raises(RuntimeError, match="scaleTargetRef cannot be changed"):
        space.plane.apply(other)


def test_kubectl_scale_sets_the_floor(space):
    space.plane.apply(autoscaler(space.namespace, "llama"))
    space.plane.kubectl("-n", space.namespace, "scale", "mas/llama", "--replicas=3")
    assert space.get("llama")["spec"]["replicas"]["min"] == 3


def test_the_intent_has_the_hpas_defaults():
    spec = ModelAutoscaler.model_validate(VALID["no speculation"]).spec.to_intent()
    assert spec.replicas.scale_up == intent.DEFAULT_SCALE_UP
    assert spec.replicas.scale_down.stabilization_window_seconds == 3
    assert spec.replicas.scale_down.policies == intent.DEFAULT_SCALE_DOWN.policies
    assert spec.speculation is None


@pytest.mark.parametrize(("text", "share"), [("0.1", 0.1), ("100m", 0.1), ("0", 0.0), ("1", 1.0)])
def test_tolerance_is_a_quantity(text, share):
    assert tolerance_share(text) == share
