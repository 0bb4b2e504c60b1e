"""One active operator at a time, by a coordination.k8s.io Lease.

Safe rather than quick: leadership is a matter of our own monotonic clock. It ends by itself ``renew_seconds`` after the
*beginning* of the last successful renewal, which is earlier than anybody else may take the Lease, and no callback has
to run for that: `is_leader` compares times. A Lease held by someone else expires ``lease_seconds`` after *we* first saw
its present content; its timestamps are never compared with our clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from crossover.api.faults import ClusterError, NotFound
from crossover.cluster.client import Client


class Clock(Protocol):
    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. client-go's own defaults."""

    lease_seconds: float = 15.0
    """Others may take the Lease when it has not changed for this long."""
    renew_seconds: float = 10.0
    """Without a renewal for this long we stop acting."""
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(f"retry < renew < lease is needed, not {self}")


class Elector:
    """Takes part in one election for as long as `run` runs.

    ``on_lost`` is called once when leadership ends without having been given back: the process should exit.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        times: LeaseTimes | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._clock, self._on_lost = client, clock, on_lost
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._meta = {"name": name, "namespace": namespace}
        self.identity = identity
        self._times = times or LeaseTimes()
        self._leads_until: float | None = None
        self._seen: tuple[Any, float] | None = None
        self._log = structlog.get_logger("crossover.lease")
        self.acquired = asyncio.Event()
        """Set when we first become the leader."""
        self.fault: ClusterError | None = None
        """Why the last attempt failed; None after a success."""

    @property
    def is_leader(self) -> bool:
        """True while we may act. Ask again before every write: it turns False by itself."""
        return self._leads_until is not None and self._clock.now() < self._leads_until

    @property
    def leads_for_seconds(self) -> float:
        """Time left to act without another renewal; 0 when not leading."""
        return max(0.0, (self._leads_until or 0.0) - self._clock.now()) if self._leads_until is not None else 0.0

    async def run(self) -> None:
        """Until cancelled, or until leadership is lost (then ``on_lost`` has been called)."""
        while True:
            await self._attempt()
            if self._leads_until is not None and not self.is_leader:
                self._leads_until = None
                self._log.error("lease lost", identity=self.identity, fault=str(self.fault))
                self._on_lost()
                return
            await self._clock.sleep(min(self._times.retry_seconds, self.leads_for_seconds or self._times.retry_seconds))

    async def release(self) -> None:
        """Give the Lease back at an orderly end, so that the next one need not wait for it to expire.

        Stop acting first. Never raises: an unreachable API server only makes the other one wait.
        """
        if self._leads_until is None:
            return
        self._leads_until = None
        try:
            body = await self._within(self._get())
            if body is not None and (body.get("spec") or {}).get("holderIdentity") == self.identity:
                spec = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._time()}
                await self._within(self._put({**body, "spec": spec}))
        except Exception as error:
            self._log.warning("lease not given back", fault=type(error).__name__)

    async def _attempt(self) -> None:
        """One try to get or keep the Lease. Any exception counts as a failed renewal, none leaves here."""
        began = self._clock.now()
        try:
            held = await self._within(self._take())
        except Exception as error:
            self.fault = error if isinstance(error, ClusterError) else None
            self._log.warning("lease not renewed", identity=self.identity, fault=type(error).__name__)
            return
        self.fault = None
        if held:
            self._leads_until = began + self._times.renew_seconds
            self.acquired.set()
        elif self._leads_until is not None:
            self._leads_until = began  # somebody else has it: over at once

    async def _take(self) -> bool:
        """Read, and write if it is ours or nobody's. A concurrent write makes the PUT a Conflict: not ours."""
        body = await self._get()
        if body is None:
            spec = self._spec(0, None)
            await self._client.request(
                "POST",
                self._collection,
                {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._meta, "spec": spec},
                retries=0,
            )
            return True
        spec = body.get("spec") or {}
        holder, transitions = spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0)
        if holder == self.identity:
            await self._put({**body, "spec": self._spec(transitions, spec.get("acquireTime"))})
            return True
        if holder and not self._has_expired(body):
            return False
        await self._put({**body, "spec": self._spec(transitions + 1, None)})
        return True

    def _has_expired(self, body: Mapping[str, Any]) -> bool:
        """By our own clock since its present content was first seen, for at least our own lease time."""
        version = body["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock.now())
        theirs = float((body.get("spec") or {}).get("leaseDurationSeconds") or 0)
        return self._clock.now() - self._seen[1] >= max(theirs, self._times.lease_seconds)

    async def _get(self) -> dict[str, Any] | None:
        try:
            return dict(await self._client.request("GET", f"{self._collection}/{self._meta['name']}", retries=0))
        except NotFound:
            return None

    async def _put(self, body: Mapping[str, Any]) -> None:
        """With the resourceVersion that was read."""
        await self._client.request("PUT", f"{self._collection}/{self._meta['name']}", body, retries=0)

    def _spec(self, transitions: int, acquired: str | None) -> dict[str, Any]:
        now = self._time()
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._times.lease_seconds),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _time(self) -> str:
        return micro_time(self._clock.now())

    async def _within(self, call: Awaitable[Any]) -> Any:
        """``call``, given up when leadership would be over anyway: an answer after that must not count."""
        limit = min(self._times.renew_seconds / 2, self.leads_for_seconds or self._times.renew_seconds)
        task = asyncio.ensure_future(call)
        sleeper = asyncio.ensure_future(self._clock.sleep(limit))
        try:
            await asyncio.wait({task, sleeper}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise TimeoutError
        finally:
            for item in (task, sleeper):
                item.cancel()


def micro_time(seconds: float) -> str:
    """metav1.MicroTime: RFC 3339 in UTC with exactly six digits, also when they are zeros."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
