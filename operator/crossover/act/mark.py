"""What we leave behind in annotations, so that a change can be taken back by whoever holds the Lease next.

On the pod template (it travels with the settings, into every ReplicaSet and through `kubectl rollout undo`):
`crossover.dev/speculation`. On the workload itself (changing it restarts nothing): the ConfigMaps we made and the last
rollout that failed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.engines.contract import WantedSpeculation

SPECULATION = "crossover.dev/speculation"
CONFIG_MAPS = "crossover.dev/config-maps"
FAILED = "crossover.dev/failed-rollout"


@dataclass(frozen=True, slots=True)
class Mark:
    """What our last edit of this template wanted and took out."""

    container: str
    wanted: WantedSpeculation
    digest: str
    """Of command and args as our edit left them: anything else there now was written by somebody else."""
    at_seconds: float
    removed: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return _compact(
            {
                "at": int(self.at_seconds),
                "container": self.container,
                "digest": self.digest,
                "removed": dict(self.removed),
                "wanted": _wanted_json(self.wanted),
            }
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A rollout of ours that was taken back."""

    wanted: WantedSpeculation
    reason: str
    at_seconds: float
    template: str
    """Digest of the containers that the settings were tried on: with others it may work."""

    def to_json(self) -> str:
        return _compact(
            {
                "at": int(self.at_seconds),
                "reason": self.reason,
                "template": self.template,
                "wanted": _wanted_json(self.wanted),
            }
        )


def mark_of(template: Mapping[str, Any]) -> Mark | None:
    """The mark of our last edit; None when there is none, or it is not readable."""
    text = ((template.get("metadata") or {}).get("annotations") or {}).get(SPECULATION)
    try:
        value = json.loads(text or "null")
        return Mark(
            container=str(value["container"]),
            wanted=_wanted(value["wanted"]),
            digest=str(value["digest"]),
            at_seconds=float(value["at"]),
            removed=dict(value["removed"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def failure_of(annotations: Mapping[str, str]) -> Failure | None:
    """The last rollout of ours that was taken back; None when there is none, or it is not readable."""
    try:
        value = json.loads(annotations.get(FAILED) or "null")
        return Failure(
            wanted=_wanted(value["wanted"]),
            reason=str(value["reason"]),
            at_seconds=float(value["at"]),
            template=str(value["template"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def config_maps_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the ConfigMaps that we made for this workload, oldest first."""
    return tuple(name for name in annotations.get(CONFIG_MAPS, "").split(",") if name)


def command_digest(container: Mapping[str, Any]) -> str:
    """Of the container's command line."""
    return _digest([container.get("command") or [], container.get("args") or []])


def containers_digest(template: Mapping[str, Any]) -> str:
    """Of everything that runs in the pod."""
    spec = template.get("spec") or {}
    return _digest([spec.get("initContainers") or [], spec.get("containers") or []])


def _digest(value: Any) -> str:
    return hashlib.sha256(_compact(value).encode()).hexdigest()[:12]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _wanted_json(wanted: WantedSpeculation) -> dict[str, Any]:
    value: dict[str, Any] = {"enabled": wanted.enabled}
    if wanted.draft_tokens is not None:
        value["draftTokens"] = wanted.draft_tokens
    if wanted.schedule:
        value["schedule"] = [list(pair) for pair in wanted.schedule]
    return value


def _wanted(value: Mapping[str, Any]) -> WantedSpeculation:
    draft_tokens = value.get("draftTokens")
    return WantedSpeculation(
        enabled=bool(value["enabled"]),
        draft_tokens=None if draft_tokens is None else int(draft_tokens),
        schedule=tuple((int(first), int(second)) for first, second in value.get("schedule") or ()),
    )
