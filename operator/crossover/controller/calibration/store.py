"""The Calibrations that exist, and the profile that each of them makes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from crossover.api.points import CalibrationPoint
from crossover.api.resources import CalibrationSpec
from crossover.api.resources.calibration import PointSpec
from crossover.calibrate.environment import Environment
from crossover.calibrate.workload import WorkloadError
from crossover.controller.calibration.environment import from_status
from crossover.controller.calibration.lengths import mean_output_tokens
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.report import texts
from crossover.report.texts import Reason

Key = tuple[str, str]
"""(namespace, name)."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a ModelAutoscaler gets from its `calibrationRef`."""

    profile: Profile | None = None
    environment: Environment | None = None
    """Where it was measured; None = points given by hand, valid wherever they are used."""
    reason: str = ""
    message: str = ""
    """Why there is no profile."""
    points: tuple[CalibrationPoint, ...] = ()
    """What the profile was fitted to."""
    output_tokens: float | None = None
    """Of a request; None = not told."""


@dataclass(slots=True)
class Kept:
    """One Calibration."""

    body: Mapping[str, Any]
    status: Mapping[str, Any]
    """As last written, or as read at the start."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the object goes or its spec changes: what is being measured is stopped."""
    run: Any = None
    """What the runner remembers between ticks; never the only copy of a point."""
    unwritten: Any = None
    """A status that the API server has not taken yet: nothing goes on before it has."""
    fitted: tuple[tuple[CalibrationPoint, ...], Profile] | None = None
    resolved: tuple[Mapping[str, Any], Mapping[str, Any], Resolved] | None = None
    """What was made of which body and status: fleets ask on every tick."""

    @property
    def meta(self) -> Mapping[str, Any]:
        meta: Mapping[str, Any] = self.body["metadata"]
        return meta

    @property
    def generation(self) -> int:
        return int(self.meta.get("generation", 0))


class Calibrations:
    """All of them by (namespace, name)."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Kept] = {}

    def put(self, body: Mapping[str, Any], *, leading: bool = True) -> tuple[Key, bool]:
        """(key, whether its spec is new). Who leads knows the status better than the watch; who does not, may have to go on
        from what the leader wrote last."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._by_key.get(key)
        if known is not None and known.meta["uid"] == meta["uid"]:
            is_new = known.generation != int(meta.get("generation", 0))
            known.body = body
            if not leading:
                known.status, known.run, known.unwritten = body.get("status") or {}, None, None
            if is_new:
                known.changed.set()
            return key, is_new
        if known is not None:
            known.changed.set()
        self._by_key[key] = Kept(body, body.get("status") or {})
        return key, True

    def drop(self, body: Mapping[str, Any]) -> Key | None:
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._by_key.get(key)
        if known is None or known.meta["uid"] != meta["uid"]:
            return None
        known.changed.set()
        del self._by_key[key]
        return key

    def get(self, key: Key) -> Kept | None:
        return self._by_key.get(key)

    def resolve(self, namespace: str, name: str) -> Resolved:
        """What a fleet goes by; made anew only for another body or status."""
        kept = self._by_key.get((namespace, name))
        if kept is None:
            return Resolved(reason=Reason.CALIBRATION_NOT_FOUND, message=texts.calibration_not_found(name))
        known = kept.resolved
        if known is None or known[0] is not kept.body or known[1] is not kept.status:
            known = kept.resolved = (kept.body, kept.status, _resolved(kept, name))
        return known[2]


def _resolved(kept: Kept, name: str) -> Resolved:
    """The profile of a Calibration, fitted once for as long as its points stay the same."""
    try:
        spec = CalibrationSpec.model_validate(kept.body["spec"])
        given = spec.points is not None
        standing = kept.status if given or is_ready(kept.status) else kept.status.get("previous") or {}
        points = points_of(spec, standing)
        if not points:
            return Resolved(reason=Reason.CALIBRATION_NOT_READY, message=texts.calibration_not_ready(name))
        output = None if given else mean_output_tokens(spec.workload)
        if kept.fitted is None or kept.fitted[0] != points:
            kept.fitted = (
                points,
                fit_profile(points, output_tokens_per_request=output, source=f"calibration {name}"),
            )
    except (ValidationError, WorkloadError, ProfileError) as error:
        why = str(error) if isinstance(error, ProfileError) else "its spec is not valid"
        return Resolved(reason=Reason.CALIBRATION_UNUSABLE, message=texts.calibration_unusable(name, why))
    environment = None if given else from_status(standing.get("environment") or {})
    return Resolved(kept.fitted[1], environment, points=points, output_tokens=output)


def points_of(spec: CalibrationSpec, status: Mapping[str, Any]) -> tuple[CalibrationPoint, ...]:
    """Given by hand, else measured so far. Raises `ValidationError` only for a status that somebody else wrote."""
    if spec.points is not None:
        return tuple(point.to_point() for point in spec.points)
    return tuple(PointSpec.model_validate(point).to_point() for point in status.get("points") or [])


def is_ready(status: Mapping[str, Any]) -> bool:
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or [])
