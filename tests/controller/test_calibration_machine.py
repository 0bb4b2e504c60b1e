"""What a calibration was measured on, and what a fleet runs on: accelerators of nodes, digests behind tags, models."""

import json
from dataclasses import replace

import pytest
from tests.cluster.http_server import ok, serving, status
from tests.controller.manifests import autoscaler, calibration
from tests.controller.test_calibration import Bench, emulated

from crossover.api.fleet import EngineType, PodFacts, PodPhase
from crossover.calibrate.environment import Environment
from crossover.cluster.nodes import REMEMBERED_SECONDS, Nodes, product_of
from crossover.cluster.pods import image_digest
from crossover.controller.calibration.environment import changed, from_status, mixed, since, to_status
from crossover.controller.machine import Machine, machine_of
from crossover.engines import ENGINES
from crossover.engines.contract import Models

H100, H200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"
GKE = "nvidia-h100-80gb (cloud.google.com/gke-accelerator)"
ONE, OTHER = f"sha256:{1:064x}", f"sha256:{2:064x}"
MEASURED = Environment(
    "SGLang", "0.5.23", "sglang:latest", ONE, "llama", "eagle", gpu="nvidia.com/gpu 1", gpu_product=H100
)
PLAIN = replace(MEASURED, image_digest=None, gpu_product=None)
"""As a template tells it."""

live = pytest.mark.xdist_group("controller")


class Clock:
    seconds = 0.0

    def now(self):
        return self.seconds


def node(**labels):
    return ok({"metadata": {"name": "n", "labels": labels}})


def pod(name="p", on="n", digest=ONE, phase=PodPhase.READY):
    facts = PodFacts("demo", name, name, {}, "10.0.0.1", phase, None, 0.0, 0.0, 0, node=on)
    return replace(facts, image_digests=(("server", digest), ("sidecar", OTHER)))


def test_names_of_different_labels_are_not_compared():
    """A new node has its provider's label before the driver's own."""
    with_gke = replace(MEASURED, gpu_product=GKE)
    assert changed(MEASURED, PLAIN, Machine(products=frozenset({GKE}))) == ""
    assert changed(with_gke, PLAIN, Machine(products=frozenset({H100, GKE}))) == ""
    assert mixed(MEASURED, with_gke) == ""
    other = GKE.replace("h100", "a100")
    assert "now nvidia-a100" in changed(with_gke, PLAIN, Machine(products=frozenset({other})))


# -- nodes


@pytest.mark.parametrize(
    ("labels", "product"),
    [
        ({"nvidia.com/gpu.product": H100}, H100),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "AMD_Instinct_MI300X_OAM"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, GKE),
        ({"nvidia.com/gpu.product": H100, "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, H100),
        ({"kubernetes.io/arch": "amd64"}, None),
    ],
)
def test_a_product_is_what_a_label_says(labels, product):
    assert product_of(labels) == product


async def test_a_node_is_read_once_in_a_while():
    clock = Clock()
    async with serving(node(**{"nvidia.com/gpu.product": H100}), node(**{"nvidia.com/gpu.product": H200})) as rig:
        nodes = Nodes(rig.client, clock)
        assert [await nodes.product("n") for _ in range(3)] == [H100] * 3
        assert len(rig.script.requests) == 1
        clock.seconds += REMEMBERED_SECONDS
        assert await nodes.product("n") == H200


async def test_without_the_right_nothing_is_known_and_nobody_is_asked_again_at_once():
    clock = Clock()
    async with serving(status(403, "Forbidden", "nodes is forbidden")) as rig:
        nodes = Nodes(rig.client, clock)
        assert [await nodes.product(name) for name in "abc"] == [None] * 3
        assert len(rig.script.requests) == 1


async def test_pods_that_end_do_not_count_and_neither_does_a_sidecar():
    async with serving(node(**{"nvidia.com/gpu.product": H100})) as rig:
        nodes = Nodes(rig.client, Clock())
        found = await machine_of([pod(), pod("old", digest=OTHER, phase=PodPhase.TERMINATING)], "server", nodes)
    assert found == Machine(frozenset({H100}), frozenset({ONE}))


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [
        (f"docker.io/lmsysorg/sglang@{ONE}", ONE),
        (f"docker-pullable://vllm/vllm-openai@{ONE}", ONE),
        (ONE, None),
        (f"docker://{ONE}", None),
        ("", None),
        ("repo@sha256:short", None),
    ],
)
def test_only_the_digest_of_a_repository_is_comparable(image_id, digest):
    assert image_digest(image_id) == digest


# -- what changed


