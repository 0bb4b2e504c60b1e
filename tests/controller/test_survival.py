"""Restart at any moment continues where it was; an API outage and a rival operator change nothing.

These stop, kill and double the operator, so they have a control plane of their own.
"""

import pytest
from tests.api_server import ControlPlane
from tests.api_server.kubelet import Kubelet
from tests.api_server.operator import NAMESPACE, Fleets, Operator, install_chart
from tests.controller.manifests import NGRAM, autoscaler, deployment

pytestmark = pytest.mark.xdist_group("survival")


@pytest.fixture(scope="module")
def own(engines):
    with ControlPlane(audit=True) as plane, Kubelet(plane, launcher=engines):
        install_chart(plane)
        yield plane


@pytest.fixture
def world(own, engines, request, tmp_path):
    """A namespace with a settled fleet of two NGRAM pods, and an operator that may be stopped."""
    name = "s-" + request.node.name.replace("test_", "").replace("_", "-")[:40].strip("-")
    own.create_namespace(name)
    space = Fleets(own, name)
    space.script = engines.script(name, "llama")
    space.script.running = 10
    own.apply(deployment(name, "llama", speculation=NGRAM))
    settled(space)
    operator = Operator(own, tmp_path).start()
    yield space, operator
    print(operator.log[-6000:])
    operator.stop()
    own.kubectl("-n", name, "delete", "mas", "--all", "--wait=false")


def settled(space):
    def check():
        status = space.deployment("llama").get("status", {})
        return [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")] == [2, 2, 2]

    space.plane.wait_for(check, "2 settled pods")


def speculates(space):
    args = space.deployment("llama")["spec"]["template"]["spec"]["containers"][0]["args"]
    return any("speculative" in word for word in args)


def template_writes(space):
    """How often the operator has patched the Deployment."""
    return len(
        [
            event
            for event in space.plane.audit_events()
            if event["verb"] == "patch"
            and event["user"]["username"].endswith(":crossover")
            and event["requestURI"].partition("?")[0].endswith(f"{space.namespace}/deployments/llama")
            and event["responseStatus"]["code"] == 200
        ]
    )


def managed(space, **more):
    return autoscaler(space.namespace, "llama", min=2, max=2, **more)


def test_killed_in_mid_rollout_the_next_one_carries_on_and_keeps_the_dwell(world):
    space, operator = world
    wanted = managed(space)
    wanted["spec"]["speculation"]["restart"]["minDwellSeconds"] = 3600
    space.plane.apply(wanted)
    space.wait_condition("llama", "SpeculationManaged", "True", "ByRestart")
    space.script.running = 50
    space.plane.wait_for(lambda: not speculates(space), "the patch")
    operator.kill()
    changes = space.status("llama")["memory"]["changes"]
    assert [change["toValue"] for change in changes] == [0]

    space.script.running = 5
    operator.start()
    settled(space)
    space.wait(
        "llama", lambda s: s["lastDecision"]["reason"] in ("Dwelling", "BelowTarget", "WithinTolerance"), "a look"
    )
    space.wait("llama", lambda s: "dwells" in s["lastDecision"]["message"], "the dwell of the first change")
    assert not speculates(space)
    assert template_writes(space) == 1


def test_a_restart_of_a_steady_operator_changes_nothing(world):
    space, operator = world
    space.plane.apply(managed(space))
    space.wait_condition("llama", "Ready", "True")
    before = space.deployment("llama")
    operator.stop()
    operator.start()
    asked = len(space.script.asked)
    space.plane.wait_for(lambda: len(space.script.asked) > asked + 12, "a few looks by the new one")
    after = space.deployment("llama")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert space.condition("llama", "Ready")["status"] == "True"


def test_an_api_outage_is_survived_and_the_fleet_stays_as_it_was(world):
    """Longer than the lease can be kept: the operator stops itself and its Deployment starts it again."""
    space, operator = world
    space.plane.apply(managed(space))
    space.wait_condition("llama", "Ready", "True")
    before = space.deployment("llama")["spec"]
    space.plane.stop_api_server()
    space.plane.start_api_server()
    assert space.deployment("llama")["spec"] == before
    space.script.running = 50

    def decided():
        if not operator.alive:
            operator.start()
        return not speculates(space)

    space.plane.wait_for(decided, "the decision after the outage")
    settled(space)


def test_two_operators_exactly_one_acts_and_the_other_takes_over(world, tmp_path):
    space, first = world
    space.plane.apply(managed(space))
    space.wait_condition("llama", "Ready", "True")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/crossover"
    holder = space.plane.get(lease)["spec"]["holderIdentity"]
    (tmp_path / "second").mkdir()
    second = Operator(space.plane, tmp_path / "second", CROSSOVER_IDENTITY="second").start()
    try:
        asked = len(space.script.asked)
        space.plane.wait_for(lambda: len(space.script.asked) > asked + 10, "a few looks")
        assert space.plane.get(lease)["spec"]["holderIdentity"] == holder != "second"
        first.stop()
        space.plane.wait_for(lambda: space.plane.get(lease)["spec"]["holderIdentity"] == "second", "the take-over")
        space.script.running = 50
        space.plane.wait_for(lambda: not speculates(space), "a decision by the second")
        assert template_writes(space) == 1
    finally:
        second.stop()


def test_a_rollout_whose_pods_never_become_ready_is_taken_back(world, engines):
    space, _ = world
    wanted = managed(space)
    space.plane.apply(wanted)
    space.wait_condition("llama", "SpeculationManaged", "True", "ByRestart")
    engines.refuse_without_speculation.add((space.namespace, "llama"))
    space.script.running = 50
    space.plane.wait_for(lambda: not speculates(space), "the patch")
    space.plane.wait_for(lambda: speculates(space), "the way back")
    events = {event["reason"]: event["note"] for event in space.events("llama")}
    assert "RolloutStuck" in events
    space.wait_condition("llama", "SpeculationManaged", "False", "RolloutFailedBefore")
    settled(space)
