"""`crossover inspect`: JSON as documented, exit status as promised, nothing of a remote body on the way."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.emulate.serving import make, serving, until
from typer.testing import CliRunner

from crossover.commands.inspect import app
from crossover.emulate.load import ClosedLoop

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


KEYS = {
    "name", "running_requests", "waiting_requests", "max_running_requests", "kv_usage", "draft_tokens", "acceptance_length",
    "output_tokens_total", "draft_tokens_total", "accepted_tokens_total", "unknown",
}  # fmt: skip
UNKNOWN_BATCH = (
    "trtllm-1.3-serve-metrics-idle.json",
    "trtllm-1.3-serve-server_info.json",
    "sglang-0.5.23-server_info-eagle-adaptive.subset.json",
    "trtllm-triton-llmapi-b64-spec.prom",
)
ENGINE_OF = {"sglang": "SGLang", "vllm": "VLLM", "trtllm": "TensorRTLLM"}
FIXTURES = sorted(path for path in METRICS.iterdir() if path.suffix in (".prom", ".json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_every_fixture_is_told_apart_by_what_it_serves_and_every_null_has_its_reason(path):
    done = run(str(path), "--json")
    document = json.loads(done.stdout)
    assert document["engine"] == ENGINE_OF[path.name.partition("-")[0]]
    assert done.exit_code == (1 if path.name in UNKNOWN_BATCH else 0)
    for scheduler in document["schedulers"]:
        assert set(scheduler) >= KEYS
        missing = {name for name, value in scheduler.items() if value is None}
        assert missing == set(scheduler["unknown"])
        assert all(scheduler["unknown"].values())
    assert all(trap["code"] and trap["message"] for trap in document["traps"])


def test_duplicates_are_folded_into_one_entry_a_rank():
    def names(file):
        return [s["name"] for s in json.loads(run(str(METRICS / file), "--json").stdout)["schedulers"]]

    assert names("vllm-0.33.0-dp2.prom") == ["engine0", "engine1"]
    assert names("trtllm-1.3-serve-b64-spec.prom") == ["0"]


@pytest.mark.parametrize(
    ("body", "engine", "fault"),
    [
        (b"<html>secret</html>", "auto", "WrongEngine"),
        (b"<html>secret</html>", "sglang", "NotMetrics"),
        (b"", "auto", "WrongEngine"),
        (b'{"secret": 1}', "auto", "WrongEngine"),
        (b'vllm:num_requests_running{engine="0"} 3\n', "sglang", "WrongEngine"),
    ],
)
def test_what_is_no_server_is_exit_status_2_with_the_fault_in_the_json_and_none_of_its_text(body, engine, fault):
    done = run("-", "--engine", engine, "--json", stdin=body)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["fault"] == fault
    assert "secret" not in done.output


def test_values_that_are_no_numbers_are_read_and_unknown():
    done = run("-", "--json", stdin=b'vllm:num_requests_running{engine="0"} NaN\n')
    assert done.exit_code == 1
    assert json.loads(done.stdout)["fault"] == "InvalidValues"


async def test_a_server_is_read_twice_for_the_values_that_are_differences():
    """The draft length of vLLM is a difference of counters."""
    command = ["vllm", "serve", "m", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    async with (
        serving(make("vllm", command, None, time_scale=20.0)) as client,
        ClosedLoop(lambda: [client.base], output_tokens=2000, path="/v1/completions") as load,
    ):
        load.set_concurrency(8)
        await until(lambda: len(client.server.cores[0].running) == 8)
        once = await asyncio.to_thread(run, client.base, "--json")
        twice = await asyncio.to_thread(run, client.base, "--over", "0.5", "--json")
    assert (once.exit_code, twice.exit_code) == (0, 0)
    assert json.loads(once.stdout)["schedulers"][0]["draft_tokens"] is None
    assert json.loads(twice.stdout)["schedulers"][0]["draft_tokens"] == pytest.approx(3.0)
    assert json.loads(twice.stdout)["version"] == "0.33.0"


async def test_a_server_that_wants_a_key_is_named_so():
    command = ["python3", "-m", "sglang.launch_server", "--model-path=m", "--api-key=very-secret"]
    async with serving(make("sglang", command, None)) as client:
        done = await asyncio.to_thread(run, f"{client.base}/v1/loads")
    assert done.exit_code == 2
    assert "401" in done.output
    assert "very-secret" not in done.output
