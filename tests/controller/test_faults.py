"""Bad input and faults, each by its name: the fleet stays as it is, a condition names the field or pod and the fix,
nothing crashes, and no body of a remote answer reaches status, Events or logs."""

import json

import pytest
from tests.controller.manifests import NGRAM, autoscaler, deployment

pytestmark = pytest.mark.xdist_group("controller")


@pytest.fixture
def fleet(space, engines):
    """A running fleet of two pods and its script."""
    script = engines.script(space.namespace, "llama")
    script.running = 40
    space.plane.apply(deployment(space.namespace, "llama", speculation=NGRAM))
    space.plane.wait_for(lambda: space.deployment("llama").get("status", {}).get("readyReplicas") == 2, "2 ready pods")
    return script


def unchanged(space, replicas=2):
    """Nothing of the target was written by the operator."""
    found = space.deployment("llama")
    managers = {item["manager"] for item in found["metadata"]["managedFields"]}
    assert "crossover.dev" not in managers
    assert found["spec"]["replicas"] == replicas


def steady(space, name="llama", **more):
    """An autoscaler whose fleet has nothing to do: 40 running per replica at target 40, no speculation managed."""
    return autoscaler(space.namespace, name, target="llama", speculation=False, **more)


def test_target_missing(space):
    space.plane.apply(autoscaler(space.namespace, "llama", target="absent"))
    condition = space.wait_condition("llama", "TargetResolved", "False", "TargetNotFound")
    assert "Deployment absent" in condition["message"]
    assert "spec.scaleTargetRef" in condition["message"]
    assert space.condition("llama", "Ready")["status"] == "False"


def test_target_without_a_scale_subresource(space):
    spec = {"scaleTargetRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt"}}
    space.plane.apply(autoscaler(space.namespace, "llama", spec=spec))
    condition = space.wait_condition("llama", "TargetResolved", "False", "NoScaleSubresource")
    assert "spec.scaleTargetRef" in condition["message"]


def test_target_that_appears_later_is_found(space, engines):
    engines.script(space.namespace, "llama").running = 40
    space.plane.apply(steady(space))
    space.wait_condition("llama", "TargetResolved", "False", "TargetNotFound")
    space.plane.apply(deployment(space.namespace, "llama", speculation=NGRAM))
    space.wait_condition("llama", "Ready", "True")


def test_no_pod_exists_although_replicas_are_wanted(space):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": space.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    space.plane.apply(quota, deployment(space.namespace, "llama"))
    space.plane.apply(steady(space))
    condition = space.wait_condition("llama", "Effective", "False", "SelectorMatchesNothing")
    assert "app=llama" in condition["message"]
    unchanged(space)


def test_wrong_port(space, fleet):
    space.plane.apply(steady(space, spec={"engine": {"type": "SGLang", "port": 31234}}))
    condition = space.wait_condition("llama", "MetricsAvailable", "False", "Unreachable")
    assert "31234" in condition["message"]
    assert "spec.engine.port" in condition["message"]
    space.wait_condition("llama", "Effective", "False", "MetricsUnknown")
    unchanged(space)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("metrics-off", "MetricsOff"),
        ("hang", "TimedOut"),
        ("html", "NotMetrics"),
        ("huge", "TooLarge"),
        ("nan", "InvalidValues"),
        ("redirect", "Redirected"),
        ("status-503", "HTTPStatus"),
        ("close", "Unreachable"),
    ],
)
def test_a_scrape_that_goes_wrong(space, fleet, operator, fault, reason):
    space.plane.apply(steady(space))
    space.wait_condition("llama", "Ready", "True")
    fleet.fault = fault
    condition = space.wait_condition("llama", "MetricsAvailable", "False", reason)
    assert "llama-" in condition["message"]
    space.wait_condition("llama", "ScalingActive", "False", "MetricsUnknown")
    unchanged(space)
    seen = json.dumps([space.get("llama"), space.events("llama")]) + operator.log
    assert fleet.planted not in seen
    fleet.fault = None
    space.wait_condition("llama", "Ready", "True")


def test_an_hpa_on_the_same_target(space, fleet):
    space.plane.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "rival", "namespace": space.namespace},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "minReplicas": 2,
                "maxReplicas": 2,
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
                    }
                ],
            },
        }
    )
    fleet.running = 100
    space.plane.apply(steady(space))
    condition = space.wait_condition("llama", "ScalingActive", "False", "ForeignAutoscaler")
    assert "HorizontalPodAutoscaler rival" in condition["message"]
    space.wait(
        "llama", lambda s: "5" in s["lastDecision"]["action"] or "replicas" in s["lastDecision"]["action"], "advice"
    )
    unchanged(space)


