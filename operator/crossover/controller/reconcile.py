"""One tick of one fleet: observe, decide, act, report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import ValidationError

from crossover.act.rollout import Rollout, RolloutState
from crossover.api.decision import Decision, DecisionReason
from crossover.api.faults import ClusterError
from crossover.api.fleet import EngineType, FleetSnapshot, PodFacts
from crossover.api.intent import Intent, Mode, careful
from crossover.api.invalid import explain
from crossover.api.resources import ModelAutoscalerSpec
from crossover.calibrate.environment import Environment
from crossover.cluster.conflicts import holder
from crossover.cluster.pods import PodCache
from crossover.controller.calibration.environment import changed, environment_of
from crossover.controller.calibration.store import Calibrations
from crossover.controller.fleets import Fleet, Fleets, target_ref
from crossover.controller.hands import Hands, Plan, plan_patches, rollout_line, what_failed, what_was_done
from crossover.controller.machine import Machines
from crossover.controller.reporter import Reporter
from crossover.controller.target import Found, TargetFinder
from crossover.controller.ticker import Clock, FleetKey
from crossover.decide import plan, with_changes
from crossover.observe.fleet import assemble
from crossover.observe.observer import Observer, Target
from crossover.report import texts
from crossover.report.facts import Done, Problem, TickFacts
from crossover.report.texts import ConditionType, Reason

TICK_LIMIT_SECONDS = 60.0
INVALID_SECONDS = 60.0
SYNC_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tick works with."""

    fleets: Fleets
    pods: PodCache
    finder: TargetFinder
    observer: Observer
    hands: Hands
    reporter: Reporter
    calibrations: Calibrations
    machines: Machines
    clock: Clock


