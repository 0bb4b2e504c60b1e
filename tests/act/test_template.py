"""Plans for a pod template: what is in the apply, what is refused. No cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from crossover.act import mark
from crossover.act.mark import Failure, Mark
from crossover.act.strategy import RolloutRules
from crossover.act.template import Edit, describe, pick_container, plan_template, plan_undo
from crossover.api.fleet import Capability, EngineType
from crossover.api.workload import Owner, Revision, TargetRef
from crossover.cluster.workload import workload_facts
from crossover.engines.contract import ConfigFile, ContainerEdit, Refusal, WantedSpeculation
from tests.act.workloads import NOW, workload
from tests.cluster.edge import ARGS, deployment

OFF, ON = WantedSpeculation(enabled=False), WantedSpeculation(enabled=True)
CAPABILITY = Capability(EngineType.SGLANG, "0.5.23", "EAGLE")


class Scripted:
    """An engine that edits as a test says."""

    def __init__(self, **edit: Any) -> None:
        self._edit = edit
        self.given: Mapping[str, Any] = {}

    def edit(
        self,
        container: Mapping[str, Any],
        files: object,
        wanted: object,
        capability: object,
        removed: Mapping[str, Any],
    ) -> ContainerEdit:
        self.given = removed
        return ContainerEdit(str(container["name"]), **self._edit)


def wants(engine: Scripted, wanted: WantedSpeculation = OFF, **rules: Any) -> Edit:
    return Edit(engine, "server", CAPABILITY, wanted, {}, RolloutRules(**rules))  # type: ignore[arg-type]


FILE = ConfigFile("adaptive.json", "{}", "/etc/crossover/adaptive.json")


def test_the_smallest_object() -> None:
    patch = plan_template(workload(), wants(Scripted(args=("a", "b")), drain_seconds=10), NOW)
    assert patch is not None
    annotation = patch.body["spec"]["template"]["metadata"]["annotations"].pop(mark.SPECULATION)
    assert patch.body == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama", "namespace": "demo", "resourceVersion": "42"},
        "spec": {
            "template": {
                "metadata": {"annotations": {}},
                "spec": {"containers": [{"name": "server", "args": ["a", "b"]}]},
            }
        },
    }
    assert json.loads(annotation)["wanted"] == {"enabled": False}
    assert patch.config_map is None
    assert patch.notes == ()


def test_nothing_to_do() -> None:
    assert plan_template(workload(), wants(Scripted()), NOW) is None


def test_a_short_grace_period_is_raised_and_said_a_long_one_kept() -> None:
    patch = plan_template(workload(), wants(Scripted(args=("a",)), drain_seconds=120), NOW)
    assert patch is not None
    assert patch.body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    assert "terminationGracePeriodSeconds 30" in patch.notes[0]
    manifest = deployment("demo")
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    patch = plan_template(workload(manifest), wants(Scripted(args=("a",)), drain_seconds=120), NOW)
    assert patch is not None
    assert "terminationGracePeriodSeconds" not in patch.body["spec"]["template"]["spec"]


def test_a_file_becomes_config_map_volume_and_mount() -> None:
    patch = plan_template(workload(), wants(Scripted(args=("a",), file=FILE), ON), NOW)
    assert patch is not None
    assert patch.config_map is not None
    name = patch.config_map.name
    assert name.startswith("llama-speculation-")
    spec = patch.body["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "crossover-speculation", "configMap": {"name": name}}]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "crossover-speculation", "mountPath": "/etc/crossover", "readOnly": True}
    ]
    assert patch.config_map.body["data"] == {"adaptive.json": "{}"}
    assert patch.config_map.body["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama", "uid": "uid-1"}
    ]
    assert patch.body["metadata"]["annotations"][mark.CONFIG_MAPS] == name


def test_a_config_map_name_is_never_too_long_and_changes_with_the_content() -> None:
    manifest = deployment("demo", name="x" * 253)
    names = set()
    for content in ("{}", "[]"):
        file = replace(FILE, content=content)
        patch = plan_template(workload(manifest), wants(Scripted(args=("a",), file=file), ON), NOW)
        assert patch is not None
        assert patch.config_map is not None
        names.add(patch.config_map.name)
    assert len(names) == 2
    assert max(map(len, names)) == 253


def test_what_was_removed_is_remembered_while_off_and_handed_to_the_engine() -> None:
    first = plan_template(workload(), wants(Scripted(args=("a",), removed={"tokens": ["--x"]})), NOW)
    assert first is not None
    manifest = deployment("demo")
    manifest["spec"]["template"]["metadata"] |= first.body["spec"]["template"]["metadata"]
    engine = Scripted(args=("a", "--x"))
    second = plan_template(workload(manifest), wants(engine, ON), NOW)
    assert engine.given == {"tokens": ["--x"]}
    assert second is not None
    after = mark.mark_of(second.body["spec"]["template"])
    assert after is not None
    assert after.removed == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"wanted": 1}', '{"at": "x"}'])
def test_a_mark_that_somebody_broke_counts_as_none(text: str) -> None:
    assert mark.mark_of({"metadata": {"annotations": {mark.SPECULATION: text}}}) is None
    assert mark.failure_of({mark.FAILED: text}) is None


def test_marks_survive_a_round_trip() -> None:
    wanted = WantedSpeculation(True, 3, ((1, 3), (32, 0)))
    made = Mark("server", wanted, "abc", 12.0, {"tokens": ["--x", "ü"]})
    assert mark.mark_of({"metadata": {"annotations": {mark.SPECULATION: made.to_json()}}}) == made
    failed = Failure(wanted, "why", 12.0, "abc")
    assert mark.failure_of({mark.FAILED: failed.to_json()}) == failed


def test_env_is_set_and_only_ours_is_removed() -> None:
    patch = plan_template(workload(), wants(Scripted(env={"A": "1"}), ON), NOW)
    assert patch is not None
    assert patch.body["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    with pytest.raises(Refusal, match="HF_HOME") as refusal:
        plan_template(workload(), wants(Scripted(env={"HF_HOME": None})), NOW)
    assert refusal.value.code == "EnvironmentNotOurs"


def test_a_mount_point_in_use_is_refused() -> None:
    manifest = deployment("demo")
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "theirs", "mountPath": "/etc/crossover/"}]
    with pytest.raises(Refusal) as refusal:
        plan_template(workload(manifest), wants(Scripted(args=("a",), file=FILE), ON), NOW)
    assert refusal.value.code == "MountPathTaken"


@pytest.mark.parametrize(
    ("api_version", "product"),
    [("serving.kserve.io/v1beta1", "KServe"), ("ome.io/v1beta1", "OME"), ("nvidia.com/v1alpha1", "Dynamo")],
)
def test_a_parent_that_owns_the_template_is_named(api_version: str, product: str) -> None:
    manifest = deployment("demo")
    manifest["metadata"]["ownerReferences"] = [
        {"apiVersion": api_version, "kind": "InferenceService", "name": "parent", "uid": "1", "controller": True}
    ]
    facts = workload(manifest)
    assert facts.owner == Owner(api_version, "InferenceService", "parent", product)
    with pytest.raises(Refusal, match=f"InferenceService parent of {product}") as refusal:
        plan_template(facts, wants(Scripted(args=("a",))), NOW)
    assert refusal.value.code == "TemplateOwnedByParent"


def test_a_kind_without_a_pod_template() -> None:
    facts = replace(workload(), template=None)
    with pytest.raises(Refusal) as refusal:
        plan_template(facts, wants(Scripted(args=("a",))), NOW)
    assert refusal.value.code == "NoPodTemplate"


TWO = {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}, {"name": "b"}]}}


def test_which_container_serves() -> None:
    assert pick_container({"spec": {"containers": [{"name": "a"}]}}, None)["name"] == "a"
    assert pick_container(TWO, "b")["name"] == "b"
    assert pick_container(TWO, None, 1)["name"] == "a"
    for name, port, code in (
        ("c", None, "ContainerNotFound"),
        (None, 2, "ContainerAmbiguous"),
        (None, None, "ContainerAmbiguous"),
    ):
        with pytest.raises(Refusal, match="a, b") as refusal:
            pick_container(TWO, name, port)
        assert refusal.value.code == code


def argo(at: str) -> dict[str, Any]:
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': {"f:args": {}}}}}}}
    return {"manager": "argocd-controller", "operation": "Update", "time": at, "fieldsV1": fields}


@pytest.mark.parametrize(
    ("reverted_after", "now_after", "refused"),
    [(60, 120, True), (60, 4000, False), (3000, 3010, False), (-60, 10, False)],
)
def test_a_gitops_controller_that_reverts_us_is_not_fought(reverted_after: int, now_after: int, refused: bool) -> None:
    at = 1796119200  # 2026-12-01T10:00:00Z
    from datetime import UTC, datetime

    manifest = deployment("demo")
    made = Mark("server", OFF, "a digest that no longer holds", float(at))
    manifest["spec"]["template"]["metadata"]["annotations"] = {mark.SPECULATION: made.to_json()}
    reverted = datetime.fromtimestamp(at + reverted_after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = workload(manifest, managed_fields=(argo(reverted),))
    edit = wants(Scripted(args=("a",)))
    if refused:
        with pytest.raises(Refusal, match="Argo CD") as refusal:
            plan_template(facts, edit, at + now_after)
        assert refusal.value.code == "RevertedByGitOps"
    else:
        assert plan_template(facts, edit, at + now_after) is not None


def test_what_failed_is_not_tried_again_on_the_same_containers() -> None:
    manifest = deployment("demo")
    failed = Failure(OFF, "new pods crash", NOW, mark.containers_digest(manifest["spec"]["template"]))
    manifest["metadata"]["annotations"] = {mark.FAILED: failed.to_json()}
    edit = wants(Scripted(args=("a",)))
    with pytest.raises(Refusal, match="new pods crash") as refusal:
        plan_template(workload(manifest), edit, NOW + 60)
    assert refusal.value.code == "RolloutFailedBefore"
    assert plan_template(workload(manifest), edit, NOW + 3601) is not None
    assert plan_template(workload(manifest), wants(Scripted(args=("a",)), ON), NOW + 60) is not None
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "example.org/sglang:fixed"
    assert plan_template(workload(manifest), edit, NOW + 60) is not None


def test_only_our_own_change_is_taken_back() -> None:
    manifest = deployment("demo")
    ours = manifest["spec"]["template"]
    digest = mark.command_digest(ours["spec"]["containers"][0])
    ours["metadata"]["annotations"] = {mark.SPECULATION: Mark("server", OFF, digest, NOW).to_json()}
    plain = deployment("demo")["spec"]["template"]
    now, then = Revision(2, "new", ours), Revision(1, "old", plain, 3, 3)
    assert plan_undo(workload(manifest), (now, then), "why", NOW) is not None
    assert plan_undo(workload(manifest), (now,), "why", NOW) is None
    assert plan_undo(workload(manifest), (now, replace(then, template=ours)), "why", NOW) is None
    later = deployment("demo")["spec"]["template"]
    later["metadata"]["annotations"] = {mark.SPECULATION: Mark("server", ON, digest, NOW + 60).to_json()}
    assert plan_undo(workload(manifest), (now, replace(then, template=later)), "why", NOW) is None
    assert plan_undo(workload(), (now, then), "why", NOW) is None
    ours["spec"]["containers"][0]["args"] = [*ARGS, "--user-was-here"]
    assert plan_undo(workload(manifest), (now, then), "why", NOW) is None


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (OFF, "speculation off"),
        (ON, "speculation on"),
        (WantedSpeculation(True, 3), "draft length 3"),
        (WantedSpeculation(True, 3, ((1, 3), (32, 0))), "schedule 1:3,32:0"),
    ],
)
def test_described_in_few_words(wanted: WantedSpeculation, text: str) -> None:
    assert describe(wanted) == text


def test_custom_resources_have_their_scale_from_the_subresource() -> None:
    from crossover.cluster.scale import Scale

    body = {"metadata": {"uid": "u", "resourceVersion": "1", "generation": 1}, "spec": {"template": {"x": 1}}}
    facts = workload_facts(TargetRef("example.org/v1", "Model", "m"), "demo", "/p", body, Scale(2, 1, "app=m"))
    assert (facts.desired_replicas, facts.replicas, facts.selector, facts.template) == (2, 1, "app=m", None)
    assert not facts.rollout_in_progress
