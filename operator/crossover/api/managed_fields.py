"""Who owns which field, and what of an object is ours: readers of `metadata.managedFields` (FieldsV1).

Notation: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management. Keys are ``f:name`` (field),
``k:{"name":"x"}`` (item of a keyed list), ``v:"x"`` (item of a set), ``.`` (the node itself); an empty value is a leaf,
owned as a whole. Pure; nothing here changes its arguments.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crossover.api.workload import FieldManager

MANAGER = "crossover.dev"
"""Our field manager: what `kubectl get --show-managed-fields` shows as the owner of what we set."""

REPLICAS = ("f:spec", "f:replicas")


def container_path(container: str, field: str) -> tuple[str, ...]:
    """Path of one field of one container in a workload's pod template."""
    key = f'k:{{"name":{json.dumps(container)}}}'
    return ("f:spec", "f:template", "f:spec", "f:containers", key, f"f:{field}")


def owners(managed_fields: Iterable[Mapping[str, Any]], path: Sequence[str]) -> tuple[FieldManager, ...]:
    """The managers that own ``path`` or anything below it, newest first."""
    found = [
        FieldManager(str(entry.get("manager", "")), str(entry.get("operation", "")), entry.get("time"))
        for entry in managed_fields
        if _has(entry.get("fieldsV1"), path)
    ]
    return tuple(sorted(found, key=lambda item: item.time or "", reverse=True))


def _has(fields: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(fields, Mapping) or key not in fields:
            return False
        fields = fields[key]
    return True


def applied_by(managed_fields: Iterable[Mapping[str, Any]], manager: str) -> Mapping[str, Any]:
    """The fields of the main resource that ``manager`` owns by apply; empty = none."""
    for entry in managed_fields:
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields = entry.get("fieldsV1")
            return fields if isinstance(fields, Mapping) else {}
    return {}


def extract(live: Any, fields: Mapping[str, Any]) -> Any:
    """The part of ``live`` that ``fields`` names, in the shape an apply takes.

    A path that ``live`` does not have is left out, so this also answers "what did these fields hold in that other
    object". Items of keyed lists bring their key fields with them, and keep the order of ``live``.
    """
    if not fields:
        return copy.deepcopy(live)
    if isinstance(live, Mapping):
        return {
            key[2:]: extract(live[key[2:]], below)
            for key, below in fields.items()
            if key.startswith("f:") and key[2:] in live
        }
    if isinstance(live, Sequence) and not isinstance(live, str):
        picked = [_item(item, fields) for item in live]
        return [item for item in picked if item is not None]
    return copy.deepcopy(live)


def _item(item: Any, fields: Mapping[str, Any]) -> Any:
    """One item of a keyed list or of a set; None = not among ``fields``."""
    for key, below in fields.items():
        if key.startswith("v:") and json.loads(key[2:]) == item:
            return copy.deepcopy(item)
        if not key.startswith("k:") or not isinstance(item, Mapping):
            continue
        wanted = json.loads(key[2:])
        # A list key with a default (protocol TCP) may be missing in the item as written.
        if all(item.get(name, value) == value for name, value in wanted.items()):
            if not below:
                return copy.deepcopy(item)
            return {**wanted, **extract(item, below)}
    return None
