"""The ModelAutoscalers that exist, and what is remembered of each between ticks.

Nothing here is the only copy of anything that matters: what must survive a restart is in status and read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.api.decision import Memory
from crossover.api.fleet import EngineType
from crossover.api.workload import TargetRef, Workload
from crossover.cluster.conflicts import Claimant
from crossover.controller.caps import Caps
from crossover.controller.passive import Passive
from crossover.controller.ticker import FleetKey
from crossover.decide.memory import from_json
from crossover.decide.profile import Profile


@dataclass(slots=True)
class Fleet:
    """One ModelAutoscaler."""

    body: Mapping[str, Any]
    """As the watch last told it, status included."""
    memory: Memory
    status: Mapping[str, Any]
    """As last written, or as read at the start."""
    written_at_seconds: float | None = None
    workload: Workload | None = None
    workload_at_seconds: float = 0.0
    """When the target was last read; 0 = read it again."""
    engine: EngineType | None = None
    """Detected."""
    rolling: bool = False
    """A rollout of ours was under way at the last tick."""
    tidy: bool = True
    """Old ConfigMaps may be looked for."""
    draft_seen: int | None = None
    caps: Caps = field(default_factory=Caps)
    profile: Profile | None = None
    """Of the Calibration that this tick goes by."""
    passive: Passive = field(default_factory=Passive)
    """What its own load says about that Calibration."""
    no_pods_since_seconds: float | None = None

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    def touch(self) -> None:
        """Something about the target may have changed: read it again."""
        self.workload_at_seconds = 0.0


def target_ref(body: Mapping[str, Any]) -> TargetRef:
    """`spec.scaleTargetRef` of a ModelAutoscaler as the API server holds it."""
    ref = body["spec"]["scaleTargetRef"]
    return TargetRef(ref.get("apiVersion", "apps/v1"), ref.get("kind", "Deployment"), ref["name"])


@dataclass
class Fleets:
    """All fleets by (namespace, name)."""

    by_key: dict[FleetKey, Fleet] = field(default_factory=dict)
    gone: dict[FleetKey, Fleet] = field(default_factory=dict)
    """Deleted, and something of theirs may still have to be taken away."""

    def put(self, body: Mapping[str, Any], *, leading: bool = True) -> FleetKey:
        """A ModelAutoscaler came or changed. Another object under the same name starts afresh, and so does everyone who is
        not leading: what the leader wrote last is where its successor goes on."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self.by_key.get(key)
        if known is not None and known.uid == meta["uid"] and leading:
            known.body = body
        else:
            status = body.get("status") or {}
            memory = from_json(status.get("memory") or {})
            self.by_key[key] = Fleet(body, memory, status, draft_seen=_draft(status), caps=Caps(memory.running_cap))
        return key

    def drop(self, key: FleetKey) -> Fleet | None:
        fleet = self.by_key.pop(key, None)
        if fleet is not None and fleet.caps.any_held:
            self.gone[key] = fleet
        return fleet

    def get(self, key: FleetKey) -> Fleet | None:
        return self.by_key.get(key)

    def in_namespace(self, namespace: str) -> Iterator[Fleet]:
        return (fleet for (where, _), fleet in self.by_key.items() if where == namespace)

    def claimants(self, namespace: str) -> Iterable[Claimant]:
        """Everybody in the namespace who wants to scale something."""
        for fleet in self.in_namespace(namespace):
            meta = fleet.body["metadata"]
            created = meta.get("creationTimestamp", "")
            yield Claimant(meta["name"], created, meta["uid"], target_ref(fleet.body), _holds_target(fleet.status))


def _holds_target(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or []
    return any(item.get("type") == "TargetResolved" and item.get("status") == "True" for item in conditions)


def _draft(status: Mapping[str, Any]) -> int | None:
    shown = (status.get("fleet") or {}).get("draftTokens", "")
    return int(shown) if isinstance(shown, str) and shown.isdigit() else None
