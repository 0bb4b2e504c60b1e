"""`crossover explain` on a real API server: reads the object that the operator wrote, and changes nothing."""

import json

import pytest
from tests.controller.manifests import NGRAM, autoscaler, deployment
from typer.testing import CliRunner

from crossover.commands.explain import app

pytestmark = pytest.mark.xdist_group("controller")


def test_explain_reads_what_the_operator_wrote_and_finds_the_thresholds(space, engines):
    script = engines.script(space.namespace, "llama")
    script.running = 10
    space.plane.apply(deployment(space.namespace, "llama", speculation=NGRAM, replicas=2))
    space.plane.apply(autoscaler(space.namespace, "llama", min=2, max=4))
    space.wait_condition("llama", "SpeculationManaged", "True", "ByRestart")
    space.wait("llama", lambda s: s.get("fleet", {}).get("meanRunningRequests") == "10.0", "10 running")
    arguments = ["-n", space.namespace, "--kubeconfig", str(space.plane.kubeconfig), "--json"]
    result = CliRunner().invoke(app, ["llama", *arguments])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ready"]["status"] == "True"
    off = next(item for item in document["would_change"] if item["what"].endswith("-> 0"))
    assert off["running_requests_per_scheduler"] == pytest.approx(32, rel=0.01)
    more = next(item for item in document["would_change"] if item["what"].startswith("replicas 2 -> 3"))
    assert more["running_requests_per_scheduler"] == pytest.approx(44, rel=0.01)

    nobody = CliRunner().invoke(app, ["nobody", *arguments])
    assert nobody.exit_code == 2
    assert "does not exist in namespace" in nobody.output
