"""Which accelerator a node has: one read per node, remembered for a while, and none where it is not allowed."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from crossover.api.faults import ClusterError, Forbidden, NotFound
from crossover.cluster.client import Client
from crossover.cluster.watch import Clock

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""GPU feature discovery and AMD's node labeller: one of them by vendor, names as the driver has them."""
OTHER_LABELS = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
"""GKE, Karpenter and EKS Auto Mode, in words of their own, where the others are not there, or not yet."""
REMEMBERED_SECONDS = 900.0
"""A node that is made again under the same name may be another machine."""
YOUNG_SECONDS = 60.0
"""So long where better labels may still come."""
MOST_NODES = 4096


class Nodes:
    """Products of nodes by name. A namespaced install may not read nodes: then nothing is known of any."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._known: dict[str, tuple[float, str | None]] = {}
        self._forbidden_until = 0.0
        self._log = structlog.get_logger("crossover.nodes")

    async def product(self, name: str) -> str | None:
        """None = no label tells, or it cannot be read now."""
        now = self._clock.now()
        seen = self._known.get(name)
        if seen is not None and now - seen[0] < (REMEMBERED_SECONDS if _is_final(seen[1]) else YOUNG_SECONDS):
            return seen[1]
        if now < self._forbidden_until:
            return None
        try:
            body = await self._client.get(f"/api/v1/nodes/{name}")
        except Forbidden:
            if not self._forbidden_until:
                self._log.info("nodes may not be read: accelerators are told apart by the pod template only")
            self._forbidden_until = now + REMEMBERED_SECONDS
            return None
        except NotFound:
            return self._keep(name, now, None)
        except ClusterError:
            return seen[1] if seen is not None else None
        return self._keep(name, now, product_of(body["metadata"].get("labels") or {}))

    def _keep(self, name: str, now: float, product: str | None) -> str | None:
        if len(self._known) >= MOST_NODES:
            del self._known[next(iter(self._known))]
        self._known.pop(name, None)
        self._known[name] = (now, product)
        return product


def product_of(labels: Mapping[str, str]) -> str | None:
    """From a node's labels; with the label's name where that has words of its own:
    ``"h100 (karpenter.k8s.aws/instance-gpu-name)"``."""
    plain = next((labels[label] for label in PRODUCT_LABELS if labels.get(label)), None)
    return plain or next((f"{labels[label]} ({label})" for label in OTHER_LABELS if labels.get(label)), None)


def are_different(one: str, other: str) -> bool:
    """Names of two labels cannot be compared: they count as equal."""
    return one != other and _label(one) == _label(other)


def _label(product: str) -> str:
    return product.partition(" (")[2]


def _is_final(product: str | None) -> bool:
    """A node without any such label may well stay so, and says nothing wrong meanwhile."""
    return product is None or not _label(product)
