"""Every right that this package and `act` use: the chart's roles must equal this, no verb more.

Discovery (`/apis/...`) is open to every authenticated ServiceAccount and needs no rule. Scale targets of other kinds
need `get` on the kind and `get`, `patch` on its `/scale`, granted by whoever installs them.
"""

from __future__ import annotations

from typing import Final

Rule = tuple[str, str, tuple[str, ...]]
"""(API group, resource, verbs)."""

CLUSTER_RULES: Final[tuple[Rule, ...]] = (
    ("", "pods", ("create", "delete", "list", "watch")),
    ("", "configmaps", ("create", "delete", "get")),
    ("apps", "deployments", ("get", "patch")),
    ("apps", "deployments/scale", ("patch",)),
    ("apps", "statefulsets", ("get", "patch")),
    ("apps", "statefulsets/scale", ("patch",)),
    ("apps", "replicasets", ("list",)),
    ("apps", "controllerrevisions", ("list",)),
    ("autoscaling", "horizontalpodautoscalers", ("list",)),
    ("keda.sh", "scaledobjects", ("list",)),
    ("events.k8s.io", "events", ("create", "patch")),
)
"""In every watched namespace (a ClusterRole, or a Role in each)."""

NODE_RULES: Final[tuple[Rule, ...]] = (("", "nodes", ("get",)),)
"""Only where the install is cluster-wide: nodes are in no namespace. Without it accelerators are told apart by the pod
template alone."""

LEASE_RULES: Final[tuple[Rule, ...]] = (("coordination.k8s.io", "leases", ("create", "get", "update")),)
"""In the operator's own namespace. `create` cannot be limited by name; `get` and `update` can be, to the Lease's."""


def manifest(rules: tuple[Rule, ...]) -> list[dict[str, list[str]]]:
    """As `rules:` of a Role or ClusterRole."""
    return [{"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in rules]