class Reconciler:
    """`tick` is what the `Ticker` runs. ``leading`` is asked before every tick and before every write."""

    def __init__(self, parts: Parts, leading: Any) -> None:
        self._parts, self._leading = parts, leading
        self._log = structlog.get_logger("crossover.reconcile")

    async def tick(self, key: FleetKey) -> float | None:
        """Seconds until the next one; None = the fleet is gone."""
        fleet = self._parts.fleets.get(key)
        if fleet is None:
            self._parts.observer.forget("/".join(key))
            await self._parts.pods.release(key)
            gone = self._parts.fleets.gone.pop(key, None)
            if gone is not None and self._leading():
                await self._parts.hands.let_go(gone)
            return None
        if not self._leading():
            return 1.0
        async with asyncio.timeout(TICK_LIMIT_SECONDS):
            return await self._tick(key, fleet)

    async def _tick(self, key: FleetKey, fleet: Fleet) -> float:
        try:
            spec = ModelAutoscalerSpec.model_validate(fleet.body["spec"])
        except ValidationError as error:
            await self._parts.reporter.report(key, fleet, self._invalid(fleet, error))
            return INVALID_SECONDS
        watch = self._parts.pods.use(key, key[0])
        if not watch.synced and watch.fault is None:
            return SYNC_SECONDS
        facts = self._facts(fleet, spec)
        if not watch.synced:
            blind = Problem(
                ConditionType.METRICS_AVAILABLE,
                Reason.CLUSTER_UNREACHABLE,
                texts.pods_unwatched(key[0], str(watch.fault)),
                transient=True,
            )
            await self._parts.reporter.report(key, fleet, replace(facts, problems=(blind,)))
            return float(spec.metrics.interval_seconds)
        claimed = self._claimed(key, fleet)
        if claimed is not None:
            await self._parts.reporter.report(key, fleet, replace(facts, problems=(claimed,)))
            return float(spec.metrics.interval_seconds)
        facts = await self._observe_and_act(key, fleet, spec, facts)
        await self._parts.reporter.report(key, fleet, facts)
        return float(spec.metrics.interval_seconds)

    async def _observe_and_act(
        self, key: FleetKey, fleet: Fleet, spec: ModelAutoscalerSpec, facts: TickFacts
    ) -> TickFacts:
        # observe
        found = await self._parts.finder.find(key[0], fleet, target_ref(fleet.body), spec, facts.at_seconds)
        facts = replace(facts, problems=(*facts.problems, *found.problems))
        if found.workload is None:
            return facts
        pods = self._parts.pods.select(key[0], found.workload.selector)
        facts = await self._observe(key, fleet, spec, facts, found, pods)
        facts = await self._calibrate(key, fleet, spec, facts, found, pods)
        if facts.mode is Mode.PAUSED:
            return facts
        # decide
        facts, decision = self._decide(fleet, facts)
        if facts.mode is not Mode.ACTIVE:
            return facts
        # act, on a target as fresh as the decision
        try:
            startup = facts.snapshot.startup_seconds if facts.snapshot is not None else None
            rollout = await self._parts.hands.rollout(found.workload, pods, facts.at_seconds, startup)
        except ClusterError:
            rollout = None
        facts = self._follow_rollout(fleet, facts, rollout)
        moves = decision.changes_something or (rollout is not None and rollout.state is RolloutState.STUCK)
        if moves and not found.fresh:
            fleet.touch()
            found = await self._parts.finder.find(key[0], fleet, target_ref(fleet.body), spec, facts.at_seconds)
            if found.workload is None:
                return replace(facts, problems=(*facts.problems, *found.problems))
            facts = await self._observe(key, fleet, spec, facts, found, pods, scrape=False)
            facts, decision = self._decide(fleet, facts)
        return await self._act(key, fleet, facts, found, decision, rollout)

    async def _observe(
        self,
        key: FleetKey,
        fleet: Fleet,
        spec: ModelAutoscalerSpec,
        facts: TickFacts,
        found: Found,
        pods: tuple[PodFacts, ...],
        *,
        scrape: bool = True,
    ) -> TickFacts:
        workload = found.workload
        assert workload is not None
        if scrape:
            target = Target(spec.engine.type or fleet.engine, spec.engine.port, found.container, found.files)
            seen = await self._parts.observer.look("/".join(key), target, pods, facts.at_seconds)
        else:
            assert facts.snapshot is not None
            seen = facts.snapshot.pods
        snapshot = assemble(
            seen,
            at_seconds=facts.at_seconds,
            desired_replicas=workload.desired_replicas,
            stale_after_seconds=spec.metrics.stale_after_seconds,
            rollout_in_progress=workload.rollout_in_progress,
            settings=found.settings,
        )
        engine, version = _engine(snapshot)
        fleet.engine = engine or fleet.engine
        problems = facts.problems if not scrape else (*facts.problems, *_no_pods(fleet, snapshot, facts, found))
        return replace(
            facts,
            snapshot=snapshot,
            target=str(workload.ref),
            selector=workload.selector,
            engine=engine or fleet.engine or spec.engine.type,
            engine_version=version,
            problems=problems,
        )

    async def _calibrate(
        self,
        key: FleetKey,
        fleet: Fleet,
        spec: ModelAutoscalerSpec,
        facts: TickFacts,
        found: Found,
        pods: tuple[PodFacts, ...],
    ) -> TickFacts:
        """The profile to go by. Without one nothing is changed; with one of another machine nothing shrinks."""
        ref = spec.speculation.calibration_ref if spec.speculation is not None else None
        fleet.profile = None
        if ref is None:
            fleet.passive.forget()
            return facts
        resolved = self._parts.calibrations.resolve(key[0], ref.name)
        if resolved.profile is None:
            problem = Problem(ConditionType.CALIBRATED, resolved.reason, resolved.message)
            return replace(facts, problems=(*facts.problems, problem))
        fleet.profile = resolved.profile
        facts = replace(facts, calibrated=True, calibration=ref.name)
        what = await self._what_changed(resolved.environment, facts, found, pods)
        if not what:
            assert facts.snapshot is not None
            due = fleet.passive.look(resolved, facts.snapshot, fleet.memory)
            if due is not None:  # in a thread: other fleets go on meanwhile
                fleet.passive.take(due, await asyncio.to_thread(due.make))
            fleet.profile = fleet.passive.in_use
            return facts
        fleet.passive.forget()
        assert facts.intent is not None
        stale = Problem(ConditionType.CALIBRATED, Reason.CALIBRATION_STALE, texts.calibration_stale(ref.name, what))
        return replace(facts, intent=careful(facts.intent), problems=(*facts.problems, stale))

    async def _what_changed(
        self, measured: Environment | None, facts: TickFacts, found: Found, pods: tuple[PodFacts, ...]
    ) -> str:
        engine = facts.engine
        if measured is None or engine is None or found.workload is None or found.container is None:
            return ""
        now = environment_of(found.workload, found.container, found.files, engine, facts.engine_version)
        return changed(measured, now, await self._parts.machines.of_pods(pods, str(found.container["name"])))

    def _decide(self, fleet: Fleet, facts: TickFacts) -> tuple[TickFacts, Decision]:
        assert facts.snapshot is not None
        assert facts.intent is not None
        decision = plan(facts.snapshot, facts.intent, fleet.passive.lend(fleet.memory), fleet.profile)
        decision = fleet.passive.take_back(decision, fleet.memory, facts.intent)
        return replace(facts, decision=decision), decision

    def _follow_rollout(self, fleet: Fleet, facts: TickFacts, rollout: Rollout | None) -> TickFacts:
        """A rollout that ended is news; what the engine's own schedule did too."""
        done = list(facts.done)
        if fleet.rolling and rollout is None:
            fleet.tidy = True
            done.append(Done("rollout", "rollout complete", "every pod has the new settings", Reason.ROLLOUT_COMPLETE))
        fleet.rolling = rollout is not None
        decision = facts.decision
        now = decision.draft.current if decision is not None else None
        if decision is not None and now is not None and rollout is None:
            by_engine = decision.draft.reason is DecisionReason.ENGINE_FOLLOWS_SCHEDULE
            if by_engine and fleet.draft_seen is not None and fleet.draft_seen != now:
                summary = f"draft {fleet.draft_seen} -> {now} by the engine"
                done.append(Done("draft", summary, decision.draft.message, Reason.DRAFT_LENGTH_CHANGED))
            fleet.draft_seen = now
        return replace(facts, done=tuple(done), rollout=rollout_line(rollout))

    async def _act(
        self,
        key: FleetKey,
        fleet: Fleet,
        facts: TickFacts,
        found: Found,
        decision: Decision,
        rollout: Rollout | None,
    ) -> TickFacts:
        assert facts.snapshot is not None
        assert facts.intent is not None
        assert found.workload is not None
        hands = self._parts.hands
        patches, problems = plan_patches(found, facts.snapshot, decision, facts.intent, facts.at_seconds)
        if self._leading():
            facts = await hands.keep_cap(fleet, facts)
        if rollout is not None and rollout.state is RolloutState.STUCK:
            undo = await hands.undo(found.workload, rollout, facts.at_seconds)
            patches = undo if not undo.is_empty else patches
            problems = (*problems, Problem(ConditionType.EFFECTIVE, Reason.ROLLOUT_STUCK, rollout.summary))
        facts = replace(facts, problems=(*facts.problems, *problems))
        fleet.memory = decision.memory
        if patches.is_empty:
            await hands.tidy_up(fleet, found.workload)
            return facts
        return await self._carry_out(key, fleet, facts, found, decision, patches)

    async def _carry_out(
        self, key: FleetKey, fleet: Fleet, facts: TickFacts, found: Found, decision: Decision, patches: Plan
    ) -> TickFacts:
        """Remember first, then write, then tell. Without the memory written, or without the lead, nothing is done."""
        drafted = patches.template is not None and patches.undo is None
        after = with_changes(decision.memory, decision, replicas=patches.scale is not None, draft=drafted)
        if not await self._parts.reporter.remember(key, fleet, after, facts) or not self._leading():
            return facts
        result = await self._parts.hands.carry_out(found, patches, facts.at_seconds)
        fleet.touch()
        done = what_was_done(patches, decision, result)
        kinds = {item.kind for item in done}
        fleet.memory = with_changes(
            decision.memory, decision, replicas="replicas" in kinds, draft=drafted and "speculation" in kinds
        )
        return replace(facts, done=(*facts.done, *done), problems=(*facts.problems, *what_failed(result)))

    # -- what comes before observing ------------------------------------------------------------------------------------

    def _facts(self, fleet: Fleet, spec: ModelAutoscalerSpec) -> TickFacts:
        intent: Intent = spec.to_intent()
        return TickFacts(
            at_seconds=self._parts.clock.now(),
            generation=int(fleet.body["metadata"].get("generation", 0)),
            mode=spec.mode,
            intent=intent,
            target=str(target_ref(fleet.body)),
            port=spec.engine.port,
            previous=fleet.status,
        )

    def _claimed(self, key: FleetKey, fleet: Fleet) -> Problem | None:
        """An older ModelAutoscaler keeps the target."""
        ref = target_ref(fleet.body)
        keeper = holder(self._parts.fleets.claimants(key[0]), ref)
        if keeper in (None, key[1]):
            return None
        message = texts.target_claimed(ref.kind, ref.name, str(keeper))
        return Problem(ConditionType.TARGET_RESOLVED, Reason.TARGET_CLAIMED, message)

    def _invalid(self, fleet: Fleet, error: ValidationError) -> TickFacts:
        """Only for objects that the schema let in: stored before a rule came."""
        message = "; ".join(str(item) for item in explain(error)[:3])
        return TickFacts(
            at_seconds=self._parts.clock.now(),
            generation=int(fleet.body["metadata"].get("generation", 0)),
            mode=Mode.PAUSED,
            problems=(Problem(ConditionType.READY, Reason.INVALID_SPEC, f"spec.{message}"),),
            previous=fleet.status,
        )


