"""Scratch pods in the cluster: listed by label, created, looked at, always removed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from crossover.act.scratch import CALIBRATION_LABEL, MAP_ANNOTATION, TEMPLATE_ANNOTATION, VARIANT_LABEL, scratch_pod
from crossover.api.faults import AlreadyExists, ClusterError, NotFound
from crossover.api.fleet import Capability, PodFacts
from crossover.cluster.client import Client
from crossover.cluster.pods import WirePod, pod_facts
from crossover.cluster.writer import Writer
from crossover.controller.calibration.subject import Subject
from crossover.decide.variant import Variant


class PodState(StrEnum):
    STARTING = "starting"
    UNSCHEDULABLE = "not scheduled"
    READY = "ready"
    CRASHED = "crashed"
    GOING = "going"


@dataclass(frozen=True, slots=True)
class ScratchPod:
    name: str
    uid: str
    variant: str
    state: PodState
    address: str | None
    created_at_seconds: float
    maps: tuple[str, ...] = ()
    """ConfigMaps made for it."""
    template: str | None = None
    """`Subject.digest` that it was made from; None = not told."""
    facts: PodFacts | None = None
    """As of any pod."""


class ScratchPods:
    """Those of all Calibrations. Everything raises `ClusterError`."""

    def __init__(self, client: Client, writer: Writer) -> None:
        self._client, self._writer = client, writer

    async def of(self, namespace: str, uid: str) -> tuple[ScratchPod, ...]:
        listed = await self._client.get(_path(namespace), params={"labelSelector": f"{CALIBRATION_LABEL}={uid}"})
        return tuple(_seen(body) for body in listed.get("items") or [])

    async def create(
        self, subject: Subject, variant: Variant, owner: Mapping[str, Any], told: Capability | None
    ) -> None:
        """Raises `Refusal` for what the template does not allow. ``told``: what a server like it said of itself."""
        change = subject.edit(variant, told)
        body, new_map = scratch_pod(
            subject.workload,
            subject.container,
            change,
            owner=owner,
            variant=variant.name,
            template=subject.digest,
            most_seconds=subject.most_seconds,
        )
        if new_map is not None:
            with contextlib.suppress(AlreadyExists):
                await self._writer.create(new_map.path, new_map.body)
        try:
            await self._writer.create(_path(subject.workload.namespace), body)
        except ClusterError:
            if new_map is not None:
                with contextlib.suppress(ClusterError):
                    await self._writer.delete(f"{new_map.path}/{new_map.name}")
            raise

    async def remove(self, namespace: str, pods: tuple[ScratchPod, ...]) -> None:
        for pod in pods:
            if pod.state is not PodState.GOING:
                with contextlib.suppress(NotFound):
                    await self._writer.delete(f"{_path(namespace)}/{pod.name}")
                for name in pod.maps:
                    with contextlib.suppress(NotFound):
                        await self._writer.delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}")


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _seen(body: Mapping[str, Any]) -> ScratchPod:
    meta, status = body["metadata"], body.get("status") or {}
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    variant = (meta.get("labels") or {}).get(VARIANT_LABEL, "")
    annotations = meta.get("annotations") or {}
    made = annotations.get(MAP_ANNOTATION)
    maps = (made,) if made else ()
    state, template = _state(meta, status), annotations.get(TEMPLATE_ANNOTATION)
    facts = pod_facts(msgspec.convert(body, WirePod))
    return ScratchPod(meta["name"], meta["uid"], variant, state, status.get("podIP"), created, maps, template, facts)


def _state(meta: Mapping[str, Any], status: Mapping[str, Any]) -> PodState:
    if meta.get("deletionTimestamp"):
        return PodState.GOING
    containers = status.get("containerStatuses") or []
    ended = any("terminated" in (item.get("state") or {}) for item in containers)
    if status.get("phase") in ("Failed", "Succeeded") or ended:
        return PodState.CRASHED
    conditions = {item.get("type"): item for item in status.get("conditions") or []}
    if conditions.get("Ready", {}).get("status") == "True":
        return PodState.READY
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return PodState.UNSCHEDULABLE
    return PodState.STARTING
