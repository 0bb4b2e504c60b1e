"""Carrying a decision out: from `Decision` to patches, and from what happened to facts for the report."""

from __future__ import annotations

from dataclasses import dataclass, replace

from crossover.act.execute import Act, ActResult, execute
from crossover.act.rollout import Rollout, RolloutState, judge
from crossover.act.scale import ScalePatch, plan_scale
from crossover.act.strategy import RolloutRules
from crossover.act.template import Edit, TemplatePatch, plan_cleanup, plan_template, plan_undo
from crossover.api.decision import Decision, Lever
from crossover.api.fleet import Capability, FleetSnapshot, PodFacts
from crossover.api.intent import Intent
from crossover.api.workload import Workload
from crossover.cluster.workload import Workloads
from crossover.cluster.writer import Writer
from crossover.controller.caps import Doors
from crossover.controller.fleets import Fleet
from crossover.controller.target import Found
from crossover.engines import ENGINES
from crossover.engines.contract import Refusal, WantedSpeculation
from crossover.report.facts import Done, Problem, TickFacts
from crossover.report.texts import ConditionType, Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """The patches of one tick. ``undo``: the template patch takes a stuck rollout back."""

    template: TemplatePatch | None = None
    scale: ScalePatch | None = None
    edit: Edit | None = None
    undo: Rollout | None = None

    @property
    def is_empty(self) -> bool:
        return self.template is None and self.scale is None


class Hands:
    """Writes to scale targets. Call only while leading and in mode Active."""

    def __init__(self, writer: Writer, workloads: Workloads, doors: Doors) -> None:
        self._writer, self._workloads, self._doors = writer, workloads, doors

    async def keep_cap(self, fleet: Fleet, facts: TickFacts) -> TickFacts:
        """The live cap on every ready pod; nothing at all where nobody asked for one."""
        assert facts.snapshot is not None
        cap = facts.decision.cap if facts.decision is not None else None
        done, problems = await fleet.caps.keep(self._doors, facts.snapshot, cap)
        return replace(facts, done=(*facts.done, *done), problems=(*facts.problems, *problems))

    async def let_go(self, fleet: Fleet) -> None:
        """Of a ModelAutoscaler that was deleted: what can be taken away without a restart."""
        await fleet.caps.release(self._doors)

    async def rollout(
        self, workload: Workload, pods: tuple[PodFacts, ...], now_seconds: float, startup_seconds: float | None
    ) -> Rollout | None:
        """The rollout that is under way; None = none."""
        if not workload.rollout_in_progress:
            return None
        revisions = await self._workloads.revisions(workload)
        return judge(workload, revisions, pods, now_seconds, startup_seconds=startup_seconds)

    async def undo(self, workload: Workload, rollout: Rollout, now_seconds: float) -> Plan:
        """What takes a stuck rollout of ours back; empty when it is not ours."""
        revisions = await self._workloads.revisions(workload)
        patch = plan_undo(workload, revisions, rollout.summary, now_seconds)
        return Plan(patch, undo=rollout if patch is not None else None)

    async def carry_out(self, found: Found, plan: Plan, now_seconds: float) -> ActResult:
        workload = found.workload
        assert workload is not None

        async def replan() -> TemplatePatch | None:
            latest = await self._workloads.read(workload.namespace, workload.ref)
            return plan_template(latest, plan.edit, now_seconds) if plan.edit is not None else None

        return await execute(
            self._writer,
            namespace=workload.namespace,
            template=plan.template,
            scale=plan.scale,
            replan=replan if plan.edit is not None else None,
        )

    async def tidy_up(self, fleet: Fleet, workload: Workload) -> None:
        """Once after a rollout: ConfigMaps that no revision names any more."""
        if not fleet.tidy or workload.rollout_in_progress:
            return
        fleet.tidy = False
        cleanup = plan_cleanup(workload, await self._workloads.revisions(workload))
        if cleanup is not None:
            await execute(self._writer, namespace=workload.namespace, cleanup=cleanup)
            fleet.touch()


def plan_patches(
    found: Found, snapshot: FleetSnapshot, decision: Decision, intent: Intent, now_seconds: float
) -> tuple[Plan, tuple[Problem, ...]]:
    """From what was decided to the smallest patches. A refusal keeps only its own part from happening."""
    workload = found.workload
    assert workload is not None
    scale = None if found.rivals else plan_scale(workload, decision.replicas)
    edit = _edit(found, snapshot, decision, intent)
    if edit is None:
        return Plan(scale=scale), ()
    try:
        template = plan_template(workload, edit, now_seconds)
    except Refusal as refusal:
        return Plan(scale=scale), (Problem(ConditionType.SPECULATION_MANAGED, refusal.code, str(refusal)),)
    return Plan(template, scale, edit), ()


def _edit(found: Found, snapshot: FleetSnapshot, decision: Decision, intent: Intent) -> Edit | None:
    draft, speculation = decision.draft, intent.speculation
    capability = _capability(snapshot)
    if draft.target is None or speculation is None or found.container is None or capability is None:
        return None
    if draft.lever is Lever.ENGINE_SCHEDULE:
        wanted = WantedSpeculation(True, schedule=draft.schedule)
    elif draft.target == 0:
        wanted = WantedSpeculation(False)
    else:
        wanted = WantedSpeculation(True, draft_tokens=speculation.max_draft_tokens)
    rules = RolloutRules(speculation.max_surge, speculation.drain_seconds, intent.replicas.min)
    return Edit(ENGINES[capability.engine], str(found.container["name"]), capability, wanted, found.files, rules)


def _capability(snapshot: FleetSnapshot) -> Capability | None:
    """What the servers say of themselves; the one that can least decides."""
    told = [pod.capability for pod in snapshot.pods if pod.capability is not None]
    return min(told, key=lambda item: item.schedule_dialect is not None) if told else None


def what_was_done(plan: Plan, decision: Decision | None, result: ActResult) -> tuple[Done, ...]:
    done = []
    for step in result.done:
        if step.act is Act.TEMPLATE and plan.undo is not None:
            done.append(Done("speculation", step.summary, plan.undo.summary, Reason.ROLLOUT_STUCK))
        elif step.act is Act.TEMPLATE and decision is not None:
            notes = "".join(f"; {note}" for note in step.notes)
            done.append(Done("speculation", step.summary, decision.draft.message + notes))
        elif step.act is Act.SCALE and decision is not None:
            done.append(Done("replicas", step.summary, decision.replicas.message))
    return tuple(done)


def what_failed(result: ActResult) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            ConditionType.EFFECTIVE,
            fault.code,
            f"{fault.act} could not be written: {fault.message}",
            transient=fault.transient,
        )
        for fault in result.faults
    )


def rollout_line(rollout: Rollout | None) -> str | None:
    return rollout.summary if rollout is not None and rollout.state is not RolloutState.NONE else None
