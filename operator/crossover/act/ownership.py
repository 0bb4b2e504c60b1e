"""The object for our next apply: everything that is ours already, so that nothing is taken away by leaving it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossover.api.managed_fields import MANAGER, applied_by, extract
from crossover.api.workload import Workload


def owned_object(workload: Workload, *, template: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What we own of ``workload``, with the live values: applying it as it is changes nothing.

    ``template``: take the values of our fields in the pod template from this template instead; fields that it does not
    have are left out, and so given up. ``metadata.resourceVersion`` is the optimistic lock.
    """
    strategy = "updateStrategy" if workload.ref.kind == "StatefulSet" else "strategy"
    live = {
        "metadata": {"annotations": workload.annotations},
        "spec": {
            strategy: workload.strategy,
            "template": workload.template if template is None else template,
        },
    }
    fields = applied_by(workload.managed_fields, MANAGER)
    body = extract(live, fields) if fields else {}
    metadata = body.setdefault("metadata", {})
    metadata |= {
        "name": workload.ref.name,
        "namespace": workload.namespace,
        "resourceVersion": workload.resource_version,
    }
    return {"apiVersion": workload.ref.api_version, "kind": workload.ref.kind, **body}


def node(body: dict[str, Any], *path: str) -> dict[str, Any]:
    """The mapping at ``path``, made where it is missing."""
    for key in path:
        body = body.setdefault(key, {})
    return body


def keyed(items: list[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    """The item of a keyed list, appended where it is missing."""
    for item in items:
        if item.get(key) == value:
            return item
    items.append({key: value})
    return items[-1]
