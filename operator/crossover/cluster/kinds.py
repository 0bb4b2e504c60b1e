"""From apiVersion and kind to the path in the API, by the API server's own discovery, remembered for a while."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import msgspec

from crossover.api.faults import NotFound
from crossover.cluster.client import Client

REMEMBER_SECONDS = 600.0


class KindError(Exception):
    """A kind that cannot be a scale target.

    ::

        KindError
        ├── UnknownKind    the API server does not serve it
        └── NoScale        it has no scale subresource
    """

    def __init__(self, api_version: str, kind: str, what: str) -> None:
        super().__init__(f"{api_version} {kind}: {what}")
        self.api_version, self.kind = api_version, kind


class UnknownKind(KindError):  # noqa: N818 - an answer's name
    """Not served: a typing error, or a CRD that is not installed."""


class NoScale(KindError):  # noqa: N818
    """Without a scale subresource nobody can set its replicas."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One served, namespaced kind."""

    api_version: str
    kind: str
    plural: str
    has_scale: bool

    def path(self, namespace: str, name: str) -> str:
        root = "/apis" if "/" in self.api_version else "/api"
        return f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}/{name}"


class _Resource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = True


class _Resources(msgspec.Struct):
    resources: list[_Resource] = msgspec.field(default_factory=list)


class Clock(Protocol):
    def now(self) -> float: ...


class Kinds:
    """Discovery with a memory; a kind that was not found is asked for again each time."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._known: dict[str, tuple[float, _Resources]] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def scalable(self, api_version: str, kind: str) -> Kind:
        """A kind with a scale subresource. Raises `KindError`, `ClusterError`."""
        found = await self.find(api_version, kind)
        if not found.has_scale:
            raise NoScale(api_version, kind, "has no scale subresource")
        return found

    async def find(self, api_version: str, kind: str) -> Kind:
        """Raises `UnknownKind`, `ClusterError`."""
        found = _find(await self._resources(api_version), api_version, kind)
        if found is None and self._known.pop(api_version, None) is not None:
            found = _find(await self._resources(api_version), api_version, kind)
        if found is None:
            raise UnknownKind(api_version, kind, "is not served by this cluster")
        return found

    async def served(self, api_version: str) -> bool:
        """True when the API server serves this group and version at all."""
        return bool((await self._resources(api_version)).resources)

    async def _resources(self, api_version: str) -> _Resources:
        async with self._asking[api_version]:
            return await self._remembered(api_version)

    async def _remembered(self, api_version: str) -> _Resources:
        known = self._known.get(api_version)
        if known is not None and self._clock.now() - known[0] < REMEMBER_SECONDS:
            return known[1]
        root = "/apis" if "/" in api_version else "/api"
        try:
            answer = await self._client.request_bytes("GET", f"{root}/{api_version}")
        except NotFound:
            resources = _Resources()
        else:
            resources = msgspec.json.decode(answer, type=_Resources)
        self._known[api_version] = (self._clock.now(), resources)
        return resources


def _find(resources: _Resources, api_version: str, kind: str) -> Kind | None:
    names = {item.name for item in resources.resources}
    for item in resources.resources:
        if item.kind == kind and item.namespaced and "/" not in item.name:
            return Kind(api_version, kind, item.name, f"{item.name}/scale" in names)
    return None