@pytest.mark.parametrize(
    ("now", "machine", "told"),
    [
        (PLAIN, Machine(), ""),
        (PLAIN, Machine(frozenset({H100}), frozenset({ONE})), ""),
        (PLAIN, Machine(frozenset({H200})), f"the accelerator's product ({H100}, now {H200})"),
        (PLAIN, Machine(frozenset({H100, H200})), f"the accelerator's product ({H100}, now {H200})"),
        (PLAIN, Machine(frozenset(), frozenset({OTHER})), "what the image's tag points to"),
        (replace(PLAIN, image="sglang:2"), Machine(frozenset(), frozenset({OTHER})), "the image"),
        (replace(PLAIN, draft_model="eagle-2", arguments=("x",)), Machine(), "the draft model (eagle, now eagle-2)"),
        (replace(PLAIN, draft_model=None), Machine(), ""),
    ],
)
def test_what_makes_it_stale_is_named(now, machine, told):
    assert changed(replace(MEASURED, arguments=("y",)), now, machine) == told


def test_a_status_of_an_older_operator_goes_stale_by_nothing_new():
    old = from_status({"engine": "SGLang", "image": "sglang:latest", "arguments": "y"})
    assert changed(old, replace(PLAIN, arguments=("y",)), Machine(frozenset({H200}), frozenset({OTHER}))) == ""


def test_status_keeps_all_of_it():
    assert from_status(to_status(replace(MEASURED, arguments=("y",)))) == replace(MEASURED, arguments=("y",))
    assert json.dumps(to_status(MEASURED))


def test_scratch_pods_on_two_products_are_said_to_be_so():
    later = replace(MEASURED, gpu_product=H200)
    assert "not of one machine" in mixed(MEASURED, later)
    assert since(MEASURED, later).gpu_product == H100
    assert mixed(None, later) == mixed(PLAIN, later) == ""


# -- models in the engines' own spelling

VLLM = ["--speculative-config", '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}']


@pytest.mark.parametrize(
    ("kind", "container", "found"),
    [
        (EngineType.SGLANG, {"args": ["--model-path", "m", "--speculative-draft-model-path=d"]}, Models("m", "d")),
        (EngineType.VLLM, {"command": ["vllm", "serve", "m"], "args": VLLM}, Models("m", "d")),
        (EngineType.VLLM, {"args": ["--model=m", *VLLM]}, Models("m", "d")),
        (EngineType.VLLM, {"args": ["--model=m"]}, Models("m", None)),
        (EngineType.TENSORRT_LLM, {"command": ["trtllm-serve", "m"]}, Models("m", None)),
        (EngineType.TENSORRT_LLM, {"command": ["trtllm-serve", "serve", "m", "--port", "1"]}, Models("m", None)),
        (EngineType.TENSORRT_LLM, {"command": ["bash", "-c", "trtllm-serve m <<EOF"]}, Models()),
    ],
)
def test_the_arguments_tell_model_and_draft_model(kind, container, found):
    assert ENGINES[kind].models({"name": "s", **container}, {}) == found


# -- in the cluster


@live
def test_a_tag_that_points_to_something_else_makes_it_stale_once_pods_run_it(space):
    """The template is the same, byte for byte."""
    bench = Bench(space)
    made = emulated(bench.namespace, replicas=1)
    image = "crossover.dev/emulated-sglang:latest"
    made["spec"]["template"]["spec"]["containers"][0]["image"] = image
    space.plane.apply(made)
    space.plane.apply(calibration(bench.namespace))
    bench.wait("Ready", "True", "Complete", seconds=90)
    fleet = autoscaler(bench.namespace, "llama")
    fleet["spec"]["speculation"]["calibrationRef"] = {"name": "cal"}
    del fleet["spec"]["speculation"]["threshold"]
    fleet["spec"]["mode"] = "Advisory"  # a rollout of the schedule would pull the tag again by itself
    space.plane.apply(fleet)
    space.wait_condition("llama", "Calibrated", "True")

    space.plane.kubelet.moved_tags[image] = 1
    (serving,) = [
        item for item in space.plane.get(f"/api/v1/namespaces/{bench.namespace}/pods")["items"]
        if item["metadata"]["labels"].get("app") == "llama"
    ]  # fmt: skip
    space.plane.request("DELETE", f"/api/v1/namespaces/{bench.namespace}/pods/{serving['metadata']['name']}")
    stale = space.wait_condition("llama", "Calibrated", "False", "CalibrationStale")
    assert "what the image's tag points to" in stale["message"]
    bench.wait("Stale", "True", "EnvironmentChanged", seconds=90)