def test_a_second_model_autoscaler_on_the_same_target(space, fleet):
    space.plane.apply(steady(space))
    space.wait_condition("llama", "Ready", "True")
    space.plane.apply(steady(space, "younger"))
    condition = space.wait_condition("younger", "TargetResolved", "False", "TargetClaimed")
    assert "ModelAutoscaler llama" in condition["message"]
    assert space.condition("llama", "Ready")["status"] == "True"
    space.plane.kubectl("-n", space.namespace, "delete", "modelautoscaler", "llama")
    space.wait_condition("younger", "Ready", "True")


def test_a_threshold_pair_the_wrong_way_round_is_refused_with_the_field(space):
    wrong = autoscaler(space.namespace, "llama")
    wrong["spec"]["speculation"]["threshold"]["enableBelowRunningRequests"] = 99
    with pytest.raises(RuntimeError, match=r"spec\.speculation\.threshold.*wrong way round"):
        space.plane.apply(wrong)


def test_advisory_says_what_it_would_do_and_touches_nothing(space, fleet):
    fleet.running = 100
    space.plane.apply(steady(space, spec={"mode": "Advisory"}))
    space.wait("llama", lambda s: s.get("lastDecision", {}).get("action") == "replicas 2 -> 5", "the advice")
    assert space.condition("llama", "Effective")["reason"] == "Advisory"
    told = [event for event in space.events("llama") if event["reason"] == "Decided"]
    assert len(told) == 1
    unchanged(space)


def test_paused_does_nothing_and_resumes(space, fleet):
    fleet.running = 100
    space.plane.apply(steady(space, spec={"mode": "Paused"}))
    space.wait_condition("llama", "Ready", "True", "Paused")
    unchanged(space)
    space.patch_spec("llama", {"mode": "Active"})
    space.wait("llama", lambda s: space.replicas("llama") == 5, "5 replicas")


def test_fallback_only_raises(space, fleet):
    fleet.fault = "hang"
    space.plane.apply(steady(space, fallback={"replicas": 4, "afterSeconds": 10}))
    space.wait("llama", lambda s: space.replicas("llama") == 4, "the fallback")
    reasons = [item["summary"] for item in space.status("llama")["recentDecisions"]]
    assert "replicas 2 -> 4" in reasons[0]


def test_deleting_the_model_autoscaler_leaves_the_fleet_running_as_it_is(space, fleet):
    fleet.running = 100
    space.plane.apply(steady(space))
    space.wait("llama", lambda s: space.replicas("llama") == 5, "5 replicas")
    before = space.deployment("llama")["spec"]
    space.plane.kubectl("-n", space.namespace, "delete", "modelautoscaler", "llama", "--timeout=20s")
    assert space.deployment("llama")["spec"] == before


def test_a_recreate_strategy_is_refused_because_it_would_stop_every_pod(space, engines):
    engines.script(space.namespace, "llama").running = 40
    manifest = deployment(space.namespace, "llama", speculation=NGRAM)
    manifest["spec"]["strategy"] = {"type": "Recreate"}
    space.plane.apply(manifest)
    space.plane.apply(autoscaler(space.namespace, "llama"))
    condition = space.wait_condition("llama", "SpeculationManaged", "False", "RecreateStrategy")
    assert "spec.strategy.type" in condition["message"]


def test_a_shell_script_that_cannot_be_edited_is_refused(space, engines):
    engines.script(space.namespace, "llama").running = 40
    manifest = deployment(space.namespace, "llama", speculation=NGRAM)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    script = "export A=1; exec python3 -m sglang.launch_server --speculative-algorithm NGRAM $EXTRA"
    container["command"], container["args"] = ["sh", "-c"], [script]
    space.plane.apply(manifest)
    space.plane.apply(autoscaler(space.namespace, "llama"))
    condition = space.wait_condition("llama", "SpeculationManaged", "False", "ShellCommand")
    assert "args: [...]" in condition["message"]


def test_a_steady_fleet_causes_no_api_write(space, fleet):
    space.plane.apply(steady(space))
    space.wait_condition("llama", "Ready", "True")

    def writes():
        verbs = ("create", "update", "patch", "delete")
        return [
            event["requestURI"]
            for event in space.plane.audit_events()
            if event["user"]["username"].endswith(":crossover")
            and event["verb"] in verbs
            and f"/namespaces/{space.namespace}/" in event["requestURI"]
        ]

    before = len(fleet.asked)
    space.plane.wait_for(lambda: len(fleet.asked) > before + 8, "a few more looks at the pods")
    count, looked = len(writes()), len(fleet.asked)
    space.plane.wait_for(lambda: len(fleet.asked) > looked + 20, "many more looks at the pods")
    assert writes()[count:] == []
