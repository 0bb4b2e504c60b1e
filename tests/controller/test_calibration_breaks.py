"""A Calibration while somebody else changes things: target, template, spec, the object itself, the API server's mood."""

import pytest
from tests.controller.test_calibration_steps import KEY, World

from crossover.api.faults import Invalid, NotFound, Unavailable
from crossover.controller.calibration.pods import PodState, ScratchPod


class Busy(World):
    """Pods are of a template, of an owner, and take a while to go."""

    def __init__(self, **spec):
        self.everything, self.most_at_once, self.lingers = [], 0, False
        self.create_fault = self.write_fault = None
        super().__init__(**spec)

    async def request(self, method, path, body, **more):
        if self.write_fault is not None:
            raise self.write_fault
        await super().request(method, path, body, **more)

    def recreate(self):
        self.store.drop(self.body)
        self.body["metadata"]["uid"] = "another"
        self.store.put(self.body)

    def let_go(self):
        self.pods = [pod for pod in self.pods if pod.state is not PodState.GOING]

    class Pods(World.Pods):
        async def of(self, namespace, uid):
            return tuple(pod for pod in self.world.pods if pod.uid.startswith(uid))

        async def create(self, subject, variant, owner, told):
            world = self.world
            if world.create_fault is not None:
                raise world.create_fault
            await super().create(subject, variant, owner, told)
            pod = world.pods.pop()
            name = f"{owner['uid']}-{pod.name}"
            made = ScratchPod(name, name, *_rest(pod), template=subject.digest)
            world.pods.append(made)
            world.everything.append((made, subject.container["image"]))
            world.most_at_once = max(world.most_at_once, len(world.pods))

        async def remove(self, namespace, pods):
            self.world.pods = [
                ScratchPod(pod.name, pod.uid, pod.variant, PodState.GOING, None, pod.created_at_seconds)
                if pod.name in {item.name for item in pods}
                else pod
                for pod in self.world.pods
            ]
            if not self.world.lingers:
                self.world.let_go()


def _rest(pod):
    return pod.variant, pod.state, pod.address, pod.created_at_seconds


def container(world):
    return world.target["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("pods", [1, 2])
async def test_never_more_pods_at_a_time_than_asked_for(pods):
    """One that is still ending holds its accelerators."""
    world = Busy(pods=pods)
    for _ in range(30):
        world.lingers = True
        await world.ticks(2)
        world.let_go()
    assert world.condition("Ready")["status"] == "True"
    assert world.most_at_once == pods
    assert len(world.everything) == 2


async def test_a_template_that_changes_while_a_pod_starts_is_measured_as_it_is_then():
    """The pod of the old template would give its points under the new template's name."""
    world = Busy()
    world.never_ready = True
    await world.ticks(2)
    assert len(world.pods) == 1
    world.never_ready = False
    container(world)["image"] = "another:2"
    await world.ticks()
    assert [image == "another:2" for _, image in world.everything] == [False, True, True]
    assert world.status["environment"]["image"] == "another:2"
    assert world.condition("Stale")["status"] == "False"


async def test_a_template_that_changes_between_points_starts_over():
    world = Busy()
    while len(world.status.get("points", [])) < 1:
        await world.ticks(1)
    container(world)["image"] = "another:2"
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert {image for _, image in world.everything[-2:]} == {"another:2"}
    assert len(world.status["points"]) == 4


async def test_a_target_deleted_while_measuring_takes_the_scratch_pods_with_it():
    """They would hold accelerators for ever."""
    world = Busy()
    await world.ticks(2)
    assert world.pods
    world.api_fault = NotFound("GET", "/p", status=404)
    await world.ticks(1)
    assert world.pods == []
    assert world.condition("Ready")["reason"] == "TargetNotFound"
    kept = world.status.get("points", [])
    world.api_fault = None
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert world.status["points"][: len(kept)] == kept


async def test_a_last_status_that_could_not_be_written_is_written_later():
    world = Busy()
    while world.store.get(KEY).run is None or len(world.store.get(KEY).run.points) < 4:
        await world.ticks(1)
    world.write_fault = Unavailable("PATCH", "/status")
    await world.ticks(5)
    assert world.condition("Ready")["status"] == "False"
    world.write_fault = None
    await world.ticks(1)
    assert world.condition("Ready")["status"] == "True"
    assert world.status["finishedAt"]


async def test_a_pod_that_the_api_server_refuses_is_told_in_its_words_and_tried_again():
    world = Busy()
    world.create_fault = Invalid("POST", "/pods", status=422, reason="Invalid", detail="spec.x: Not found")
    await world.ticks(2)
    assert world.condition("Failed")["reason"] == "ScratchPodRejected"
    assert "spec.x: Not found" in world.condition("Failed")["message"]
    world.create_fault = None
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"


async def test_points_given_by_hand_in_the_middle_take_the_scratch_pods_away():
    world = Busy()
    await world.ticks(2)
    assert world.pods
    world.edit(points=[{"runningRequests": 8, "draftTokens": 0, "off": True, "stepMilliseconds": 9}])
    await world.ticks(1)
    assert world.pods == []


async def test_deleted_and_created_again_between_two_ticks_leaves_no_pod_of_the_first():
    world = Busy()
    await world.ticks(2)
    (first,) = world.pods
    world.recreate()
    await world.ticks(1)
    assert first not in world.pods


async def test_deleted_while_a_pod_is_being_created_leaves_none():
    world = Busy()
    pods = world.reconciler._parts.pods
    create = pods.create

    async def slow(*arguments):
        world.store.drop(world.body)
        await create(*arguments)

    pods.create = slow
    await world.ticks(1)
    assert world.pods
    assert await world.reconciler.tick(KEY) is None
    assert world.pods == []


async def test_a_pod_that_could_not_be_removed_is_removed_by_the_next_tick():
    world = Busy()
    await world.ticks(2)
    world.store.drop(world.body)
    pods = world.reconciler._parts.pods
    of = pods.of

    async def down(namespace, uid):
        raise Unavailable("GET", "/pods")

    pods.of = down
    with pytest.raises(Unavailable):  # the ticker logs it and comes back
        await world.reconciler.tick(KEY)
    pods.of = of
    assert await world.reconciler.tick(KEY) is None
    assert world.pods == []
