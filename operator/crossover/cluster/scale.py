"""The scale subresource of any kind that has one: the only way in which replicas are ever written."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from crossover.api.managed_fields import MANAGER
from crossover.cluster.client import MERGE_PATCH, Client


@dataclass(frozen=True, slots=True)
class Scale:
    """autoscaling/v1 Scale."""

    desired_replicas: int | None
    replicas: int | None
    selector: str


class _Spec(msgspec.Struct):
    replicas: int | None = None


class _ScaleStatus(msgspec.Struct):
    replicas: int | None = None
    selector: str = ""


class _Scale(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _ScaleStatus = msgspec.field(default_factory=_ScaleStatus)


async def read_scale(client: Client, path: str) -> Scale:
    """``path`` is the object's own. Raises `ClusterError`."""
    return _scale(await client.request_bytes("GET", f"{path}/scale"))


async def write_scale(client: Client, path: str, replicas: int) -> Scale:
    """Set the wanted replicas and nothing else; the scale as it is then. Raises `ClusterError`.

    No resourceVersion: a replica count does not depend on the rest of the object, and the status of a busy workload
    changes all the time.
    """
    answer = await client.request_bytes(
        "PATCH",
        f"{path}/scale",
        {"spec": {"replicas": replicas}},
        params={"fieldManager": MANAGER},
        content_type=MERGE_PATCH,
    )
    return _scale(answer)


def _scale(answer: bytes) -> Scale:
    scale = msgspec.json.decode(answer, type=_Scale)
    # A custom resource without spec.replicas answers 0 there although nobody asked for 0; apps/v1 always has it.
    return Scale(scale.spec.replicas, scale.status.replicas, scale.status.selector)
