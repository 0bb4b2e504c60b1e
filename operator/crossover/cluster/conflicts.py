"""Who else scales the same target: HPAs, KEDA ScaledObjects, older ModelAutoscalers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from crossover.api.faults import Forbidden, NotFound
from crossover.api.workload import Rival, TargetRef
from crossover.cluster.client import Client
from crossover.cluster.kinds import Kinds

HPA_VERSION, HPA_KIND = "autoscaling/v2", "HorizontalPodAutoscaler"
KEDA_VERSION, KEDA_KIND = "keda.sh/v1alpha1", "ScaledObject"
REMEMBER_SECONDS = 15.0
"""One list a namespace in this time, however many fleets are in it."""


class Clock(Protocol):
    def now(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Claim:
    """One autoscaler found and what it scales."""

    rival: Rival
    group: str
    kind: str
    name: str

    def is_on(self, ref: TargetRef) -> bool:
        return (self.group, self.kind, self.name) == (ref.group, ref.kind, ref.name)


class Rivals:
    """Other autoscalers of a namespace, read at most every 15 s."""

    def __init__(self, client: Client, kinds: Kinds, clock: Clock) -> None:
        self._client, self._kinds, self._clock = client, kinds, clock
        self._known: dict[str, tuple[float, tuple[_Claim, ...]]] = {}
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def on(self, namespace: str, ref: TargetRef) -> tuple[Rival, ...]:
        """Every HPA and ScaledObject that scales ``ref``. An HPA that KEDA made is told as its ScaledObject.

        Raises `ClusterError`, but not where KEDA's objects may not be read: then its HPA is what is seen.
        """
        async with self._reading[namespace]:  # a hundred fleets whose memory ends together read once
            known = self._known.get(namespace)
            if known is None or self._clock.now() - known[0] >= REMEMBER_SECONDS:
                known = (self._clock.now(), tuple(await self._read(namespace)))
                self._known[namespace] = known
        return tuple(claim.rival for claim in known[1] if claim.is_on(ref))

    async def _read(self, namespace: str) -> list[_Claim]:
        answer = await self._client.get(f"/apis/{HPA_VERSION}/namespaces/{namespace}/horizontalpodautoscalers")
        claims = [_claim(HPA_KIND, "minReplicas", "maxReplicas", item) for item in answer["items"]]
        scaled = await self._scaled_objects(namespace)
        known = {claim.rival.name for claim in scaled}
        return scaled + [claim for claim in claims if claim.rival.kind != KEDA_KIND or claim.rival.name not in known]

    async def _scaled_objects(self, namespace: str) -> list[_Claim]:
        if not await self._kinds.served(KEDA_VERSION):
            return []
        try:
            answer = await self._client.get(f"/apis/{KEDA_VERSION}/namespaces/{namespace}/scaledobjects")
        except (Forbidden, NotFound):
            return []
        return [_claim(KEDA_KIND, "minReplicaCount", "maxReplicaCount", item) for item in answer["items"]]


def _claim(kind: str, low: str, high: str, item: Mapping[str, Any]) -> _Claim:
    spec = item.get("spec") or {}
    target = spec.get("scaleTargetRef") or {}
    # KEDA's own defaults; the HPA's schema requires kind and defaults nothing else.
    version, target_kind = target.get("apiVersion") or "apps/v1", target.get("kind") or "Deployment"
    name = item["metadata"]["name"]
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == KEDA_KIND:  # the HPA is KEDA's tool: what a user can change is the ScaledObject
            kind, name = KEDA_KIND, owner["name"]
    rival = Rival(kind, name, spec.get(low), spec.get(high))
    return _Claim(rival, version.partition("/")[0] if "/" in version else "", target_kind, target.get("name", ""))


@dataclass(frozen=True, slots=True)
class Claimant:
    """One ModelAutoscaler and what it wants to scale."""

    name: str
    created: str
    """`metadata.creationTimestamp`."""
    uid: str
    ref: TargetRef
    holds_it: bool = False
    """Its status says that it has the target. Creation times are whole seconds: of two made in the same one, the one that
    has been acting goes on, also in the next operator process."""


def holder(claimants: Iterable[Claimant], ref: TargetRef) -> str | None:
    """Of the ModelAutoscalers of one namespace, the one that keeps ``ref``: the oldest; of the same second the one that
    has it already, then the smaller uid."""
    on_it = [
        item for item in claimants if (item.ref.group, item.ref.kind, item.ref.name) == (ref.group, ref.kind, ref.name)
    ]
    return min(on_it, key=lambda item: (item.created, not item.holds_it, item.uid)).name if on_it else None
