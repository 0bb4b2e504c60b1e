"""Scratch pods: what they take over from the template, and what they must not."""

import copy

from crossover.act.config_map import VOLUME
from crossover.act.scratch import TEMPLATE_ANNOTATION, scratch_pod
from crossover.api.workload import TargetRef, Workload
from crossover.engines.contract import ConfigFile, ContainerEdit

OWNER = {"name": "cal", "namespace": "team", "uid": "6f9e0a1b-0000-0000-0000-000000000001"}
SERVER = {
    "name": "server",
    "image": "engine:1",
    "args": ["--a"],
    "volumeMounts": [{"name": "models", "mountPath": "/m"}],
}
SIDECAR = {"name": "proxy", "image": "proxy:1"}
EDIT = ContainerEdit("server", args=("--a", "--b"))


def workload(*, claims=(), kind="Deployment", **spec):
    template = {
        "metadata": {"labels": {"app": "llama"}, "annotations": {"team": "x", "crossover.dev/mark": "{}"}},
        "spec": {"containers": [SERVER, SIDECAR], **spec},
    }
    ref = TargetRef("apps/v1", kind, "llama")
    return Workload(ref, "team", "/p", "uid", "1", 1, 1, 1, "app=llama", template=template, volume_claims=claims)


def made(target, *, owner=OWNER, change=EDIT, most_seconds=60):
    return scratch_pod(
        target, SERVER, change, owner=owner, variant="draft-3", template="digest", most_seconds=most_seconds
    )


def test_nothing_that_selects_serving_pods_selects_it():
    target = workload(hostname="llama", subdomain="llama", readinessGates=[{"conditionType": "lb.example.com/target"}])
    body, _ = made(target)
    assert "app" not in body["metadata"]["labels"]
    assert not {"hostname", "subdomain", "readinessGates"} & set(body["spec"])
    assert body["metadata"]["annotations"].items() >= {"team": "x"}.items()
    assert "crossover.dev/mark" not in body["metadata"]["annotations"]


def test_sidecars_come_along_and_only_the_server_is_edited():
    body, _ = made(workload())
    server, sidecar = body["spec"]["containers"]
    assert server["args"] == ["--a", "--b"]
    assert sidecar == SIDECAR


def test_it_ends_by_itself_when_no_operator_is_left_to_remove_it():
    body, _ = made(workload(), most_seconds=777)
    assert body["spec"]["activeDeadlineSeconds"] == 777
    assert body["spec"]["restartPolicy"] == "Never"


def test_a_stateful_sets_claims_become_volumes_that_go_with_the_pod():
    """As empty as those of one more replica; a claim of the pod's own spec keeps its name."""
    claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}
    before = copy.deepcopy(claim)
    body, _ = made(workload(claims=(claim,), kind="StatefulSet"))
    (volume,) = body["spec"]["volumes"]
    assert volume == {
        "name": "models",
        "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": claim["spec"]}},
    }
    assert claim == before
    given = {"name": "models", "emptyDir": {}}
    body, _ = made(workload(claims=(claim,), kind="StatefulSet", volumes=[given]))
    assert body["spec"]["volumes"] == [given]


def test_it_says_what_it_was_made_from():
    body, _ = made(workload())
    assert body["metadata"]["annotations"][TEMPLATE_ANNOTATION] == "digest"


def test_two_calibrations_whose_long_names_begin_alike_share_no_config_map():
    """Each is owned by one of them and goes with that one, under the other's pods too if they shared it."""
    file = ConfigFile("schedule.json", "{}", "/etc/crossover/schedule.json")
    change = ContainerEdit("server", args=("--b",), file=file)
    names = set()
    for uid in ("aaaaaaaa-1", "bbbbbbbb-2"):
        owner = {"name": "x" * 253, "namespace": "team", "uid": uid}
        body, new_map = made(workload(), owner=owner, change=change)
        assert new_map is not None
        assert len(body["metadata"]["generateName"]) < 63
        assert len(new_map.name) <= 253
        assert new_map.body["metadata"]["ownerReferences"][0]["uid"] == uid
        (volume,) = [item for item in body["spec"]["volumes"] if item["name"] == VOLUME]
        assert volume["configMap"]["name"] == new_map.name
        names.add(new_map.name)
    assert len(names) == 2
