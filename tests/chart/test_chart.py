"""The chart: least rights, restricted pods, and exactly what the operator uses."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from hack.assets import assets

from crossover.cluster.rbac import CLUSTER_RULES, LEASE_RULES, NODE_RULES

CHART = Path(__file__).parents[2] / "charts" / "crossover"
OWN_RULES = (
    ("crossover.dev", "modelautoscalers", ("list", "watch")),
    ("crossover.dev", "modelautoscalers/status", ("patch",)),
    ("crossover.dev", "calibrations", ("list", "watch")),
    ("crossover.dev", "calibrations/status", ("patch",)),
)


def helm(*arguments):
    return subprocess.run([assets() / "helm", *arguments], capture_output=True, text=True, check=False, timeout=60)


def render(*sets):
    done = helm(
        "template", "crossover", str(CHART), "--namespace=crossover-system", *(f"--set={item}" for item in sets)
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def flat(rules):
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(rules):
    return {(group, resource, verb) for group, resource, verbs in rules for verb in verbs}


def test_lint_is_clean():
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_cluster_role_is_what_the_operator_uses_no_verb_more():
    (role,) = of_kind(render(), "ClusterRole")
    assert flat(role["rules"]) == used((*CLUSTER_RULES, *NODE_RULES, *OWN_RULES))


def test_namespaced_installation_needs_no_cluster_role():
    documents = render("watchNamespaces={one,two}")
    assert of_kind(documents, "ClusterRole") == []
    roles = {
        role["metadata"]["namespace"]: role
        for role in of_kind(documents, "Role")
        if "lease" not in role["metadata"]["name"]
    }
    assert set(roles) == {"one", "two"}
    assert all(flat(role["rules"]) == used((*CLUSTER_RULES, *OWN_RULES)) for role in roles.values())
    (deployment,) = of_kind(documents, "Deployment")
    env = {item["name"]: item.get("value") for item in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["CROSSOVER_WATCH_NAMESPACES"] == "one,two"


def test_the_lease_role_names_its_lease():
    (role,) = [role for role in of_kind(render(), "Role") if role["metadata"]["name"].endswith("-lease")]
    assert flat(role["rules"]) == used(LEASE_RULES)
    named = [rule for rule in role["rules"] if "create" not in rule["verbs"]]
    assert all(rule["resourceNames"] == ["crossover"] for rule in named)


def test_no_wildcard_and_no_secret_anywhere():
    rules = [rule for kind in ("Role", "ClusterRole") for role in of_kind(render(), kind) for rule in role["rules"]]
    for group, resource, verb in flat(rules):
        assert "*" not in (group, resource, verb)
        assert resource != "secrets"


def test_pods_meet_the_restricted_pod_security_standard():
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_crds_are_kept_on_uninstall_and_can_be_left_out():
    crds = of_kind(render(), "CustomResourceDefinition")
    assert {crd["spec"]["names"]["kind"] for crd in crds} == {"ModelAutoscaler", "Calibration"}
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in crds)
    assert of_kind(render("crds.enabled=false"), "CustomResourceDefinition") == []


def test_options_render():
    documents = render(
        "podDisruptionBudget.enabled=true",
        "networkPolicy.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "replicaCount=2",
    )
    kinds = {document["kind"] for document in documents}
    assert {"PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"} <= kinds


@pytest.mark.parametrize("wrong", ["replicaCount=many", "image.pullPolicy=Sometimes", "metrics.port=80", "unknown=1"])
def test_wrong_values_are_refused_by_the_values_schema(wrong):
    done = helm("template", "crossover", str(CHART), f"--set={wrong}")
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_every_environment_variable_is_a_setting_of_the_operator():
    from crossover.controller.settings import OperatorSettings

    (deployment,) = of_kind(render(), "Deployment")
    names = {item["name"] for item in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {name.removeprefix("CROSSOVER_").lower() for name in names} <= set(OperatorSettings.model_fields)


def test_values_and_their_schema_name_the_same_fields():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
