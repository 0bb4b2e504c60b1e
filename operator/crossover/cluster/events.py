"""events.k8s.io/v1 on the wire: one object for a story that repeats, its count in ``series``.

What is told, and when, is decided by `report`; this only posts it, counts repeats and keeps a budget, so that a bug
elsewhere cannot flood the API server. What was posted is remembered in memory: a restart may repeat one Event once.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from crossover.api.faults import ClusterError, NotFound
from crossover.cluster.client import JSON, MERGE_PATCH, Client
from crossover.cluster.lease import micro_time

REPEAT_SECONDS = 3600.0
"""A repeat within this time is counted on the first Event; the API server keeps Events about as long."""
BURST = 25
REFILL_SECONDS = 30.0
"""Per object: a burst, then one in this time."""
REMEMBERED = 4096


class Clock(Protocol):
    def now(self) -> float: ...


class EventText(Protocol):
    """`report.events.Event`."""

    @property
    def type(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def dedupe(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that the Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Posted:
    path: str
    count: int
    last_seconds: float


@dataclass(slots=True)
class _Budget:
    tokens: float
    at_seconds: float


class Recorder:
    """Posts Events. ``fault`` is the newest failure: Events refused by RBAC must not vanish in silence."""

    def __init__(
        self, client: Client, clock: Clock, *, instance: str, controller: str = "crossover.dev/operator"
    ) -> None:
        self._client, self._clock = client, clock
        self._instance, self._controller = instance[:128], controller
        self._posted: OrderedDict[tuple[str, str, str], _Posted] = OrderedDict()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self._log = structlog.get_logger("crossover.events")
        self.fault: ClusterError | None = None
        self.dropped = 0
        """Events not posted because an object's budget was spent."""

    async def record(self, regarding: Regarding, event: EventText) -> None:
        """Post it, or count it on the one it repeats (same object, reason, ``dedupe``). Never raises on an API fault."""
        if not self._allowed(regarding.uid):
            self.dropped += 1
            return
        key = (regarding.uid, event.reason, event.dedupe)
        posted = self._posted.get(key)
        now = self._clock.now()
        try:
            if posted is not None and now - posted.last_seconds < REPEAT_SECONDS:
                try:
                    await self._repeat(posted, now)
                except NotFound:
                    posted = None
            else:
                posted = None
            if posted is None:
                posted = await self._create(regarding, event, now)
        except ClusterError as fault:
            if self.fault is None:
                self._log.warning("event not posted", reason=event.reason, fault=str(fault))
            self.fault = fault
            return
        self.fault = None
        self._posted[key] = posted
        self._posted.move_to_end(key)
        while len(self._posted) > REMEMBERED:
            self._posted.popitem(last=False)

    async def _create(self, regarding: Regarding, event: EventText, now: float) -> _Posted:
        name = f"{regarding.name[:200]}.{secrets.token_hex(8)}"
        collection = f"/apis/events.k8s.io/v1/namespaces/{regarding.namespace}/events"
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding.namespace},
            "eventTime": micro_time(now),
            "type": event.type,
            "reason": event.reason[:128],
            "action": event.action[:128] or event.reason[:128],
            "note": event.note[:1024],
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
        }
        await self._client.request("POST", collection, body, content_type=JSON)
        return _Posted(f"{collection}/{name}", 1, now)

    async def _repeat(self, posted: _Posted, now: float) -> None:
        series: dict[str, Any] = {"count": posted.count + 1, "lastObservedTime": micro_time(now)}
        await self._client.request("PATCH", posted.path, {"series": series}, content_type=MERGE_PATCH)
        posted.count, posted.last_seconds = posted.count + 1, now

    def _allowed(self, uid: str) -> bool:
        now = self._clock.now()
        budget = self._budgets.setdefault(uid, _Budget(float(BURST), now))
        self._budgets.move_to_end(uid)
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        budget.tokens = min(float(BURST), budget.tokens + (now - budget.at_seconds) / REFILL_SECONDS)
        budget.at_seconds = now
        if budget.tokens < 1.0:
            return False
        budget.tokens -= 1.0
        return True