def _engine(snapshot: FleetSnapshot) -> tuple[EngineType | None, str | None]:
    """What the pods say they are; the newest version where they differ (a rollout of another image)."""
    told = [pod.reading for pod in snapshot.pods if pod.reading is not None and pod.reading.engine is not None]
    versions = [
        pod.capability.version for pod in snapshot.pods if pod.capability is not None and pod.capability.version
    ]
    versions += [reading.version for reading in told if reading.version]
    return (told[0].engine, max(versions) if versions else None) if told else (None, None)


def _no_pods(fleet: Fleet, snapshot: FleetSnapshot, facts: TickFacts, found: Found) -> tuple[Problem, ...]:
    """Replicas are wanted and the selector finds none, for longer than a pod needs to be created."""
    workload = found.workload
    assert workload is not None
    if snapshot.pods or not workload.desired_replicas:
        fleet.no_pods_since_seconds = None
        return ()
    if fleet.no_pods_since_seconds is None:
        fleet.no_pods_since_seconds = facts.at_seconds
    if facts.at_seconds - fleet.no_pods_since_seconds < snapshot.stale_after_seconds:
        return ()
    ref = workload.ref
    message = texts.selector_matches_nothing(ref.kind, ref.name, workload.selector, workload.desired_replicas)
    return (Problem(ConditionType.EFFECTIVE, Reason.SELECTOR_MATCHES_NOTHING, message),)
