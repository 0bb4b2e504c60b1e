"""One tick of one Calibration: the next step towards its points, whatever was done before.

Level-triggered: what is there (pods, points in status) decides, so any process may go on where another one stopped. A tick
measures one point at most; it is stopped when the object goes or its spec changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import ValidationError

from crossover.api.faults import ClusterError, Forbidden, Invalid, NotFound
from crossover.api.invalid import explain
from crossover.api.resources import CalibrationSpec, WhenStale
from crossover.calibrate.contract import Ask, Done, DoneReason, SweepPlan
from crossover.calibrate.environment import Environment
from crossover.calibrate.sweep import next_ask
from crossover.cluster.kinds import KindError
from crossover.cluster.workload import Workloads
from crossover.controller.calibration.environment import (
    changed,
    environment_of,
    from_status,
    template_digest,
)
from crossover.controller.calibration.measuring import Failed, Measuring
from crossover.controller.calibration.planning import asked_first, plan_of
from crossover.controller.calibration.pods import PodState, ScratchPod, ScratchPods
from crossover.controller.calibration.reporter import CalibrationReporter
from crossover.controller.calibration.run import Lost, Run, again, restore, variant_of
from crossover.controller.calibration.store import Calibrations, Kept, Key
from crossover.controller.calibration.subject import Subject, find_subject
from crossover.controller.machine import Machines
from crossover.controller.ticker import Clock
from crossover.decide.variant import Variant
from crossover.engines.contract import Refusal
from crossover.report.calibration import STILL_TRUE, Staleness, Told, Why
from crossover.report.conditions import TRUE, UNKNOWN

AGAIN_SECONDS = 2.0
WAIT_SECONDS = 30.0
IDLE_SECONDS = 60.0
MOST_CRASHES = 2
"""Pods of a variant that may end by themselves before it is given up."""


@dataclass(frozen=True, slots=True)
class CalibrationParts:
    """What a tick works with."""

    calibrations: Calibrations
    workloads: Workloads
    pods: ScratchPods
    measuring: Measuring
    reporter: CalibrationReporter
    machines: Machines
    clock: Clock


class CalibrationReconciler:
    """`tick` is what a `Ticker` runs. ``leading`` is asked before every tick."""

    def __init__(self, parts: CalibrationParts, leading: Callable[[], bool]) -> None:
        self._parts, self._leading = parts, leading
        self._uids: dict[Key, str] = {}
        self._log = structlog.get_logger("crossover.calibration")

    async def tick(self, key: Key) -> float | None:
        """Seconds until the next one; None = the Calibration is gone."""
        kept = self._parts.calibrations.get(key)
        if not self._leading():
            return 1.0 if kept is not None else None
        if kept is None:
            await self._parts.machines.release(_user(key))
            if key in self._uids:
                await self._clear(key[0], self._uids[key])
                del self._uids[key]
            return None
        uid = str(kept.meta["uid"])
        if self._uids.get(key, uid) != uid:  # deleted and created again between two ticks
            await self._clear(key[0], self._uids[key])
        self._uids[key] = uid
        if not await self._parts.reporter.again(key, kept):
            return AGAIN_SECONDS
        seconds = await self._guarded(key, kept)
        return AGAIN_SECONDS if kept.unwritten is not None else seconds

    async def _guarded(self, key: Key, kept: Kept) -> float:
        """What a fault of the cluster or a refusal means."""
        kept.changed.clear()
        try:
            return await self._tick(key, kept)
        except (Refusal, ClusterError, KindError) as fault:
            if isinstance(kept.run, Run) and kept.run.finished_at_seconds is not None:
                # What was measured stays true of what it was measured on, whatever became of the target.
                unknown = Staleness(UNKNOWN, Why.TARGET_UNREADABLE, str(fault))
                await self._parts.reporter.staleness(key, kept, unknown)
                return WAIT_SECONDS
            if isinstance(fault, Refusal):
                return await self._fail(key, kept, fault.code, str(fault))
            if isinstance(fault, Invalid):
                message = f"the API server refuses the pod that the template makes: {fault}"
                return await self._fail(key, kept, Why.REJECTED, message)
            if isinstance(fault, NotFound):
                await self._clear(key[0], self._uids[key])
            return await self._wait(key, kept, _waiting(fault))

    async def _tick(self, key: Key, kept: Kept) -> float:
        try:
            spec = CalibrationSpec.model_validate(kept.body["spec"])
        except ValidationError as error:
            text = "; ".join(str(item) for item in explain(error)[:3])
            return await self._wait(key, kept, Told.stopped(Why.INVALID_SPEC, f"spec.{text}"))
        if spec.points is not None:
            await self._clear(key[0], self._uids[key])
            await self._parts.reporter.finished(key, kept, spec, None, Why.GIVEN)
            return IDLE_SECONDS * 60
        run = self._run(kept, spec)
        if spec.suspend:
            await self._clear(key[0], self._uids[key])
            message = f"suspended with {len(run.points)} points; set spec.suspend to false to go on"
            return await self._wait(key, kept, Told.stopped(Why.SUSPENDED, message))
        subject = await find_subject(self._parts.workloads, key[0], spec)
        now = environment_of(subject.workload, subject.container, subject.files, subject.engine)
        if run.finished_at_seconds is not None and run.failure is None:
            return await self._watch(key, kept, run, spec, subject, now)
        if run.previous is not None and self._is_as_before(run, run.previous, now):
            return await self._back(key, kept, spec, run.previous)
        if self._is_another(key, run, subject, now):
            kept.run = run = again(spec, kept.status, kept.generation, self._parts.clock.now())
            await self._clear(key[0], self._uids[key])
        if run.failure is not None:
            return IDLE_SECONDS
        if not run.points:  # nothing of it is measured yet: it may as well begin with the target as it is now
            run.template = template_digest(subject.workload)
            run.environment = None if run.environment is not None and changed(run.environment, now) else run.environment
        run.environment, run.template = run.environment or now, run.template or template_digest(subject.workload)
        return await self._step(key, kept, run, spec, subject)

    def _is_another(self, key: Key, run: Run, subject: Subject, now: Environment) -> bool:
        """The target is not what this run began with: its points are of another machine, its failure may be mended."""
        if run.failure is not None:
            return run.template not in (None, template_digest(subject.workload))
        what = changed(run.environment, now) if run.environment is not None and run.points else ""
        if what:
            self._log.info("starting over", namespace=key[0], name=key[1], changed=what)
        return bool(what)

    def _run(self, kept: Kept, spec: CalibrationSpec) -> Run:
        if not isinstance(kept.run, Run) or kept.run.generation != kept.generation:
            kept.run = restore(spec, kept.status, kept.generation, self._parts.clock.now())
        return kept.run

    # -- one step -----------------------------------------------------------------------------------------------------

    async def _step(self, key: Key, kept: Kept, run: Run, spec: CalibrationSpec, subject: Subject) -> float:
        pods = await self._without_old(key, await self._parts.pods.of(key[0], self._uids[key]), subject)
        await self._crashed(key, run, pods)
        plan = plan_of(spec, subject, run)
        ready = {variant for pod in pods if pod.state is PodState.READY and (variant := variant_of(pod.variant))}
        step = self._next(run, plan, ready, spec)
        if isinstance(step, Done) and subject.forcing is not None and subject.forcing.tells_too_little(run.points):
            plan = plan_of(spec, subject, run, every_length=True)
            step = self._next(run, plan, ready, spec)
        if isinstance(step, Done):
            return await self._finish(key, kept, run, spec, subject, step)
        source = asked_first(step.variant, plan, subject, run)
        pod = await self._pod_for(key, kept, source, pods, spec, subject, run)
        if isinstance(pod, Failed):
            return await self._fail(key, kept, pod.reason, pod.message)
        if isinstance(pod, Told):
            await self._parts.reporter.progress(key, kept, spec, run, pod, plan)
            return AGAIN_SECONDS if pod.reason != Why.UNSCHEDULABLE else 2 * AGAIN_SECONDS
        if source != step.variant:
            failed = await self._parts.measuring.describe(key[0], run, spec, subject, source, pod, step)
            if failed is None and run.capability is None:
                run.lost[step.variant] = Lost(
                    Why.UNKNOWN_SERVER, "the server does not tell whether it takes a schedule"
                )
            return await self._after(key, kept, run, spec, source, pod, failed)
        text = f"{step.variant.shown} at {step.running_requests} running requests"
        await self._parts.reporter.progress(key, kept, spec, run, Told.running_now(Why.MEASURING, text), plan, step)
        return await self._measure(key, kept, run, spec, subject, step, pod)

    async def _without_old(self, key: Key, pods: tuple[ScratchPod, ...], subject: Subject) -> tuple[ScratchPod, ...]:
        """Pods of a template or a container that is no more are removed, and stay listed as going."""
        old = tuple(pod for pod in pods if pod.template not in (None, subject.digest))
        await self._parts.pods.remove(key[0], old)
        return tuple(replace(pod, state=PodState.GOING) if pod in old else pod for pod in pods)

    def _next(self, run: Run, plan: SweepPlan, ready: set[Variant], spec: CalibrationSpec) -> Ask | Done:
        if self._parts.clock.now() - run.started_at_seconds > spec.timeout_minutes * 60:
            return Done(DoneReason.TIME_SPENT, f"the {spec.timeout_minutes} minutes of spec.timeoutMinutes are over")
        if not plan.variants:
            return Done(DoneReason.NOTHING_LEFT, run.losses)
        return next_ask(run.points, plan, available=ready or None, skip=set(run.skipped))

    async def _pod_for(
        self,
        key: Key,
        kept: Kept,
        variant: Variant,
        pods: tuple[ScratchPod, ...],
        spec: CalibrationSpec,
        subject: Subject,
        run: Run,
    ) -> ScratchPod | Told | Failed:
        """The pod to measure on, or what is waited for."""
        name = variant.name
        mine = next((pod for pod in pods if pod.variant == name and pod.state is not PodState.GOING), None)
        if mine is None:
            others = [pod for pod in pods if pod.variant != name or pod.state is PodState.GOING]
            if len(others) >= spec.pods:
                await self._parts.pods.remove(key[0], tuple(others[: len(others) - spec.pods + 1]))
                return Told.running_now(Why.WAITING_FOR_POD, f"a scratch pod makes room for {variant.shown}")
            return await self._create(key, kept, variant, spec, subject, run)
        if mine.state is PodState.READY:
            return mine
        late = self._late(mine, spec)
        if late is not None:
            run.lost[variant] = Lost(Why.NEVER_READY, late)
            await self._parts.pods.remove(key[0], (mine,))
            return Told.running_now(Why.NEVER_READY, late)
        if mine.state is PodState.UNSCHEDULABLE:
            message = f"scratch pod {mine.name} is not scheduled: no node has room for it; waiting"
            return Told.running_now(Why.UNSCHEDULABLE, message)
        return Told.running_now(Why.WAITING_FOR_POD, f"scratch pod {mine.name} as {variant.shown} is starting")

    def _late(self, pod: ScratchPod, spec: CalibrationSpec) -> str | None:
        """Why a pod that does not serve is not waited for any longer; None = it still is."""
        if self._parts.clock.now() - pod.created_at_seconds <= spec.startup_deadline_seconds:
            return None
        return (
            f"scratch pod {pod.name} did not serve within the {spec.startup_deadline_seconds} s of "
            "spec.startupDeadlineSeconds: look at its events and log, or allow more"
        )

    async def _create(
        self, key: Key, kept: Kept, variant: Variant, spec: CalibrationSpec, subject: Subject, run: Run
    ) -> Told | Failed:
        """A variant that this template or engine does not allow is left out; the others are still worth measuring."""
        unreadable = await self._parts.measuring.preflight(key[0], spec)
        if unreadable is not None:
            return unreadable
        try:
            await self._parts.pods.create(subject, variant, kept.meta, run.told_for(variant))
        except Refusal as refusal:
            run.lost[variant] = Lost(refusal.code, str(refusal))
            return Told.running_now(refusal.code, f"{variant.shown} is left out: {refusal}")
        return Told.running_now(Why.WAITING_FOR_POD, f"a scratch pod as {variant.shown} was created")

    async def _measure(
        self, key: Key, kept: Kept, run: Run, spec: CalibrationSpec, subject: Subject, step: Ask, pod: ScratchPod
    ) -> float:
        work = asyncio.ensure_future(self._parts.measuring.point(key[0], run, spec, subject, step, pod))
        stop = asyncio.ensure_future(kept.changed.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return 0.0
            measured = await work
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
        if not isinstance(measured, Failed):
            run.note(measured, step)
            return 0.0
        return await self._after(key, kept, run, spec, step.variant, pod, measured)

    async def _after(
        self,
        key: Key,
        kept: Kept,
        run: Run,
        spec: CalibrationSpec,
        variant: Variant,
        pod: ScratchPod,
        failed: Failed | None,
    ) -> float:
        """What follows from a failure; None = there was none."""
        if failed is None:
            return 0.0
        if failed.never_answered and (late := self._late(pod, spec)) is not None:
            run.lost[variant] = Lost(Why.NEVER_READY, late)
            await self._parts.pods.remove(key[0], (pod,))
        if failed.ends_all:
            return await self._fail(key, kept, failed.reason, failed.message, lasting=failed.lasting)
        if failed.pod_is_gone:
            await self._parts.pods.remove(key[0], (pod,))
            self._count_crash(run, variant, pod.name)
        return AGAIN_SECONDS

    async def _crashed(self, key: Key, run: Run, pods: tuple[ScratchPod, ...]) -> None:
        for pod in pods:
            variant = variant_of(pod.variant)
            if pod.state is PodState.CRASHED and variant is not None:
                await self._parts.pods.remove(key[0], (pod,))
                self._count_crash(run, variant, pod.name)

    def _count_crash(self, run: Run, variant: Variant, name: str) -> None:
        run.crashes[variant] = run.crashes.get(variant, 0) + 1
        if run.crashes[variant] >= MOST_CRASHES:
            message = (
                f"scratch pods as {variant.shown} ended by themselves {MOST_CRASHES} times, last {name}: see its log"
            )
            run.lost[variant] = Lost(Why.CRASHED, message)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _finish(
        self, key: Key, kept: Kept, run: Run, spec: CalibrationSpec, subject: Subject, done: Done
    ) -> float:
        await self._clear(key[0], self._uids[key])
        run.finished_at_seconds = self._parts.clock.now()
        if subject.forcing is not None:
            run.interpolated = list(subject.forcing.interpolated(run.points))
            run.caveat(subject.forcing.sentence(run.points))
        if run.lost and not run.points:
            lost = next(iter(run.lost.values()))
            return await self._fail(key, kept, lost.reason, run.losses, lasting=True)
        told = await self._parts.reporter.finished(key, kept, spec, run, Why.COMPLETE, done.message)
        run.failure = Lost(told.reason, told.message) if told.failed == TRUE else None
        return AGAIN_SECONDS

    async def _watch(
        self, key: Key, kept: Kept, run: Run, spec: CalibrationSpec, subject: Subject, now: Environment
    ) -> float:
        """Measured: is it still true? Measured again is only what the pod template says, because a scratch pod has just
        that: what nodes and tags say of the fleet it might not find, again and again."""
        measured = run.environment
        if spec.when_stale is WhenStale.MEASURE_AGAIN and measured is not None and (what := changed(measured, now)):
            self._log.info("measuring again", namespace=key[0], name=key[1], changed=what)
            kept.run = again(spec, kept.status, kept.generation, self._parts.clock.now())
            return 0.0
        machine = await self._parts.machines.of_fleet(
            _user(key), key[0], subject.workload.selector, str(subject.container["name"])
        )
        if machine is None:
            return AGAIN_SECONDS
        what = changed(measured, now, machine) if measured is not None else ""
        message = f"{what} changed since this was measured: set spec.whenStale to MeasureAgain, or create another one"
        stale = Staleness(TRUE, Why.STALE, message) if what else STILL_TRUE
        await self._parts.reporter.staleness(key, kept, stale)
        return IDLE_SECONDS / 2

    def _is_as_before(self, run: Run, previous: Mapping[str, Any], now: Environment) -> bool:
        if run.points and run.environment is not None and not changed(run.environment, now):
            return False  # what is measured now is the target as it is
        where = previous.get("environment") or {}
        return where.get("workload", run.asked) == run.asked and not changed(from_status(where), now)

    async def _back(self, key: Key, kept: Kept, spec: CalibrationSpec, previous: Mapping[str, Any]) -> float:
        """The change was taken back before the new target was measured: the result of before is the result again, or, for
        a spec that asks for more by now, what is already measured of it."""
        await self._clear(key[0], self._uids[key])
        if previous.get("observedGeneration") == kept.generation:
            await self._parts.reporter.back(key, kept, previous)
            kept.run = restore(spec, kept.status, kept.generation, self._parts.clock.now())
        else:
            kept.run = restore(spec, previous, kept.generation, self._parts.clock.now())
            kept.run.previous = previous
        return AGAIN_SECONDS

    async def _fail(self, key: Key, kept: Kept, reason: str, message: str, *, lasting: bool = False) -> float:
        """The user has to change something: the pods go, the points stay. ``lasting``: what would have to be tried again
        costs accelerators, so it is not, until the spec or the pod template is another."""
        await self._clear(key[0], self._uids[key])
        run = kept.run if isinstance(kept.run, Run) else None
        if lasting and run is not None:
            run.finished_at_seconds = run.finished_at_seconds or self._parts.clock.now()
            run.failure = Lost(reason, message)
        await self._parts.reporter.told(key, kept, Told.failure(reason, message), run)
        return IDLE_SECONDS

    async def _wait(self, key: Key, kept: Kept, told: Told) -> float:
        run = kept.run if isinstance(kept.run, Run) else None
        await self._parts.reporter.told(key, kept, told, run)
        return WAIT_SECONDS

    async def _clear(self, namespace: str, uid: str) -> None:
        await self._parts.pods.remove(namespace, await self._parts.pods.of(namespace, uid))


def _user(key: Key) -> tuple[str, str, str]:
    """Of the pods of the target; a fleet of the same name is another user."""
    return ("Calibration", *key)


def _waiting(fault: ClusterError | KindError) -> Told:
    if isinstance(fault, NotFound):
        return Told.waiting(Why.TARGET_NOT_FOUND, f"{fault}; create it or correct spec.targetRef")
    if isinstance(fault, Forbidden):
        reason = Why.QUOTA if "quota" in fault.detail else Why.FORBIDDEN
        return Told.waiting(reason, f"{fault}; tried again every {WAIT_SECONDS:.0f} s")
    return Told.waiting(Why.CLUSTER, str(fault))
