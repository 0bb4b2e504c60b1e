"""What a calibration under way remembers between ticks. Points, skips and the start are in status; the rest is a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crossover.api.fleet import Capability, EngineType
from crossover.api.points import CalibrationPoint
from crossover.api.resources import CalibrationSpec, ResultStatus
from crossover.calibrate.between import is_of_forcing
from crossover.calibrate.contract import Ask, Described, FailureReason, Measured
from crossover.calibrate.environment import Environment
from crossover.controller.calibration.environment import asked_digest, from_status, to_status
from crossover.controller.calibration.store import is_ready, points_of
from crossover.decide.variant import GATED, OFF, Variant

MOST_LINES = 16
MOST_FAILED_LOADS = 2
"""After so many, and no point at all, a way to run is not paid for any longer: the other loads would fail alike."""

FAILURES = frozenset(FailureReason)
EVERY_LOAD = "all"
"""Stands for the load in a line of `status.skipped` about a variant that cannot be had at all."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a variant, or the whole calibration, gives no number."""

    reason: str
    message: str


@dataclass(slots=True)
class Run:
    """One calibration from its start to its end, over any number of operator processes."""

    generation: int
    started_at_seconds: float
    asked: str
    """Digest of what points depend on in the spec: with another one they are points of something else."""
    finished_at_seconds: float | None = None
    failure: Lost | None = None
    """It ended without a result: nothing is tried again until the spec or the pod template changes."""
    template: str | None = None
    """Digest of the pod template that it began with."""
    points: list[CalibrationPoint] = field(default_factory=list)
    interpolated: list[CalibrationPoint] = field(default_factory=list)
    """Made from the points when all of them were there; never measured."""
    skipped: dict[Ask, str] = field(default_factory=dict)
    """Loads that could not be measured, and why."""
    lost: dict[Variant, Lost] = field(default_factory=dict)
    """Variants whose pods cannot be had."""
    crashes: dict[Variant, int] = field(default_factory=dict)
    tries: dict[Ask, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    described: dict[str, Described] = field(default_factory=dict)
    """By pod uid."""
    environment: Environment | None = None
    previous: Mapping[str, Any] | None = None
    """The result of before, as it stood in status: it is gone by until there is another."""

    @property
    def capability(self) -> Capability | None:
        """What a speculating server of this run said of itself."""
        told = [item.capability for item in self.described.values() if item.capability is not None]
        return next((item for item in told if item.speculative_algorithm is not None), None)

    def told_for(self, variant: Variant) -> Capability | None:
        """What decides how a server is started as ``variant``. Any server tells the version, only one that speculates
        whether it takes a schedule."""
        if self.capability is not None or not variant.draft_tokens:
            return self.capability
        told = next((item.capability for item in self.described.values() if item.capability is not None), None)
        if told is None and self.environment is not None and self.environment.engine_version is not None:
            # Another process of the operator was told.
            return Capability(EngineType(str(self.environment.engine)), self.environment.engine_version, None)
        return told

    @property
    def limits(self) -> dict[Variant, int]:
        """Most running requests of the servers met so far."""
        return {
            described.variant: described.most_running_requests
            for described in self.described.values()
            if described.most_running_requests is not None
        }

    @property
    def losses(self) -> str:
        return "; ".join(f"{variant.shown}: {lost.message}" for variant, lost in self.lost.items())

    def note(self, measured: Measured, ask: Ask) -> None:
        """Keep what can be used; never ask again for what cannot."""
        seen = Variant(measured.point.draft_tokens, measured.point.off)
        if measured.is_usable:
            self.points.append(measured.point)
        if not measured.is_usable or seen != ask.variant:
            self.skipped[ask] = measured.caveats[0].code if measured.caveats else f"ran as {seen.shown}"
        for caveat in measured.caveats:
            self.caveat(f"{ask.variant.shown} at {ask.running_requests}: {caveat.message}")

    def give_up(self, ask: Ask, reason: FailureReason, message: str) -> None:
        """Never ask for that load again; nor for any load of a way to run of which nothing but failures comes."""
        self.skipped[ask] = reason
        failed = [one for one, why in self.skipped.items() if one.variant == ask.variant and why in FAILURES]
        measured = any(Variant(point.draft_tokens, point.off) == ask.variant for point in self.points)
        if len(failed) >= MOST_FAILED_LOADS and not measured:
            self.lost[ask.variant] = Lost(reason, message)

    @property
    def failed_load(self) -> Lost | None:
        """The first load that gave a failure instead of a point."""
        for ask, why in self.skipped.items():
            if why in FAILURES:
                return Lost(
                    why, f"{ask.variant.shown} at {ask.running_requests} running requests could not be measured"
                )
        return None

    def caveat(self, line: str) -> None:
        """Told once; the latest are kept."""
        if line and line not in self.caveats:
            self.caveats = [*self.caveats, line][-MOST_LINES:]

    def to_status(self) -> dict[str, Any]:
        """What is kept of it in status. A line of `skipped`: ``"draft-3 64 NoProgress"``, ``"gated all Refused why"``."""
        lines = [f"{ask.variant.name} {ask.running_requests} {why}"[:512] for ask, why in self.skipped.items()]
        lines += [f"{item.name} {EVERY_LOAD} {lost.reason} {lost.message}"[:512] for item, lost in self.lost.items()]
        where = {**(to_status(self.environment) if self.environment is not None else {}), "workload": self.asked}
        if self.template is not None:
            where["template"] = self.template
        previous = {"previous": dict(self.previous)} if self.previous is not None else {}
        return {"environment": where, **({"skipped": lines[-256:]} if lines else {}), **previous}


RESULT = frozenset(str(field.alias or name) for name, field in ResultStatus.model_fields.items())


def again(spec: CalibrationSpec, status: Mapping[str, Any], generation: int, now_seconds: float) -> Run:
    """A new run; the result that is in status stays in use until there is another."""
    previous = status.get("previous")
    if is_ready(status):
        previous = {name: value for name, value in status.items() if name in RESULT}
    return Run(generation, now_seconds, asked_digest(spec), previous=previous)


def restore(spec: CalibrationSpec, status: Mapping[str, Any], generation: int, now_seconds: float) -> Run:
    """From status, where an earlier process left off; afresh for a spec that asks for something else, and for a status
    that nobody of us wrote."""
    try:
        return _restored(spec, status, generation, now_seconds)
    except (ValueError, TypeError, KeyError):
        return Run(generation, now_seconds, asked_digest(spec))


def _restored(spec: CalibrationSpec, status: Mapping[str, Any], generation: int, now_seconds: float) -> Run:
    started, asked = status.get("startedAt"), asked_digest(spec)
    where = status.get("environment") or {}
    if not started or where.get("workload", asked) != asked:
        return Run(generation, now_seconds, asked, previous=status.get("previous"))
    finished = status.get("finishedAt")
    same = status.get("observedGeneration") == generation
    points = points_of(spec.model_copy(update={"points": None}), status)
    run = Run(
        generation,
        # Another spec has its whole time again: one that was suspended for a day would be over at once.
        datetime.fromisoformat(started).timestamp() if same else now_seconds,
        asked,
        datetime.fromisoformat(finished).timestamp() if finished and same else None,
        _failure(status) if finished and same else None,
        where.get("template"),
        points=[point for point in points if not point.interpolated],
        interpolated=[point for point in points if point.interpolated] if same else [],
        environment=from_status(where) if where.get("engine") else None,
        caveats=[line for line in status.get("caveats") or [] if same or not is_of_forcing(line)],
        previous=status.get("previous"),
    )
    for line in status.get("skipped") or []:
        name, _, rest = line.partition(" ")
        running, _, why = rest.partition(" ")
        variant = variant_of(name)
        if variant is None or not same:
            continue
        if running == EVERY_LOAD:
            reason, _, message = why.partition(" ")
            run.lost[variant] = Lost(reason, message)
        elif running.isdigit():
            run.skipped[Ask(variant, int(running))] = why
    return run


def _failure(status: Mapping[str, Any]) -> Lost | None:
    for item in status.get("conditions") or []:
        if item.get("type") == "Failed" and item.get("status") == "True":
            return Lost(str(item.get("reason", "")), str(item.get("message", "")))
    return None


def variant_of(name: str) -> Variant | None:
    """The way back from `Variant.name`."""
    if name == "off":
        return OFF
    if name == "gated":
        return GATED
    digits = name.removeprefix("draft-")
    return Variant(int(digits)) if digits.isdigit() else None
