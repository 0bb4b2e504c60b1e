"""Every write to a scale target and to the ConfigMaps beside it, as our field manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossover.api.managed_fields import MANAGER
from crossover.cluster.client import APPLY_PATCH, Client
from crossover.cluster.scale import write_scale


class Writer:
    """The hands of `act`. Everything raises `ClusterError`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Server-side apply of a small object; the whole object as it is then.

        Forced: the fields in ``body`` become ours. ``metadata.resourceVersion`` in it is the lock: `Conflict` when
        anybody wrote the object since, so that a forced field never overwrites what has not been looked at.
        """
        answer = await self._client.request(
            "PATCH",
            path,
            body,
            params={"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"},
            content_type=APPLY_PATCH,
        )
        return dict(answer)

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """``path`` is the collection's. Raises `AlreadyExists`."""
        await self._client.request("POST", path, body, params={"fieldManager": MANAGER})

    async def get(self, path: str) -> Mapping[str, Any]:
        return dict(await self._client.get(path))

    async def delete(self, path: str) -> None:
        await self._client.request("DELETE", path)

    async def scale(self, path: str, replicas: int) -> int | None:
        """The replicas that the target asks for afterwards."""
        return (await write_scale(self._client, path, replicas)).desired_replicas
