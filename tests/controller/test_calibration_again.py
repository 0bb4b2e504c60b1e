"""A calibration whose target has changed is measured again, and the result of before stays in use meanwhile."""

import copy

import pytest
from tests.controller.manifests import calibrated_autoscaler, calibration
from tests.controller.test_calibration import IMAGE, Bench, emulated
from tests.controller.test_calibration_steps import KEY, World

from crossover.calibrate.contract import FailureReason
from crossover.controller.calibration.measuring import Failed

AGAIN = {"whenStale": "MeasureAgain"}
NEWER = IMAGE.replace("0.5.23", "0.5.22")


def roll_out(world, image):
    container = world.target["spec"]["template"]["spec"]["containers"][0]
    before, container["image"] = container["image"], image
    return before


def in_use(world):
    """What fleets go by."""
    return world.store.resolve(*KEY)


async def measured(**spec):
    world = World(**spec)
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    return world


async def test_kept_by_default_whatever_is_rolled_out():
    world = await measured()
    created = len(world.created)
    roll_out(world, "sglang:other")
    await world.ticks()
    assert len(world.created) == created
    assert world.condition("Stale")["status"] == "True"
    assert "spec.whenStale" in world.condition("Stale")["message"]


async def test_measured_again_and_the_old_result_is_in_use_until_there_is_a_new_one():
    world = await measured(**AGAIN)
    created, old = len(world.created), in_use(world)
    roll_out(world, "sglang:other")
    await world.ticks(1)
    seen = 0
    while world.condition("Ready")["status"] != "True" or not seen:
        await world.ticks(1)
        if world.condition("Ready")["status"] != "True":
            seen += 1
            assert in_use(world).points == old.points
            assert in_use(world).environment == old.environment, "so a fleet knows that it is stale"
            assert world.condition("Stale")["status"] == "True"
            assert world.status["previous"]["verdict"]
    assert seen > 3
    assert len(world.created) == created + 2
    assert "previous" not in world.status
    assert in_use(world).environment.image == "sglang:other"
    assert world.condition("Stale")["status"] == "False"
    await world.ticks(20)
    assert len(world.created) == created + 2, "once"


async def test_the_next_process_goes_on_with_both():
    world = await measured(**AGAIN)
    old = in_use(world)
    roll_out(world, "sglang:other")
    while not world.status.get("previous") or len(world.status["points"]) < 2:
        await world.ticks(1)
    world.restart()
    assert in_use(world).points == old.points
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert in_use(world).environment.image == "sglang:other"


async def test_a_change_that_is_taken_back_brings_the_old_result_back_without_a_pod():
    world = await measured(**AGAIN)
    status, created = world.status, len(world.created)
    before = roll_out(world, "sglang:other")
    world.failure = Failed(FailureReason.REJECTED, "no", ends_all=True, lasting=True)
    await world.ticks(10)
    assert world.condition("Failed")["status"] == "True"
    assert in_use(world).profile is not None, "what failed takes nothing away"
    tried = len(world.created)
    assert tried == created + 1
    roll_out(world, before)
    world.failure = None
    await world.ticks(10)
    assert len(world.created) == tried
    assert world.pods == []
    kept = ("points", "verdict", "environment", "finishedAt", "schedule", "crossovers")
    assert {name: world.status.get(name) for name in kept} == {name: status.get(name) for name in kept}
    assert world.condition("Ready")["status"] == "True"
    assert "previous" not in world.status


async def test_set_on_a_stale_one_it_is_measured_again_beside_the_old_result():
    world = await measured()
    roll_out(world, "sglang:other")
    await world.ticks(5)
    world.edit(**AGAIN)
    await world.ticks(2)
    assert world.status["previous"]["points"]
    assert in_use(world).profile is not None
    await world.ticks()
    assert in_use(world).environment.image == "sglang:other"


async def test_another_workload_meanwhile_keeps_the_old_result_in_use():
    world = await measured(**AGAIN)
    old = in_use(world)
    roll_out(world, "sglang:other")
    await world.ticks(3)
    world.edit(workload={"inputTokens": 9000, "outputTokens": 50})
    await world.ticks(2)
    assert in_use(world).points == old.points
    await world.ticks()
    assert in_use(world).environment.image == "sglang:other"
    assert "previous" not in world.status


async def test_a_change_taken_back_does_not_end_what_the_spec_asks_for_by_now():
    world = await measured(**AGAIN)
    before, old = roll_out(world, "sglang:other"), in_use(world)
    await world.ticks(3)
    world.edit(draftTokens=[3, 5])
    roll_out(world, before)
    await world.ticks(3)
    assert in_use(world).points == old.points
    await world.ticks()
    assert world.condition("Ready")["status"] == "True"
    assert world.measured == {(3, False), (5, False), (0, True)}
    assert len(world.status["points"]) == 6
    assert "previous" not in world.status


async def test_what_makes_it_stale_is_told_anew_when_it_is_something_else():
    world = await measured()
    roll_out(world, "sglang:other")
    await world.ticks(5)
    assert "the image" in world.condition("Stale")["message"]
    args = world.target["spec"]["template"]["spec"]["containers"][0]["args"]
    args[0] = "--model-path=/models/another"
    await world.ticks(5)
    assert "/models/another" in world.condition("Stale")["message"]


async def test_what_only_the_nodes_say_is_told_and_not_measured_again():
    """A scratch pod might land on the same node as before, for ever."""
    world = await measured(**AGAIN)
    created = len(world.created)
    world.machine = type(world.machine)(products=frozenset({"NVIDIA-H200"}), image_digests=frozenset())
    await world.ticks()
    assert len(world.created) == created


async def test_another_draft_length_in_the_template_is_not_another_target():
    world = await measured(**AGAIN)
    created = len(world.created)
    args = world.target["spec"]["template"]["spec"]["containers"][0]["args"]
    args[args.index("--speculative-num-steps=3")] = "--speculative-num-steps=2"
    args[args.index("--speculative-num-draft-tokens=4")] = "--speculative-num-draft-tokens=3"
    await world.ticks()
    assert len(world.created) == created
    assert world.condition("Stale")["status"] == "False"


@pytest.mark.xdist_group("controller")
def test_a_rollout_of_another_image_is_measured_while_the_fleet_goes_by_the_old_result(space):
    bench = Bench(space)
    space.plane.apply(emulated(bench.namespace, replicas=1))
    space.plane.apply(calibration(bench.namespace, runningRequests=[2, 16], **AGAIN))
    bench.wait("Ready", "True", "Complete", seconds=90)
    space.plane.apply(calibrated_autoscaler(bench.namespace))
    space.wait_condition("llama", "Calibrated", "True")

    changed = copy.deepcopy(space.deployment("llama"))
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = NEWER
    kept = {key: changed[key] for key in ("apiVersion", "kind", "spec")}
    space.plane.apply(kept | {"metadata": {"name": "llama", "namespace": bench.namespace}})
    space.wait_condition("llama", "Calibrated", "False", "CalibrationStale")
    space.plane.wait_for(lambda: bench.status().get("previous"), "a new measurement beside the old result", seconds=60)
    assert space.condition("llama", "Calibrated")["reason"] == "CalibrationStale"
    space.plane.wait_for(
        lambda: bench.status()["environment"].get("image") == NEWER and not bench.status().get("previous"),
        "the new result",
        seconds=120,
    )
    space.wait_condition("llama", "Calibrated", "True")
    bench.wait_pods(0)
