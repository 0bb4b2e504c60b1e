"""The main job on a real API server, as the chart's ServiceAccount: one fleet watched, decided, patched, explained."""

import pytest
from tests.controller.manifests import NGRAM, autoscaler, deployment

pytestmark = pytest.mark.xdist_group("controller")


def args(space, name):
    return space.deployment(name)["spec"]["template"]["spec"]["containers"][0]["args"]


def start(space, engines, *, running=10, **more):
    script = engines.script(space.namespace, "llama")
    script.running = running
    space.plane.apply(deployment(space.namespace, "llama", **more))
    return script


def settled(space, count):
    """All pods of the newest template, ready, and nothing else."""

    def check():
        status = space.deployment("llama").get("status", {})
        keys = ("replicas", "updatedReplicas", "readyReplicas")
        return [status.get(key, 0) for key in keys] == [count] * 3

    space.plane.wait_for(check, f"{count} settled pods")


def test_a_fleet_that_can_follow_a_schedule_gets_it_once_and_the_engine_is_believed(space, engines):
    script = start(space, engines)
    space.plane.apply(autoscaler(space.namespace, "llama"))
    space.wait_condition("llama", "SpeculationManaged", "True", "EngineFollowsSchedule")
    settled(space, 2)
    assert "--speculative-adaptive" in args(space, "llama")
    generation = space.deployment("llama")["metadata"]["generation"]

    script.running, script.draft_tokens = 60, 0
    space.wait("llama", lambda s: s.get("fleet", {}).get("draftTokens") == "0", "draft length 0 seen")
    space.wait("llama", lambda s: s.get("replicas", 0) >= 3, "more replicas")
    events = {event["reason"] for event in space.events("llama")}
    assert {"SpeculationChanged", "DraftLengthChanged", "Scaled"} <= events
    assert args(space, "llama") == args(space, "llama")
    written_once = [e for e in space.events("llama") if e["reason"] == "SpeculationChanged"]
    assert len(written_once) == 1
    assert space.deployment("llama")["metadata"]["generation"] > generation


def test_a_fleet_that_cannot_is_rolled_to_no_speculation_and_back(space, engines):
    script = start(space, engines, speculation=NGRAM, replicas=2)
    before = None
    space.plane.apply(autoscaler(space.namespace, "llama", min=2, max=2))
    space.wait_condition("llama", "SpeculationManaged", "True", "ByRestart")
    before = args(space, "llama")

    script.running = 40
    space.wait("llama", lambda s: any("speculation off" in r["summary"] for r in s.get("recentDecisions", [])), "off")
    settled(space, 2)
    assert not [word for word in args(space, "llama") if "speculative" in word]

    script.running = 5
    space.wait("llama", lambda s: any("draft length 3" in r["summary"] for r in s.get("recentDecisions", [])), "on")
    settled(space, 2)
    assert "--speculative-algorithm=NGRAM" in args(space, "llama")
    assert len(args(space, "llama")) == len(before)
