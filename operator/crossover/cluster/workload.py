"""The scale target: from `spec.scaleTargetRef` to `Workload` facts, its revisions and the files it mounts.

One GET for Deployments and StatefulSets (their selector stands in the spec); one more, /scale, for every other kind.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from crossover.api.faults import NotFound
from crossover.api.workload import Owner, Revision, TargetRef, Workload, WorkloadCondition
from crossover.cluster import selectors
from crossover.cluster.client import Client
from crossover.cluster.kinds import Kinds
from crossover.cluster.scale import Scale, read_scale

DEPLOYMENT, STATEFUL_SET = "Deployment", "StatefulSet"
REVISION = "deployment.kubernetes.io/revision"
MUTABLE_SECONDS, IMMUTABLE_SECONDS = 15.0, 600.0
REMEMBERED = 1024

PRODUCTS = {
    "serving.kserve.io": "KServe",
    "ome.io": "OME",
    "workloads.x-k8s.io": "RBG",
    "nvidia.com": "Dynamo",
    "leaderworkerset.x-k8s.io": "LeaderWorkerSet",
    "kaito.sh": "KAITO",
    "serving.knative.dev": "Knative",
    "argoproj.io": "Argo Rollouts",
}
"""API group of a controlling owner -> the product whose controller writes the pod template."""


class Workloads:
    """Reads of scale targets. Everything here raises `ClusterError`; `read` also `KindError`."""

    def __init__(self, client: Client, kinds: Kinds, now: Callable[[], float] = time.monotonic) -> None:
        self._client, self._kinds, self._now = client, kinds, now
        self._config_maps: OrderedDict[tuple[str, str], tuple[float, Mapping[str, str]]] = OrderedDict()

    async def read(self, namespace: str, ref: TargetRef) -> Workload:
        """One consistent look at the target. Raises `NotFound` when there is no such object."""
        kind = await self._kinds.scalable(ref.api_version, ref.kind)
        path = kind.path(namespace, ref.name)
        body = await self._client.get(path)
        scale = None if is_native(ref) else await read_scale(self._client, path)
        return workload_facts(ref, namespace, path, body, scale)

    async def revisions(self, workload: Workload) -> tuple[Revision, ...]:
        """The pod templates its controller remembers, newest first; empty for kinds that keep none."""
        if not is_native(workload.ref):
            return ()
        plural = "replicasets" if workload.ref.kind == DEPLOYMENT else "controllerrevisions"
        answer = await self._client.get(
            f"/apis/apps/v1/namespaces/{workload.namespace}/{plural}", params={"labelSelector": workload.selector}
        )
        make = _replica_set if workload.ref.kind == DEPLOYMENT else _controller_revision
        found = [make(item) for item in answer.get("items") or [] if _owned_by(item, workload.uid)]
        return tuple(sorted(found, key=lambda revision: revision.number, reverse=True))

    async def files(self, workload: Workload, container: str) -> dict[str, str]:
        """Files that the container sees from ConfigMaps: path -> content. Binary and optional absent ones are left out."""
        spec = (workload.template or {}).get("spec") or {}
        mounts = next(
            (item.get("volumeMounts") or [] for item in spec.get("containers") or [] if item.get("name") == container),
            [],
        )
        volumes = {volume["name"]: volume["configMap"] for volume in spec.get("volumes") or [] if "configMap" in volume}
        files: dict[str, str] = {}
        for mount in mounts:
            source = volumes.get(mount["name"])
            if source is not None:
                data = await self._config_map(workload.namespace, source["name"])
                files.update(mounted_files(mount, source, data))
        return files

    async def _config_map(self, namespace: str, name: str) -> Mapping[str, str]:
        """Its text keys. An immutable one (all of ours are) is asked for once in ten minutes, others every 15 s."""
        key = (namespace, name)
        good_until, data = self._config_maps.get(key, (0.0, {}))
        if self._now() < good_until:
            return data
        try:
            body = await self._client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        except NotFound:
            self._config_maps.pop(key, None)
            return {}
        data = body.get("data") or {}
        keep = IMMUTABLE_SECONDS if body.get("immutable") else MUTABLE_SECONDS
        self._config_maps[key] = (self._now() + keep, data)
        self._config_maps.move_to_end(key)
        while len(self._config_maps) > REMEMBERED:
            self._config_maps.popitem(last=False)
        return data


def is_native(ref: TargetRef) -> bool:
    """True for the two kinds whose rollouts are understood."""
    return ref.api_version == "apps/v1" and ref.kind in (DEPLOYMENT, STATEFUL_SET)


def workload_facts(
    ref: TargetRef, namespace: str, path: str, body: Mapping[str, Any], scale: Scale | None = None
) -> Workload:
    """The facts in one object as the API server sent it. Pure.

    ``scale`` None: the scale stands in the object itself, as in apps/v1.
    """
    if scale is None:
        spec = body["spec"]
        replicas = (body.get("status") or {}).get("replicas", 0)
        scale = Scale(spec.get("replicas"), replicas, selectors.render(spec.get("selector")))
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    template = spec.get("template")
    native = is_native(ref)
    return Workload(
        ref=ref,
        namespace=namespace,
        path=path,
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        generation=meta.get("generation", 0),
        observed_generation=status.get("observedGeneration"),
        desired_replicas=scale.desired_replicas,
        selector=scale.selector,
        replicas=scale.replicas,
        ready_replicas=status.get("readyReplicas", 0 if native else None),
        updated_replicas=status.get("updatedReplicas", 0 if native else None),
        available_replicas=status.get("availableReplicas", 0 if native else None),
        revision=status.get("updateRevision") or (meta.get("annotations") or {}).get(REVISION),
        paused=bool(spec.get("paused")),
        strategy=spec.get("strategy") or spec.get("updateStrategy") or {},
        template=template if isinstance(template, Mapping) and "spec" in template else None,
        conditions=tuple(
            WorkloadCondition(item.get("type", ""), item.get("status", ""), item.get("reason", ""))
            for item in status.get("conditions") or []
        ),
        owner=_owner(meta),
        volume_claims=tuple(spec.get("volumeClaimTemplates") or ()) if native else (),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        managed_fields=tuple(meta.get("managedFields") or ()),
    )


def _owner(meta: Mapping[str, Any]) -> Owner | None:
    for reference in meta.get("ownerReferences") or []:
        if reference.get("controller"):
            group = reference["apiVersion"].partition("/")[0]
            return Owner(reference["apiVersion"], reference["kind"], reference["name"], PRODUCTS.get(group))
    return None


def _owned_by(item: Mapping[str, Any], uid: str) -> bool:
    return any(reference.get("uid") == uid for reference in item["metadata"].get("ownerReferences") or [])


def _replica_set(item: Mapping[str, Any]) -> Revision:
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    number = (meta.get("annotations") or {}).get(REVISION, "0")
    template = spec["template"]
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    template_hash = labels.pop("pod-template-hash", "")
    return Revision(
        number=int(number) if number.isdigit() else 0,
        template_hash=template_hash,
        template={**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
    )


def _controller_revision(item: Mapping[str, Any]) -> Revision:
    """Pods carry the revision's name as their hash; its data is a patch of the StatefulSet."""
    template = dict(((item.get("data") or {}).get("spec") or {}).get("template") or {})
    template.pop("$patch", None)
    return Revision(number=int(item.get("revision", 0)), template_hash=item["metadata"]["name"], template=template)


def mounted_files(mount: Mapping[str, Any], source: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, str]:
    """Paths inside the container of a ConfigMap volume's text keys."""
    paths = {item["key"]: item["path"] for item in source.get("items") or []} or {key: key for key in data}
    where = mount["mountPath"].rstrip("/")
    only = mount.get("subPath")
    if only:
        key = next((key for key, path in paths.items() if path == only), None)
        return {where: data[key]} if key is not None and key in data else {}
    return {f"{where}/{path}": data[key] for key, path in paths.items() if key in data}
