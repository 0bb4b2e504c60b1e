"""`crossover inspect`: JSON as documented, exit status as promised, nothing of a remote body on the way."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossover.commands.inspect import app

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"
runner = CliRunner()


def run(*arguments, stdin=None):
    return runner.invoke(app, list(arguments), input=stdin)


def test_a_busy_server_is_known_and_its_json_is_as_documented():
    done = run(str(METRICS / "sglang-0.5.23-busy64-ngram-spec.prom"), "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (document["engine"], document["fault"]) == ("SGLang", None)
    (scheduler,) = document["schedulers"]
    assert (scheduler["running_requests"], scheduler["draft_tokens"]) == (64.0, 3.0)
    assert scheduler["max_running_requests"] is None
    assert scheduler["unknown"]["max_running_requests"].startswith("absent")
    assert {"output_tokens_total", "draft_tokens_total", "accepted_tokens_total", "kv_usage"} <= set(scheduler)


def test_ranks_are_listed_one_by_one():
    document = json.loads(run(str(METRICS / "sglang-0.5.23-dp2-priority-extra-label.prom"), "--json").stdout)
    assert [scheduler["name"] for scheduler in document["schedulers"]] == ["dp0", "dp1"]
    assert "PriorityDuplicates" in [trap["code"] for trap in document["traps"]]


def test_loads_from_standard_input():
    body = (METRICS / "sglang-0.5.23-v1_loads-busy64-ngram.json").read_bytes()
    assert run("-", stdin=body).exit_code == 0


def test_a_batch_that_is_unknown_is_exit_status_1():
    done = run("-", "--engine", "sglang", "--json", stdin=b'sglang:max_total_num_tokens{tp_rank="0"} 5.0\n')
    assert done.exit_code == 1
    assert json.loads(done.stdout)["schedulers"][0]["running_requests"] is None


@pytest.mark.parametrize("source", ["/no/such/file", "http://127.9.9.9:9"])
def test_a_source_that_cannot_be_read_is_exit_status_2_and_says_what_to_do(source):
    done = run(source)
    assert done.exit_code == 2
    assert source in done.output


def test_another_engines_metrics_are_no_engine_we_know():
    done = run("-", stdin=b"some_metric 1\n")
    assert done.exit_code == 2
    assert "some_metric" not in done.output


def test_an_unknown_engine_names_the_known_ones():
    done = run("-", "--engine", "ollama", stdin=b"")
    assert done.exit_code == 2
    assert "sglang" in done.output


def test_the_table_shows_reasons_and_traps():
    done = run(str(METRICS / "sglang-0.5.23-idle-after-spec-stale-gauges.prom"))
    assert "stale: no request runs" in done.stdout
    assert "StaleSpeculationGauges" in done.stdout
