"""What the tests of the Kubernetes edge share: a limited ServiceAccount and a model Deployment as users write them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossover.api.workload import TargetRef
from crossover.cluster import rbac
from tests.api_server import ControlPlane

SERVICE_ACCOUNT = "crossover"
ARGS = [
    "--model-path=/models/llama",
    "--port=30000",
    "--speculative-algorithm=EAGLE",
    "--speculative-draft-model-path=/models/eagle",
    "--speculative-num-steps=3",
    "--speculative-eagle-topk=1",
    "--speculative-num-draft-tokens=4",
    "--enable-metrics",
]


def limited_kubeconfig(plane: ControlPlane, namespace: str) -> Path:
    """A ServiceAccount of that namespace with exactly `cluster.rbac`, by a Role in it."""
    rules = [*rbac.manifest(rbac.CLUSTER_RULES), *rbac.manifest(rbac.LEASE_RULES)]
    meta = {"name": SERVICE_ACCOUNT, "namespace": namespace}
    plane.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SERVICE_ACCOUNT},
        },
    )
    return plane.service_account_kubeconfig(namespace, SERVICE_ACCOUNT)


def deployment(
    namespace: str, name: str = "llama", *, args: list[str] | None = None, replicas: int = 3, **spec: Any
) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            **spec,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeName": "elsewhere",  # no kubelet starts these
                    "containers": [
                        {
                            "name": "server",
                            "image": "example.org/sglang:0.5.23",
                            "command": ["python3", "-m", "sglang.launch_server"],
                            "args": ARGS if args is None else args,
                            "env": [{"name": "HF_HOME", "value": "/models"}],
                            "ports": [{"containerPort": 30000}],
                        },
                        {"name": "router", "image": "example.org/router:1", "args": ["--listen=8000"]},
                    ],
                },
            },
        },
    }


def ref(name: str = "llama", kind: str = "Deployment") -> TargetRef:
    return TargetRef("apps/v1", kind, name)


async def until(check: Callable[[], object], seconds: float = 20.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := check()):
            await asyncio.sleep(0.02)
        return found


def set_status(plane: ControlPlane, path: str, status: Mapping[str, Any]) -> None:
    plane.request("PATCH", f"{path}/status", {"status": status}, content_type="application/merge-patch+json")
