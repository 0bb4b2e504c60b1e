"""A pod to measure on: the target's template with other speculation settings, and nobody's traffic.

It carries none of the template's labels, so no Service, no ReplicaSet and no disruption budget selects it. It is owned by the
Calibration, so it goes when that goes. It is never restarted: a crash is a result. It ends by itself when nobody is left
to remove it (docs/design/0076).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from posixpath import dirname
from typing import Any

from crossover.act import config_map
from crossover.act.config_map import ConfigMapPatch
from crossover.api.workload import Workload
from crossover.engines.contract import ContainerEdit

OURS = "crossover.dev/"
CALIBRATION_LABEL = f"{OURS}calibration"
VARIANT_LABEL = f"{OURS}variant"
MAP_ANNOTATION = f"{OURS}scratch-config-map"
"""On the pod: the ConfigMap that was made for it and goes with it."""
TEMPLATE_ANNOTATION = f"{OURS}scratch-template"
"""Digest of the template that it was made from: a pod of another one tells nothing of this one."""
GRACE_SECONDS = 5
MOST_NAME = 40
NOT_COPIED = ("hostname", "subdomain", "readinessGates")
"""What only makes sense for a pod that a Service or a load balancer knows."""


def scratch_pod(
    workload: Workload,
    container: Mapping[str, Any],
    change: ContainerEdit,
    *,
    owner: Mapping[str, Any],
    variant: str,
    template: str,
    most_seconds: int,
) -> tuple[dict[str, Any], ConfigMapPatch | None]:
    """The pod to create, and the ConfigMap that must be there before. ``owner``: metadata of the Calibration; ``template``:
    digest of what it is made from; ``most_seconds``: then the kubelet ends it, whether or not an operator is there."""
    assert workload.template is not None
    spec = copy.deepcopy(dict(workload.template["spec"]))
    made = _changed(container, change)
    spec["containers"] = [made if item["name"] == made["name"] else item for item in spec["containers"]]
    for field in NOT_COPIED:
        spec.pop(field, None)
    claimed = _claimed(workload, spec)
    if claimed:
        spec["volumes"] = [*(spec.get("volumes") or []), *claimed]
    spec |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "activeDeadlineSeconds": most_seconds,
    }
    new_map = None
    if change.file is not None:
        new_map = _owned_map(workload, change, owner)
        _mount(spec, made, change, new_map.name)
    metadata = workload.template.get("metadata") or {}
    kept = {key: value for key, value in (metadata.get("annotations") or {}).items() if not key.startswith(OURS)}
    kept[TEMPLATE_ANNOTATION] = template
    if new_map is not None:
        kept[MAP_ANNOTATION] = new_map.name
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{owner['name'][:MOST_NAME].rstrip('-.')}-{variant}-",
            "namespace": workload.namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "crossover",
                CALIBRATION_LABEL: label_of(owner),
                VARIANT_LABEL: variant,
            },
            "annotations": kept,
            "ownerReferences": [_reference(owner)],
        },
        "spec": spec,
    }
    return body, new_map


def _claimed(workload: Workload, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A StatefulSet's claims as volumes that live as long as the pod: as empty as those of one more replica."""
    there = {item["name"] for item in spec.get("volumes") or []}
    made = []
    for claim in workload.volume_claims:
        meta = claim.get("metadata") or {}
        if meta.get("name") in there:
            continue
        kept = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
        template = {"metadata": kept, "spec": copy.deepcopy(claim["spec"])}
        made.append({"name": meta["name"], "ephemeral": {"volumeClaimTemplate": template}})
    return made


def label_of(owner: Mapping[str, Any]) -> str:
    """A Calibration as a label value: its uid, because names may be longer than 63 characters."""
    return str(owner["uid"])


def _reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "Calibration",
        "name": owner["name"],
        "uid": owner["uid"],
        "controller": True,
    }


def _changed(container: Mapping[str, Any], change: ContainerEdit) -> dict[str, Any]:
    made = copy.deepcopy(dict(container))
    for field, value in (("command", change.command), ("args", change.args)):
        if value is not None:
            made[field] = list(value)
    if change.env:
        others = [item for item in made.get("env") or [] if item["name"] not in change.env]
        given = [{"name": name, "value": value} for name, value in change.env.items() if value is not None]
        made["env"] = [*others, *given]
    return made


def _owned_map(workload: Workload, change: ContainerEdit, owner: Mapping[str, Any]) -> ConfigMapPatch:
    assert change.file is not None
    made = config_map.config_map_for(workload, change.file)
    suffix = made.name.rsplit("-", 1)[-1]
    # With the uid: another Calibration's map of the same content goes when that one's pod goes.
    name = f"{owner['name'][:MOST_NAME].rstrip('-.')}-{str(owner['uid'])[:8]}-scratch-{suffix}"
    metadata = {**made.body["metadata"], "name": name, "ownerReferences": [_reference(owner)]}
    return ConfigMapPatch(name, made.path, {**made.body, "metadata": metadata})


def _mount(spec: dict[str, Any], container: dict[str, Any], change: ContainerEdit, name: str) -> None:
    assert change.file is not None
    folder = dirname(change.file.mount_path)
    mounts = [
        item
        for item in container.get("volumeMounts") or []
        if item["name"] != config_map.VOLUME and item["mountPath"].rstrip("/") != folder
    ]
    container["volumeMounts"] = [*mounts, config_map.mount(change.file)]
    volumes = [item for item in spec.get("volumes") or [] if item["name"] != config_map.VOLUME]
    spec["volumes"] = [*volumes, config_map.volume(name)]
