"""The rest of the edge on a real API server: scale, rivals, files, Events, the Lease, login, and the rights used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from crossover.api.faults import ClusterError, Forbidden, NotFound
from crossover.api.workload import Rival, TargetRef
from crossover.cluster import rbac
from crossover.cluster.client import Client
from crossover.cluster.conflicts import Claimant, Rivals, holder
from crossover.cluster.events import Recorder, Regarding
from crossover.cluster.kinds import Kinds, NoScale, UnknownKind
from crossover.cluster.lease import Elector, LeaseTimes
from crossover.cluster.login import LoginError, login
from crossover.cluster.pods import PodCache
from crossover.cluster.scale import read_scale, write_scale
from crossover.cluster.workload import Workloads
from crossover.cluster.writer import Writer
from crossover.controller.clock import SystemClock
from tests.api_server import ControlPlane
from tests.cluster.edge import SERVICE_ACCOUNT, deployment, limited_kubeconfig, ref, until
from tests.cluster.fakes import FakeClock

pytestmark = [pytest.mark.api_server, pytest.mark.xdist_group("edge")]


@pytest.fixture
async def client(plane: ControlPlane, namespace: str) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=limited_kubeconfig(plane, namespace)) as connected:
        yield connected


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=plane.kubeconfig) as connected:
        yield connected


@dataclass(frozen=True)
class Text:
    type: str = "Normal"
    reason: str = "Scaled"
    action: str = "replicas 3 -> 5"
    note: str = "replicas 3 -> 5: 41 running per pod"
    dedupe: str = "replicas 3 -> 5"


# -- targets and scale -----------------------------------------------------------------------------------------------


async def test_scale_writes_replicas_and_nothing_else(plane: ControlPlane, namespace: str, client: Client) -> None:
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(deployment(namespace)))
    workloads = Workloads(client, Kinds(client, SystemClock()))
    before = await workloads.read(namespace, ref())
    assert (before.desired_replicas, before.selector) == (3, "app=llama")
    assert await Writer(client).scale(before.path, 5) == 5
    after = plane.get(before.path)
    assert after["spec"]["replicas"] == 5
    (ours,) = [item for item in after["metadata"]["managedFields"] if item["manager"] == "crossover.dev"]
    assert (ours["subresource"], ours["fieldsV1"]) == ("scale", {"f:spec": {"f:replicas": {}}})


def crd(plane: ControlPlane, plural: str, kind: str, *, group: str = "example.org", scale: bool = True) -> None:
    """A custom resource with or without a scale subresource."""
    scale_paths = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}, **({"scale": scale_paths} if scale else {})},
    }
    plane.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [version],
            },
        }
    )
    served = f"/apis/{group}/v1alpha1"
    plane.wait_for(lambda: any(item["kind"] == kind for item in resources(plane, served)), f"kind {kind}")


def resources(plane: ControlPlane, path: str) -> list[dict[str, Any]]:
    try:
        return list(plane.get(path)["resources"])
    except OSError:
        return []


async def test_a_custom_kind_is_found_by_discovery_and_scaled(
    plane: ControlPlane, namespace: str, admin: Client
) -> None:
    kinds = Kinds(admin, SystemClock())
    target = TargetRef("example.org/v1alpha1", "Squad", "llama")
    with pytest.raises(UnknownKind):
        await kinds.scalable("example.org/v1alpha1", "Squad")
    crd(plane, "squads", "Squad")
    kind = await kinds.scalable("example.org/v1alpha1", "Squad")
    assert kind.plural == "squads"
    path = kind.path(namespace, "llama")
    plane.apply(
        {
            "apiVersion": "example.org/v1alpha1",
            "kind": "Squad",
            "metadata": {"name": "llama", "namespace": namespace},
            "spec": {"replicas": 2},
        }
    )
    status = {"status": {"replicas": 1, "selector": "app=squad"}}
    plane.request("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")
    workload = await Workloads(admin, kinds).read(namespace, target)
    assert (workload.desired_replicas, workload.replicas, workload.selector) == (2, 1, "app=squad")
    assert workload.template is None
    assert (await write_scale(admin, path, 4)).desired_replicas == 4
    assert (await read_scale(admin, path)).desired_replicas == 4


async def test_a_kind_without_scale_and_a_target_that_is_missing(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    kinds = Kinds(client, SystemClock())
    for kind in ("DaemonSet", "ControllerRevision"):
        with pytest.raises(NoScale):
            await kinds.scalable("apps/v1", kind)
    for version, kind in (("apps/v1", "Deploiment"), ("nowhere.example/v1", "Deployment")):
        with pytest.raises(UnknownKind):
            await kinds.scalable(version, kind)
    with pytest.raises(NotFound):
        await Workloads(client, kinds).read(namespace, ref("absent"))


async def test_a_forbidden_namespace_says_so(plane: ControlPlane, client: Client) -> None:
    with pytest.raises(Forbidden) as caught:
        await client.get("/apis/apps/v1/namespaces/default/deployments/x")
    assert "cannot get resource" in caught.value.detail


async def test_mounted_config_map_files(plane: ControlPlane, namespace: str, client: Client) -> None:
    manifest = deployment(namespace)
    spec = manifest["spec"]["template"]["spec"]
    spec["volumes"] = [
        {"name": "whole", "configMap": {"name": "settings"}},
        {"name": "picked", "configMap": {"name": "settings", "items": [{"key": "a.json", "path": "sub/b.json"}]}},
        {"name": "absent", "configMap": {"name": "absent", "optional": True}},
        {"name": "scratch", "emptyDir": {}},
    ]
    spec["containers"][0]["volumeMounts"] = [
        {"name": "whole", "mountPath": "/etc/whole/"},
        {"name": "picked", "mountPath": "/etc/picked"},
        {"name": "whole", "mountPath": "/etc/one.json", "subPath": "a.json"},
        {"name": "absent", "mountPath": "/etc/absent"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": namespace},
            "data": {"a.json": "{}", "c.yaml": "x: 1"},
        },
        manifest,
    )
    now = 1000.0
    workloads = Workloads(client, Kinds(client, SystemClock()), lambda: now)
    workload = await workloads.read(namespace, ref())
    assert await workloads.files(workload, "server") == {
        "/etc/whole/a.json": "{}",
        "/etc/whole/c.yaml": "x: 1",
        "/etc/picked/sub/b.json": "{}",
        "/etc/one.json": "{}",
    }
    assert await workloads.files(workload, "router") == {}
    change = {"data": {"a.json": "[]"}}
    path = f"/api/v1/namespaces/{namespace}/configmaps/settings"
    plane.request("PATCH", path, change, content_type="application/merge-patch+json")
    assert (await workloads.files(workload, "server"))["/etc/one.json"] == "{}"
    now += 16.0
    assert (await workloads.files(workload, "server"))["/etc/one.json"] == "[]"


async def test_revisions_of_both_kinds_say_which_pods_are_new(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    workloads = Workloads(client, Kinds(client, SystemClock()))
    for kind in ("Deployment", "StatefulSet"):
        manifest = {**deployment(namespace, kind.lower()), "kind": kind}
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        target = ref(kind.lower(), kind)
        hashes = []
        for count in (1, 2):
            workload, found = await settled(workloads, namespace, target, count)
            (current,) = [revision for revision in found if workload.is_current(revision)]
            assert current is found[0]
            assert current.template["spec"]["containers"] == (workload.template or {})["spec"]["containers"]
            hashes.append(current.template_hash)
            manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "example.org/sglang:next"
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        assert len(set(hashes)) == 2


async def settled(workloads: Workloads, namespace: str, target: TargetRef, count: int) -> Any:
    for _ in range(400):
        workload = await workloads.read(namespace, target)
        found = await workloads.revisions(workload)
        if len(found) == count and workload.observed_generation == workload.generation:
            return workload, found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{target}: no {count} revisions")


# -- rivals ----------------------------------------------------------------------------------------------------------


def hpa(namespace: str, name: str, target: str, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": namespace, **meta},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": 2,
            "maxReplicas": 9,
        },
    }


async def test_hpa_on_the_same_target_is_found_and_others_are_not(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    clock = FakeClock()
    rivals = Rivals(client, Kinds(client, clock), clock)
    assert await rivals.on(namespace, ref()) == ()
    plane.apply(hpa(namespace, "mine", "llama"), hpa(namespace, "other", "something-else"))
    await clock.advance(16)
    assert await rivals.on(namespace, ref()) == (Rival("HorizontalPodAutoscaler", "mine", 2, 9),)
    assert await rivals.on(namespace, ref(kind="StatefulSet")) == ()


async def test_keda_is_told_once_by_its_own_object(plane: ControlPlane, namespace: str, client: Client) -> None:
    crd(plane, "scaledobjects", "ScaledObject", group="keda.sh", scale=False)
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat", "uid": "1", "controller": True}
    plane.apply(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "chat", "namespace": namespace},
            "spec": {"scaleTargetRef": {"name": "llama"}, "maxReplicaCount": 7},
        },
        hpa(namespace, "keda-hpa-chat", "llama", ownerReferences=[owner]),
    )
    clock = SystemClock()
    rivals = Rivals(client, Kinds(client, clock), clock)
    assert await rivals.on(namespace, ref()) == (Rival("ScaledObject", "chat", None, 7),)


def test_of_two_model_autoscalers_the_older_keeps_the_target() -> None:
    old = Claimant("old", "2026-01-01T00:00:00Z", "b", ref())
    young = Claimant("young", "2026-01-01T00:00:01Z", "a", ref())
    twin = Claimant("twin", "2026-01-01T00:00:00Z", "a", ref())
    elsewhere = Claimant("elsewhere", "2025-01-01T00:00:00Z", "c", ref("other"))
    assert holder([young, old, elsewhere], ref()) == "old"
    assert holder([old, twin], ref()) == "twin"
    assert holder([replace(old, holds_it=True), twin], ref()) == "old"
    assert holder([replace(young, holds_it=True), old], ref()) == "old"
    assert holder([elsewhere], ref()) is None


# -- Events ----------------------------------------------------------------------------------------------------------


async def test_events_are_counted_shown_by_kubectl_and_never_flood(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    plane.apply(deployment(namespace))
    live = plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/llama")
    regarding = Regarding("apps/v1", "Deployment", namespace, "llama", live["metadata"]["uid"])
    clock = FakeClock(1796119200.0)  # a whole second: its MicroTime must still have six digits
    recorder = Recorder(client, clock, instance="pod-1")
    for _ in range(3):
        await recorder.record(regarding, Text())
        await clock.advance(60)
    await recorder.record(regarding, Text(dedupe="replicas 5 -> 6", note="replicas 5 -> 6: more"))
    assert recorder.fault is None
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    def ours() -> list[dict[str, Any]]:
        return [
            item for item in plane.get(path)["items"] if item.get("reportingController") == "crossover.dev/operator"
        ]

    first, second = sorted(ours(), key=lambda item: item["eventTime"])
    assert first["series"]["count"] == 3
    assert first["eventTime"] == "2026-12-01T10:00:00.000000Z"
    assert "series" not in second
    shown = plane.kubectl("describe", "deployment", "llama", f"--namespace={namespace}")
    assert "41 running per pod" in shown
    assert "(x3 over" in shown
    plane.request("DELETE", f"{path}/{first['metadata']['name']}")
    await recorder.record(regarding, Text())  # it has expired on the server: told again as a new one
    assert recorder.fault is None
    assert len(ours()) == 2
    for number in range(100):
        await recorder.record(regarding, Text(dedupe=str(number)))
    assert recorder.dropped > 50
    assert len(ours()) < 40


async def test_events_refused_by_rbac_are_a_fault_to_show(plane: ControlPlane, client: Client) -> None:
    recorder = Recorder(client, SystemClock(), instance="pod-1")
    await recorder.record(Regarding("v1", "Pod", "default", "x", "uid"), Text())
    assert isinstance(recorder.fault, Forbidden)


# -- Lease -----------------------------------------------------------------------------------------------------------


async def test_lease_on_a_real_api_server(plane: ControlPlane, namespace: str, client: Client) -> None:
    times = LeaseTimes(lease_seconds=3.0, renew_seconds=2.0, retry_seconds=0.2)
    electors = [
        Elector(client, namespace=namespace, name="crossover", identity=name, clock=SystemClock(), times=times)
        for name in ("a", "b")
    ]
    first, second = electors
    tasks = [asyncio.create_task(elector.run()) for elector in electors]
    await until(lambda: first.is_leader or second.is_leader)
    leader, other = (first, second) if first.is_leader else (second, first)
    await asyncio.sleep(0.5)
    assert not other.is_leader
    tasks[electors.index(leader)].cancel()
    await leader.release()
    await until(lambda: other.is_leader)
    assert not leader.is_leader
    spec = plane.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/crossover")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (other.identity, 1)
    for task in tasks:
        task.cancel()


# -- login -----------------------------------------------------------------------------------------------------------


async def test_in_the_cluster_the_token_is_read_again_when_it_was_rotated(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    import yaml

    limited = yaml.safe_load(limited_kubeconfig(plane, namespace).read_text())
    token = limited["users"][0]["user"]["token"]
    (tmp_path / "token").write_text("a token that has expired")
    (tmp_path / "namespace").write_text(namespace)
    (tmp_path / "ca.crt").write_text((plane.folder / "certificates" / "apiserver.crt").read_text())
    host, port = plane.url.removeprefix("https://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    way = await login(environ=environ, folder=tmp_path)
    assert way.namespace == namespace
    async with Client(way) as client:
        (tmp_path / "token").write_text(token)
        await client.get(f"/api/v1/namespaces/{namespace}/pods")


async def test_no_way_to_a_cluster_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossover.cluster.login.DEFAULT_KUBECONFIG", tmp_path / "config")
    with pytest.raises(LoginError, match="set KUBECONFIG"):
        await login(environ={}, folder=tmp_path)
    with pytest.raises(LoginError, match="correct the file"):
        await login(kubeconfig=tmp_path / "absent")


# -- rights ----------------------------------------------------------------------------------------------------------


async def test_the_rights_listed_are_the_rights_used(plane: ControlPlane, namespace: str, client: Client) -> None:
    """Everything the edge can do, once; the audit log must hold each listed verb and no other."""
    clock = SystemClock()
    kinds = Kinds(client, clock)
    workloads, writer = Workloads(client, kinds), Writer(client)
    crd(plane, "scaledobjects", "ScaledObject", group="keda.sh", scale=False)
    for kind in ("Deployment", "StatefulSet"):
        manifest = {**deployment(namespace, kind.lower()), "kind": kind}
        spec = manifest["spec"]["template"]["spec"]
        spec["volumes"] = [{"name": "files", "configMap": {"name": "files"}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "files", "mountPath": "/files"}]
        plane.apply(manifest)
        workload = await workloads.read(namespace, ref(kind.lower(), kind))
        await workloads.revisions(workload)
        await workloads.files(workload, "server")
        await writer.scale(workload.path, 1)
        annotated = {"name": kind.lower(), "namespace": namespace, "annotations": {"crossover.dev/x": "1"}}
        await writer.apply(workload.path, {"apiVersion": "apps/v1", "kind": kind, "metadata": annotated})
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    await writer.create(maps, {"metadata": {"name": "made"}})
    await writer.delete(f"{maps}/made")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await writer.create(pods, {"metadata": {"name": "made"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    await writer.delete(f"{pods}/made")
    await Rivals(client, kinds, clock).on(namespace, ref())
    recorder = Recorder(client, clock, instance="pod-1")
    for _ in range(2):
        await recorder.record(Regarding("apps/v1", "Deployment", namespace, "deployment", "uid"), Text())
    assert recorder.fault is None
    cache = PodCache(client, clock)
    await until(lambda: (state := cache.use("x", namespace)).synced and state.watches)
    await cache.close()
    times = LeaseTimes(lease_seconds=3.0, renew_seconds=2.0, retry_seconds=0.2)
    elector = Elector(client, namespace=namespace, name="crossover", identity="a", clock=clock, times=times)
    task = asyncio.create_task(elector.run())
    await elector.acquired.wait()
    await asyncio.sleep(0.5)
    task.cancel()
    await elector.release()

    user = f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}"
    used: set[tuple[str, str, str]] = set()
    for entry in plane.audit_events():
        about = entry.get("objectRef")
        if entry["user"].get("username") != user or about is None or "resource" not in about:
            continue
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        used.add((about.get("apiGroup", ""), resource, entry["verb"]))
        assert entry["responseStatus"]["code"] != 403, entry
    listed = {
        (group, resource, verb) for group, resource, verbs in (*rbac.CLUSTER_RULES, *rbac.LEASE_RULES) for verb in verbs
    }
    assert used == listed


def test_no_wildcards() -> None:
    for group, resource, verbs in (*rbac.CLUSTER_RULES, *rbac.LEASE_RULES):
        assert "*" not in group + resource + "".join(verbs)


def test_every_fault_of_the_tree_says_verb_and_path() -> None:
    error = ClusterError("GET", "/x", status=500, reason="InternalError", detail="a\n b")
    assert str(error) == "GET /x: HTTP 500, InternalError, a b"
    assert error.code == "ClusterError"
