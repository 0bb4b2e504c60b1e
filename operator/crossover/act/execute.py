"""Patches in, what happened out. Faults of the API are results, not exceptions: the next tick tries again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from crossover.act.config_map import ConfigMapPatch, collection
from crossover.act.scale import ScalePatch
from crossover.act.template import TemplatePatch
from crossover.api.faults import AlreadyExists, ClusterError, Conflict, NotFound
from crossover.engines.contract import Refusal


class Writer(Protocol):
    """What `cluster.writer.Writer` does. Every call raises `ClusterError`."""

    async def apply(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def create(self, path: str, body: Mapping[str, Any]) -> None: ...

    async def get(self, path: str) -> Mapping[str, Any]: ...

    async def delete(self, path: str) -> None: ...

    async def scale(self, path: str, replicas: int) -> int | None: ...


class Act(StrEnum):
    TEMPLATE = "template"
    SCALE = "scale"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done."""

    act: Act
    summary: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that was tried and not done. ``message`` is fit for a condition."""

    act: Act
    code: str
    """Class name in `api.faults` (Conflict, Forbidden, Invalid, NotFound, Unavailable), or a `Refusal.code` where the
    workload turned out to have changed."""
    message: str

    @property
    def transient(self) -> bool:
        """True where trying again without anybody doing anything can help."""
        return self.code in ("Conflict", "Unavailable", "Unauthorized")


@dataclass(frozen=True, slots=True)
class ActResult:
    done: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()

    def fault(self, act: Act) -> Fault | None:
        return next((fault for fault in self.faults if fault.act is act), None)


Cleanup = tuple[TemplatePatch, tuple[str, ...]]
"""As `template.plan_cleanup` gives it: the apply that forgets them, and the names of the ConfigMaps."""


Replan = Callable[[], Awaitable[TemplatePatch | None]]
"""Reads the workload again and plans again; may raise `ClusterError` and `Refusal`."""

CONFLICT_RETRIES = 5
"""While pods come and go, a Deployment's status is written many times a second."""


async def execute(
    writer: Writer,
    *,
    namespace: str,
    template: TemplatePatch | None = None,
    scale: ScalePatch | None = None,
    cleanup: Cleanup | None = None,
    replan: Replan | None = None,
) -> ActResult:
    """Template (its ConfigMap first), then scale, then cleanup. A fault in one does not keep the next from its chance:
    replicas that are needed do not wait for an argument list. Never raises on an API fault.

    ``replan`` is asked for a new template patch when the object was written since it was read (its controller writes
    status all the time); without it such a conflict waits for the next tick.
    ``cleanup`` is skipped when the template was written: it was planned on the object as it was before.
    """
    result = ActResult()
    if template is not None:
        step = Step(Act.TEMPLATE, template.summary, template.notes)
        result = await _try(result, step, _write_template(writer, template, replan))
    if scale is not None:
        result = await _try(result, Step(Act.SCALE, scale.summary), writer.scale(scale.path, scale.replicas))
    if cleanup is not None and template is None:
        step = Step(Act.CLEANUP, cleanup[0].summary)
        result = await _try(result, step, _clean(writer, namespace, cleanup))
    return result


async def _try(before: ActResult, step: Step, call: Awaitable[object]) -> ActResult:
    try:
        await call
    except (ClusterError, Refusal) as error:
        return replace(before, faults=(*before.faults, Fault(step.act, error.code, str(error))))
    return replace(before, done=(*before.done, step))


async def _write_template(writer: Writer, patch: TemplatePatch | None, replan: Replan | None) -> None:
    for attempt in range(CONFLICT_RETRIES + 1):
        if patch is None:  # what was wanted is there by now
            return
        if patch.config_map is not None:
            await _ensure(writer, patch.config_map)
        try:
            await writer.apply(patch.path, patch.body)
        except Conflict:
            if replan is None or attempt == CONFLICT_RETRIES:
                raise
            patch = await replan()
        else:
            return


async def _ensure(writer: Writer, wanted: ConfigMapPatch) -> None:
    """The name holds a digest of the content, so one that is there is ours, unless somebody wrote it by hand."""
    try:
        await writer.create(wanted.path, wanted.body)
    except AlreadyExists as error:
        present = await writer.get(f"{wanted.path}/{wanted.name}")
        if present.get("data") != wanted.body["data"]:
            raise AlreadyExists(
                error.verb, f"{wanted.path}/{wanted.name}", status=409, detail="holds something else: delete it"
            ) from error


async def _clean(writer: Writer, namespace: str, cleanup: Cleanup) -> None:
    patch, names = cleanup
    for name in names:
        try:
            await writer.delete(f"{collection(namespace)}/{name}")
        except NotFound:
            continue
    await writer.apply(patch.path, patch.body)
