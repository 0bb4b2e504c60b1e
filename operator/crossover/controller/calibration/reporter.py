"""Telling how a calibration stands: its status, on change only, and Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from crossover.api.faults import ClusterError, NotFound
from crossover.api.managed_fields import MANAGER
from crossover.api.resources import GROUP, VERSION, CalibrationSpec
from crossover.api.resources.calibration import PointSpec
from crossover.calibrate.contract import Ask, SweepPlan
from crossover.calibrate.result import CalibrationResult, summarise
from crossover.calibrate.sweep import estimate_points
from crossover.cluster.client import APPLY_PATCH, Client
from crossover.cluster.events import Recorder, Regarding
from crossover.controller.calibration.run import Run
from crossover.controller.calibration.store import Kept, Key, points_of
from crossover.controller.ticker import Clock
from crossover.decide.profile import ProfileError
from crossover.decide.schedule import describe
from crossover.engines.contract import ConfigFile
from crossover.report.calibration import (
    MEASURED_BEFORE,
    NOT_MEASURED,
    STILL_TRUE,
    Staleness,
    Told,
    Why,
    conditions,
    events,
    worth_writing,
)
from crossover.report.conditions import TRUE, timestamp

LINE, MESSAGE = 512, 1024
MEASURED = ("startedAt", "points", "skipped", "environment", "caveats", "previous")
"""Never dropped from status because something else is wrong."""


class CalibrationReporter:
    """Everything a user sees of a Calibration."""

    def __init__(self, client: Client, recorder: Recorder, clock: Clock) -> None:
        self._client, self._recorder, self._clock = client, recorder, clock
        self._log = structlog.get_logger("crossover.calibration")

    async def progress(
        self, key: Key, kept: Kept, spec: CalibrationSpec, run: Run, told: Told, plan: SweepPlan, ask: Ask | None = None
    ) -> None:
        """Under way. ``progress`` names what is measured now, so that `kubectl get cal -w` moves."""
        wanted = max(estimate_points(plan), len(run.points))
        text = f"{len(run.points)}/~{wanted} points{_minutes_left(run, wanted, self._clock.now())}"
        if ask is not None:
            text += f", {ask.variant.shown} at {ask.running_requests}"
        else:
            text += f", {told.message}"
        await self._report(key, kept, run, told, _while_running(run), {"progress": text[:LINE]})

    async def told(self, key: Key, kept: Kept, told: Told, run: Run | None) -> None:
        """Not under way, and not finished either."""
        more = {"progress": f"{len(run.points) if run else 0} points"}
        await self._report(key, kept, run, told, _while_running(run), more)

    async def finished(
        self, key: Key, kept: Kept, spec: CalibrationSpec, run: Run | None, reason: Why, why: str = ""
    ) -> Told:
        """Every point is there: what they say. ``run`` None = points given by hand."""
        points = (*run.points, *run.interpolated) if run is not None else points_of(spec, kept.status)
        milliseconds = spec.time_per_output_token_milliseconds
        try:
            result = summarise(
                points,
                capability=run.capability if run is not None else None,
                limits=run.limits if run is not None else None,
                tpot_seconds=None if milliseconds is None else milliseconds / 1000,
                source=f"calibration {key[1]}",
            )
        except ProfileError as error:
            message = "; ".join(part for part in (f"the points make no curve: {error}", _losses(run)) if part)
            told = _useless(run, message)
            await self._report(key, kept, run, told, _while_running(run), {})
            return told
        shown = _shown(result)
        message = "; ".join(part for part in (result.verdict, why, _losses(run)) if part)
        told = Told.done(reason, message) if result.crossovers else _useless(run, message)
        more = {**shown, "progress": f"{len(points)} points"}
        if run is not None and told.ready == TRUE:
            run.previous = None
        await self._report(key, kept, run, told, STILL_TRUE if run is not None else NOT_MEASURED, more)
        return told

    async def back(self, key: Key, kept: Kept, previous: Mapping[str, Any]) -> None:
        """The target is what it was when the previous result was measured: that is the result again."""
        told = Told.done(Why.COMPLETE, str(previous.get("verdict", "")))
        more = {"observedGeneration": kept.generation, "progress": f"{len(previous.get('points') or [])} points"}
        await self._write(key, kept, told, STILL_TRUE, {**previous, **more})

    async def staleness(self, key: Key, kept: Kept, staleness: Staleness) -> None:
        """Only the condition Stale moves."""
        before = next((item for item in kept.status.get("conditions") or [] if item["type"] == "Ready"), None)
        if before is None:
            return
        told = Told(before["status"], "False", _status_of(kept.status, "Failed"), before["reason"], before["message"])
        await self._write(key, kept, told, staleness, {k: v for k, v in kept.status.items() if k != "conditions"})

    # -- the status ---------------------------------------------------------------------------------------------------

    async def _report(
        self, key: Key, kept: Kept, run: Run | None, told: Told, staleness: Staleness, more: Mapping[str, Any]
    ) -> None:
        body: dict[str, Any] = {"observedGeneration": kept.generation, **more}
        if run is not None:
            body["startedAt"] = timestamp(run.started_at_seconds)
            if run.finished_at_seconds is not None:
                body["finishedAt"] = timestamp(run.finished_at_seconds)
            body["points"] = [
                PointSpec.of_point(point).model_dump(by_alias=True, exclude_none=True)
                for point in (*run.points, *run.interpolated)
            ]
            body |= run.to_status()
            if run.caveats:
                body["caveats"] = [line[:LINE] for line in run.caveats]
        elif told.reason != Why.GIVEN:
            body = {name: kept.status[name] for name in MEASURED if name in kept.status} | body
        await self._write(key, kept, told, staleness, body)

    async def again(self, key: Key, kept: Kept) -> bool:
        """Write what could not be written. False = it still cannot."""
        if kept.unwritten is not None:
            await self._write(key, kept, *kept.unwritten)
        return kept.unwritten is None

    async def _write(self, key: Key, kept: Kept, told: Told, staleness: Staleness, body: Mapping[str, Any]) -> None:
        previous = kept.status.get("conditions") or []
        status = {
            **body,
            "conditions": conditions(told, staleness, previous, self._clock.now(), kept.generation),
        }
        kept.unwritten = None
        if not worth_writing(kept.status, status):
            return
        namespace, name = key
        document = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Calibration",
            "metadata": {"name": name, "namespace": namespace, "uid": kept.meta["uid"]},
            "status": status,
        }
        try:
            await self._client.request(
                "PATCH",
                f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/calibrations/{name}/status",
                document,
                params={"fieldManager": MANAGER, "force": "true"},
                content_type=APPLY_PATCH,
            )
        except NotFound:
            return
        except ClusterError as error:
            self._log.warning("status not written", namespace=namespace, name=name, fault=error.code)
            kept.unwritten = (told, staleness, body)
            return
        kept.status = status
        regarding = Regarding(f"{GROUP}/{VERSION}", "Calibration", namespace, name, str(kept.meta["uid"]))
        for event in events(told, staleness, previous):
            self._log.info("told", namespace=namespace, name=name, reason=event.reason, what=event.note)
            await self._recorder.record(regarding, event)


def _shown(result: CalibrationResult) -> dict[str, Any]:
    """What the points say, in lines."""
    rendered = result.rendered
    text = rendered.content if isinstance(rendered, ConfigFile) else (rendered or result.refusal)
    shown: dict[str, Any] = {
        "verdict": result.verdict[:MESSAGE],
        "schedule": describe(result.schedule)[:LINE] if result.schedule else None,
        "rendered": text[:16384] if text else None,
        "crossovers": [
            f"{i.variant.shown} against {i.against.shown}: {i.shown}"[:LINE] for i in result.crossovers[:32]
        ],
        "capacity": [
            f"{item.variant.shown}: {item.tokens_per_second:.0f} tok/s at {item.running_requests:.0f} running requests"
            + (" (extrapolated)" if item.extrapolated else "")
            if item.tokens_per_second
            else f"{item.variant.shown}: no batch meets the target"
            for item in result.capacities[:16]
        ],
        "crossover": result.crossovers[-1].shown[:128] if result.crossovers else None,
    }
    return {name: value for name, value in shown.items() if value}


def _minutes_left(run: Run, wanted: int, now_seconds: float) -> str:
    """At the pace so far, start-up of the pods included; nothing before there is a pace."""
    if not run.points or len(run.points) >= wanted:
        return ""
    minutes = (now_seconds - run.started_at_seconds) / len(run.points) * (wanted - len(run.points)) / 60
    return f", about {max(1, round(minutes))} min left"


def _losses(run: Run | None) -> str:
    return run.losses if run is not None else ""


def _useless(run: Run | None, message: str) -> Told:
    """Points that give no answer. What could not be had, or measured, is the better reason."""
    if run is None:
        return Told.failure(Why.UNUSABLE, message)
    lost = next(iter(run.lost.values()), None)
    if lost is not None:
        return Told.failure(lost.reason, message)
    failed = run.failed_load
    return (
        Told.failure(failed.reason, f"{message}; {failed.message}") if failed else Told.failure(Why.UNUSABLE, message)
    )


def _while_running(run: Run | None) -> Staleness:
    return MEASURED_BEFORE if run is not None and run.previous is not None else NOT_MEASURED


def _status_of(status: Mapping[str, Any], kind: str) -> str:
    return next((item["status"] for item in status.get("conditions") or [] if item["type"] == kind), "False")
