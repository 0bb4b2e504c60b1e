"""From a ModelAutoscaler to its target in the cluster: the workload, its container, its settings, who else is there.

Everything that can be wrong with it becomes a `Problem`; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crossover.act.mark import command_digest, mark_of
from crossover.act.template import pick_container
from crossover.api.faults import ClusterError, NotFound
from crossover.api.fleet import EngineType, SpeculationSettings
from crossover.api.resources import ModelAutoscalerSpec
from crossover.api.workload import Rival, TargetRef, Workload
from crossover.cluster.conflicts import Rivals
from crossover.cluster.kinds import KindError, NoScale
from crossover.cluster.workload import Workloads
from crossover.controller.fleets import Fleet
from crossover.engines import ENGINES
from crossover.engines.contract import Engine, Refusal
from crossover.report import texts
from crossover.report.facts import Problem
from crossover.report.texts import ConditionType, Reason

REFRESH_SECONDS = 15.0
"""How long one look at the target is good for while nothing is known to have changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """What stands behind `spec.scaleTargetRef`. ``workload`` None = nothing can be decided; ``problems`` say why."""

    workload: Workload | None = None
    fresh: bool = False
    """Read in this tick."""
    container: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    settings: SpeculationSettings | None = None
    rivals: tuple[Rival, ...] = ()
    problems: tuple[Problem, ...] = ()


class TargetFinder:
    """Reads targets through the API, as seldom as possible."""

    def __init__(self, workloads: Workloads, rivals: Rivals) -> None:
        self._workloads, self._rivals = workloads, rivals

    async def find(
        self, namespace: str, fleet: Fleet, ref: TargetRef, spec: ModelAutoscalerSpec, now_seconds: float
    ) -> Found:
        """The target now, from memory where that is young enough."""
        fresh = now_seconds - fleet.workload_at_seconds >= REFRESH_SECONDS or fleet.workload is None
        try:
            if fresh or fleet.workload is None:
                fleet.workload = await self._workloads.read(namespace, ref)
                fleet.workload_at_seconds = now_seconds
            rivals = await self._rivals.on(namespace, ref)
        except (ClusterError, KindError) as error:
            fleet.workload = None
            return Found(problems=(_unresolved(error, ref),))
        found = Found(fleet.workload, fresh, rivals=rivals, problems=_foreign(rivals, spec))
        return await self._with_settings(found, fleet, spec)

    async def _with_settings(self, found: Found, fleet: Fleet, spec: ModelAutoscalerSpec) -> Found:
        """The container and what its arguments ask for, when speculation is managed."""
        workload = found.workload
        if workload is None or workload.template is None:
            return found if spec.speculation is None else _refused(found, _no_template(workload))
        engine = ENGINES[spec.engine.type or fleet.engine or EngineType.SGLANG]
        try:
            container = pick_container(workload.template, spec.engine.container, spec.engine.port)
        except Refusal as refusal:
            return _refused(found, refusal)
        found = replace(found, container=container)
        try:
            files = await self._workloads.files(workload, str(container["name"]))
            settings = read_settings(engine, workload, container, files)
        except Refusal as refusal:
            return found if spec.speculation is None else _refused(found, refusal)
        except ClusterError as error:
            problem = Problem(ConditionType.SPECULATION_MANAGED, error.code, str(error), transient=True)
            return replace(found, problems=(*found.problems, problem))
        return replace(found, files=files, settings=settings)


def read_settings(
    engine: Engine, workload: Workload, container: Mapping[str, Any], files: Mapping[str, str]
) -> SpeculationSettings:
    """What the template asks for. A schedule that is as we wrote it counts as the one that was wanted: its rendered
    form may differ (keys move to CUDA-graph sizes)."""
    settings = engine.read_settings(container, files)
    mark = mark_of(workload.template or {})
    ours = mark is not None and mark.container == container["name"] and mark.digest == command_digest(container)
    if mark is not None and ours and mark.wanted.schedule and settings.schedule:
        return replace(settings, schedule=mark.wanted.schedule)
    return settings


def _refused(found: Found, refusal: Refusal) -> Found:
    problem = Problem(ConditionType.SPECULATION_MANAGED, refusal.code, str(refusal))
    return replace(found, problems=(*found.problems, problem))


def _no_template(workload: Workload | None) -> Refusal:
    kind = workload.ref.kind if workload is not None else "target"
    return Refusal(
        "NoPodTemplate",
        f"a {kind} keeps no pod template in spec.template.",
        field="spec.scaleTargetRef.kind",
        fix="Leave spec.speculation out, or name the Deployment or StatefulSet.",
    )


def _unresolved(error: ClusterError | KindError, ref: TargetRef) -> Problem:
    if isinstance(error, NotFound):
        message = texts.target_not_found(ref.kind, ref.name)
        return Problem(ConditionType.TARGET_RESOLVED, Reason.TARGET_NOT_FOUND, message)
    if isinstance(error, NoScale):
        message = texts.no_scale_subresource(ref.kind)
        return Problem(ConditionType.TARGET_RESOLVED, Reason.NO_SCALE_SUBRESOURCE, message)
    if isinstance(error, KindError):
        message = f"{error}: correct spec.scaleTargetRef or install its CustomResourceDefinition"
        return Problem(ConditionType.TARGET_RESOLVED, Reason.TARGET_NOT_FOUND, message)
    transient = error.code in ("Unavailable", "Unauthorized", "Conflict", "Gone")
    message = f"{ref} cannot be read: {error}; the fleet stays as it is"
    return Problem(ConditionType.TARGET_RESOLVED, Reason.TARGET_UNREADABLE, message, transient=transient)


def _foreign(rivals: tuple[Rival, ...], spec: ModelAutoscalerSpec) -> tuple[Problem, ...]:
    if spec.replicas.target_running_requests is None:
        return ()
    return tuple(
        Problem(
            ConditionType.SCALING_ACTIVE,
            Reason.FOREIGN_AUTOSCALER,
            texts.foreign_autoscaler(rival.kind, rival.name),
        )
        for rival in rivals
    )
