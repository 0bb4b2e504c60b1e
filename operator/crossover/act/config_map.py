"""The ConfigMap that carries a file for the engine: immutable, named by its content, never edited.

Old and new pods of a rollout each see their own. It belongs to the workload, not to the ModelAutoscaler: deleting that
one must not take a file away from pods that will read it at their next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Any

from crossover.act.mark import config_maps_of
from crossover.api.workload import Revision, Workload
from crossover.engines.contract import ConfigFile

VOLUME = "crossover-speculation"
KEEP = 2
"""Newest ConfigMaps kept although no template refers to them: `kubectl rollout undo` may want the last one back."""
MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class ConfigMapPatch:
    """One ConfigMap to create. ``path`` is the collection's."""

    name: str
    path: str
    body: Mapping[str, Any]


def config_map_for(workload: Workload, file: ConfigFile) -> ConfigMapPatch:
    digest = hashlib.sha256(f"{file.name}\0{file.content}".encode()).hexdigest()[:10]
    suffix = f"-speculation-{digest}"
    name = workload.ref.name[: MAX_NAME - len(suffix)].rstrip("-.") + suffix
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": workload.namespace,
            "labels": {"app.kubernetes.io/managed-by": "crossover"},
            "ownerReferences": [
                {
                    "apiVersion": workload.ref.api_version,
                    "kind": workload.ref.kind,
                    "name": workload.ref.name,
                    "uid": workload.uid,
                }
            ],
        },
        "immutable": True,
        "data": {file.name: file.content},
    }
    return ConfigMapPatch(name, collection(workload.namespace), body)


def collection(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def volume(name: str) -> dict[str, Any]:
    return {"name": VOLUME, "configMap": {"name": name}}


def mount(file: ConfigFile) -> dict[str, Any]:
    """The whole folder, not one file by subPath: the folder is ours, and nothing else can be hidden by it."""
    return {"name": VOLUME, "mountPath": dirname(file.mount_path), "readOnly": True}


def unused(workload: Workload, revisions: Sequence[Revision]) -> tuple[str, ...]:
    """Our ConfigMaps that no template of this workload refers to any more, without the newest `KEEP`.

    Only when no rollout is under way: until then an old pod may still be restarted.
    """
    if workload.rollout_in_progress or not revisions:
        return ()
    ours = config_maps_of(workload.annotations)
    referred = {name for revision in revisions for name in _referred(revision.template)}
    referred |= _referred(workload.template or {})
    return tuple(name for name in ours[:-KEEP] if name not in referred)


def _referred(template: Mapping[str, Any]) -> set[str]:
    volumes = (template.get("spec") or {}).get("volumes") or []
    return {item["configMap"]["name"] for item in volumes if "configMap" in item}
