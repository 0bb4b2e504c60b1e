"""The steps of a Calibration against a scripted cluster: what is tried again, what is not, and what survives a restart."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from tests.controller.manifests import EAGLE, NGRAM, deployment

from crossover.api.faults import NotFound, Unavailable
from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.api.points import CalibrationPoint
from crossover.api.workload import TargetRef
from crossover.calibrate.contract import Ask, Described, FailureReason, Measured, Server
from crossover.cluster.workload import workload_facts
from crossover.controller.calibration.measuring import Failed
from crossover.controller.calibration.pods import PodState, ScratchPod
from crossover.controller.calibration.reconcile import CalibrationParts, CalibrationReconciler
from crossover.controller.calibration.reporter import CalibrationReporter
from crossover.controller.calibration.store import Calibrations
from crossover.controller.machine import NOTHING_KNOWN, Machine
from crossover.decide.step_model import PRESETS
from crossover.decide.variant import OFF, Variant

KEY = ("demo", "cal")
ADAPTIVE = Capability(
    EngineType.SGLANG, "0.5.23", "EAGLE", max_draft_tokens=3, schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE
)
MODEL = PRESETS["70b-a100-tp4"]


class Clock:
    def __init__(self):
        self.seconds = 1_800_000_000.0

    def now(self):
        return self.seconds

    async def sleep(self, seconds):
        self.seconds += seconds


class World:
    """A cluster with one Deployment, pods that are ready at once, and servers that answer as they are told."""

    def __init__(self, *, speculation=EAGLE, **spec):
        self.target = deployment("demo", "llama", speculation=speculation)
        self.target["metadata"] |= {"uid": "target", "resourceVersion": "1"}
        wanted = {"targetRef": {"name": "llama"}, "engine": {"type": "SGLang"}, "runningRequests": [2, 64], **spec}
        meta = {"namespace": "demo", "name": "cal", "uid": "cal-uid", "generation": 1}
        self.body = {"metadata": meta, "spec": wanted}
        self.clock = Clock()
        self.pods, self.created, self.status = [], [], {}
        self.api_fault = self.failure = self.unreadable = None
        self.never_ready = self.ignores_forcing = False
        self.no_points, self.loads_for_seconds = {}, 0.0
        self.events = []
        self.machine = NOTHING_KNOWN
        self.restart()

    def restart(self):
        """Another process of the operator: it knows what the API server knows."""
        self.store = Calibrations()
        self.store.put({**copy.deepcopy(self.body), "status": copy.deepcopy(self.status)})
        reporter = CalibrationReporter(self, self, self.clock)
        parts = CalibrationParts(self.store, self, self.Pods(self), self.Measuring(self), reporter, self, self.clock)
        self.reconciler = CalibrationReconciler(parts, lambda: True)

    def edit(self, **spec):
        self.body["spec"] |= spec
        self.body["metadata"]["generation"] += 1
        self.store.put(copy.deepcopy(self.body))

    async def ticks(self, count=40):
        for _ in range(count):
            self.clock.seconds += await self.reconciler.tick(KEY)

    def condition(self, kind):
        return next(item for item in self.status["conditions"] if item["type"] == kind)

    @property
    def measured(self):
        return {(point["draftTokens"], point["off"]) for point in self.status.get("points", [])}

    # -- workloads, API client, recorder

    async def read(self, namespace, ref):
        if self.api_fault is not None:
            raise self.api_fault
        return workload_facts(TargetRef("apps/v1", "Deployment", "llama"), "demo", "/path", self.target)

    async def files(self, workload, container):
        return {}

    async def request(self, method, path, body, **_):
        self.status = copy.deepcopy(body["status"])

    async def of_fleet(self, user, namespace, selector, container):
        return self.machine

    async def release(self, user):
        pass

    async def record(self, regarding, event):
        self.events.append(event.reason)

    class Pods:
        def __init__(self, world):
            self.world = world

        async def of(self, namespace, uid):
            return tuple(self.world.pods)

        async def create(self, subject, variant, owner, told):
            subject.edit(variant, told)
            world = self.world
            world.created.append(variant)
            state = PodState.STARTING if world.never_ready else PodState.READY
            name = f"pod-{len(world.created)}"
            world.pods.append(ScratchPod(name, name, variant.name, state, "127.0.0.1", world.clock.now()))

        async def remove(self, namespace, pods):
            self.world.pods = [pod for pod in self.world.pods if pod not in pods]

    class Measuring:
        def __init__(self, world):
            self.world = world

        async def preflight(self, namespace, spec):
            return self.world.unreadable

        async def describe(self, namespace, run, spec, subject, variant, pod, ask=None):
            server = Server("http://127.0.0.1:1", subject.engine, "m", variant)
            capability = ADAPTIVE if not variant.off else Capability(EngineType.SGLANG, "0.5.23", None)
            run.described[pod.uid] = Described(server, subject.engine, "m", variant, capability)

        async def point(self, namespace, run, spec, subject, ask, pod):
            if self.world.failure is not None:
                return self.world.failure
            if self.world.clock.now() - pod.created_at_seconds < self.world.loads_for_seconds:
                return Failed(FailureReason.UNREACHABLE, "connection refused", never_answered=True)
            if ask in self.world.no_points:
                run.give_up(ask, reason := FailureReason(self.world.no_points[ask]), "as told")
                return Failed(reason, "as told")
            await self.describe(namespace, run, spec, subject, ask.variant, pod)
            b, length = ask.running_requests, 1 + 0.5 * ask.variant.draft_tokens
            if subject.forcing is not None and ask.variant.draft_tokens and not self.world.ignores_forcing:
                length = subject.forcing.acceptance.length(ask.variant.draft_tokens)
            seconds = MODEL.step_seconds(b, ask.variant.draft_tokens, b * 512.0, off=ask.variant.off)
            point = CalibrationPoint(
                b, ask.variant.draft_tokens, ask.variant.off, step_seconds=seconds, acceptance_length=length
            )
            return Measured(point, 1.0, 10)


async def test_it_measures_every_way_removes_its_pods_and_says_what_it_found():
    world = World()
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert world.measured == {(3, False), (0, True)}
    assert world.pods == []
    assert "about" not in world.status["progress"]
    created = len(world.created)
    await world.ticks()
    assert len(world.created) == created


async def test_what_would_fail_on_every_pod_is_not_paid_for_twice():
    """A wrong model name costs the start of one pod, not of one a minute."""
    world = World()
    world.failure = Failed("WrongModel", "no such model", ends_all=True, lasting=True)
    await world.ticks()
    assert (world.condition("Failed")["status"], world.condition("Failed")["reason"]) == ("True", "WrongModel")
    assert len(world.created) == 1
    world.restart()
    await world.ticks()
    assert len(world.created) == 1
    assert world.pods == []


@pytest.mark.parametrize("mend", ["template", "spec"])
async def test_a_failure_is_tried_again_when_what_it_may_depend_on_has_changed(mend):
    world = World()
    world.failure = Failed("Unauthorized", "wants a token", ends_all=True, lasting=True)
    await world.ticks()
    world.failure = None
    if mend == "spec":
        world.edit(model="m")
    else:
        world.target["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Failed")["status"] == "False"


async def test_a_secret_that_cannot_be_read_costs_no_pod_and_is_asked_for_again():
    world = World()
    world.unreadable = Failed("SecretUnreadable", "grant get on it", ends_all=True)
    await world.ticks()
    assert world.condition("Failed")["reason"] == "SecretUnreadable"
    assert world.created == []
    world.unreadable = None
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"


async def test_a_pod_that_is_never_ready_is_not_tried_again_by_the_next_process():
    world = World(startupDeadlineSeconds=30)
    world.never_ready = True
    await world.ticks(100)
    assert world.condition("Failed")["reason"] == "ScratchPodNeverReady"
    created = len(world.created)
    assert created == 2
    world.restart()
    await world.ticks(20)
    assert len(world.created) == created


async def test_a_way_that_the_template_does_not_allow_is_left_out_and_the_others_are_measured():
    """NGRAM follows no schedule, so it cannot be gated."""
    world = World(speculation=NGRAM, draftTokens=[3], includeGated=True)
    world_capability = Capability(EngineType.SGLANG, "0.5.23", "NGRAM", schedule_refusal="NGRAM follows none")

    async def describe(namespace, run, spec, subject, variant, pod):
        server = Server("http://127.0.0.1:1", subject.engine, "m", variant)
        run.described[pod.uid] = Described(server, subject.engine, "m", variant, world_capability)

    world.reconciler._parts.measuring.describe = describe
    await world.ticks()
    assert world.measured == {(3, False), (0, True)}
    assert world.condition("Ready")["status"] == "True"
    assert "draft 0: " in world.condition("Ready")["message"]
    assert any(line.startswith("gated all ScheduleUnsupported") for line in world.status["skipped"])


async def test_a_pod_that_is_ready_before_its_server_is_waited_for():
    """Without a readiness probe a pod is ready as soon as its process runs."""
    world = World()
    world.loads_for_seconds = 300.0
    await world.ticks(400)
    assert world.condition("Ready")["status"] == "True"
    assert world.measured == {(3, False), (0, True)}
    assert "skipped" not in world.status


async def test_a_ready_pod_that_never_serves_is_given_up_at_the_deadline():
    world = World(startupDeadlineSeconds=60)
    world.loads_for_seconds = 1e9
    await world.ticks(100)
    assert world.condition("Failed")["reason"] == "ScratchPodNeverReady"
    assert "did not serve within the 60 s" in world.condition("Failed")["message"]
    assert world.pods == []


async def test_a_way_of_which_two_loads_give_nothing_but_failures_is_given_up():
    world = World(runningRequests=[2, 4, 8, 16, 32, 64], draftTokens=[3, 5])
    world.no_points = {Ask(Variant(5), load): "Overloaded" for load in (2, 4, 8, 16, 32, 64)}
    await world.ticks(80)
    assert world.condition("Ready")["status"] == "True"
    assert world.measured == {(3, False), (0, True)}
    assert sum("draft-5" in line for line in world.status["skipped"]) == 3, "two loads, and the way as a whole"
    assert any(line.startswith("draft-5 all Overloaded") for line in world.status["skipped"])
    created = len(world.created)
    world.restart()
    await world.ticks(5)
    assert len(world.created) == created


async def test_a_load_that_fails_after_others_were_measured_costs_only_itself():
    world = World(runningRequests=[2, 4, 8, 16, 32, 64])
    world.no_points = {Ask(Variant(3), load): "NoProgress" for load in (32, 64)}
    await world.ticks(60)
    assert [point["runningRequests"] for point in world.status["points"] if point["draftTokens"]] == [2, 4, 8, 16]
    assert world.condition("Ready")["status"] == "True"


async def test_gated_needs_a_server_that_says_so_also_after_a_restart():
    world = World(includeGated=True, runningRequests=[4, 64])
    while len(world.status.get("points", [])) < 2:
        await world.ticks(1)
    world.pods = []
    world.restart()
    await world.ticks()
    assert world.measured == {(3, False), (0, False), (0, True)}
    assert world.condition("Ready")["status"] == "True"


async def test_points_of_another_workload_are_not_mixed_with_the_new_ones():
    world = World(workload={"inputTokens": 100, "outputTokens": 50})
    await world.ticks()
    before = len(world.created)
    world.edit(maxPoints=30)
    await world.ticks()
    assert len(world.created) == before, "the points still count"
    world.edit(workload={"inputTokens": 9000, "outputTokens": 50})
    await world.ticks()
    assert len(world.created) == before + 2


@pytest.mark.parametrize("fault", [NotFound("GET", "/path", status=404), Unavailable("GET", "/path", status=503)])
async def test_what_was_measured_outlives_the_target_and_an_outage(fault):
    world = World()
    await world.ticks()
    verdict = world.status["verdict"]
    world.api_fault = fault
    await world.ticks(5)
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Stale")["status"] == "Unknown"
    world.api_fault = None
    await world.ticks(5)
    assert world.condition("Stale")["status"] == "False"
    assert world.status["verdict"] == verdict


async def test_another_image_makes_it_stale_and_a_new_draft_length_does_not():
    world = World()
    await world.ticks()
    (container,) = world.target["spec"]["template"]["spec"]["containers"]
    container["args"] = [word.replace("num-steps=3", "num-steps=2") for word in container["args"]]
    container["args"] = [word.replace("draft-tokens=4", "draft-tokens=3") for word in container["args"]]
    await world.ticks(3)
    assert world.condition("Stale")["status"] == "False"
    container["image"] = "another:1"
    await world.ticks(3)
    assert world.condition("Stale")["status"] == "True"
    assert "the image" in world.condition("Stale")["message"]
    assert world.condition("Ready")["status"] == "True"


async def test_a_calibration_that_is_done_writes_nothing_more():
    world = World()
    await world.ticks()
    written = []

    async def request(method, path, body, **_):
        written.append(path)

    world.request = request
    await world.ticks()
    assert written == []


FORCED = {"forcedAcceptance": {"byPosition": [0.8, 0.6, 0.5, 0.4, 0.3]}, "draftTokens": [1, 2, 3, 4, 5]}


async def test_with_forced_acceptance_three_lengths_are_measured_and_the_others_follow():
    world = World(runningRequests=[2, 16, 64], **FORCED)
    await world.ticks(80)
    assert world.created[0] == OFF, "any server tells the version, and this one needs no forcing"
    measured = {p["draftTokens"] for p in world.status["points"] if not p.get("interpolated")}
    assert measured == {0, 1, 3, 5}
    made = [p for p in world.status["points"] if p.get("interpolated")]
    assert {p["draftTokens"]: p["acceptanceLength"] for p in made} == {2: 2.4, 4: 3.3}
    assert any("draft 4 against off" in line and "interpolated" in line for line in world.status["crossovers"])
    assert any("draft 2, 4: interpolated between 1, 3 and 5" in line for line in world.status["caveats"])
    created, points = len(world.created), world.status["points"]
    world.restart()
    await world.ticks(10)
    assert (len(world.created), world.status["points"]) == (created, points)


async def test_a_server_that_ignores_the_forcing_is_measured_at_every_length():
    world = World(runningRequests=[2, 16, 64], **FORCED)
    world.ignores_forcing = True
    await world.ticks(120)
    assert world.measured == {(0, True), *((draft, False) for draft in range(1, 6))}
    assert not any(point.get("interpolated") for point in world.status["points"])


async def test_a_middle_length_that_cannot_be_measured_makes_the_others_be_measured():
    world = World(runningRequests=[2, 16, 64], **FORCED)
    world.no_points = {Ask(Variant(3), 64): "NoProgress"}
    await world.ticks(120)
    assert world.measured == {(0, True), *((draft, False) for draft in range(1, 6))}
    assert not any(point.get("interpolated") for point in world.status["points"])
    assert world.condition("Ready")["status"] == "True"


async def test_a_draft_longer_than_the_positions_told_is_refused_before_a_pod():
    world = World(**FORCED | {"draftTokens": [3, 6]})
    await world.ticks(5)
    assert world.condition("Failed")["reason"] == "ForcedAcceptanceTooShort"
    assert "spec.forcedAcceptance.byPosition" in world.condition("Failed")["message"]
    assert world.created == []


async def test_another_forced_acceptance_is_another_measurement():
    world = World(**FORCED | {"draftTokens": [1, 3]})
    await world.ticks(60)
    created = len(world.created)
    world.edit(forcedAcceptance={"acceptanceLength": 2.2, "draftTokens": 3})
    await world.ticks(60)
    assert len(world.created) == 2 * created
    lengths = {p["draftTokens"]: p["acceptanceLength"] for p in world.status["points"] if p["draftTokens"]}
    assert lengths[3] == pytest.approx(2.2, rel=1e-3)


async def test_a_fleet_on_another_accelerator_makes_it_stale():
    world = World()
    await world.ticks()
    run = world.store.get(KEY).run
    run.environment = replace(run.environment, gpu_product="H100")
    world.machine = Machine(frozenset({"H100"}))
    await world.ticks(3)
    assert world.condition("Stale")["status"] == "False"
    world.machine = Machine(frozenset({"H100", "H200"}))
    await world.ticks(3)
    assert world.condition("Stale")["status"] == "True"
    assert "H200" in world.condition("Stale")["message"]
