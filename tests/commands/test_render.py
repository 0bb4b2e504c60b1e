"""`crossover render`: each engine's own dialect, its own refusals, exit status as promised."""

import json

import pytest
from typer.testing import CliRunner

from crossover.commands.render import app

runner = CliRunner()


def run(engine, version, schedule="1:3,33:0", *more):
    return runner.invoke(app, [f"--engine={engine}", f"--version={version}", f"--schedule={schedule}", *more])


def test_sglang_has_single_element_lists_on_graph_sizes():
    done = run("sglang", "0.5.23", "1:3,33:0", "--graph-sizes=8,16,24,32,40")
    assert json.loads(done.stdout) == {"1": {"candidate_steps": [3]}, "40": {"candidate_steps": [0]}}


def test_vllm_has_inclusive_ranges():
    assert (
        run("vllm", "0.33.0", "1:3,65:1,129:0", "--algorithm=eagle3").stdout.strip()
        == "[[1,64,3],[65,128,1],[129,129,0]]"
    )


def test_tensorrt_llm_changes_its_meaning_between_versions():
    new = run("tensorrtllm", "1.3.0rc29", "1:3,33:1", "--algorithm=NGram", "--max-running=256")
    old = run("tensorrtllm", "1.2.0", "1:3,33:1", "--algorithm=NGram")
    assert "32: 3" in new.stdout
    assert "33: 1" in old.stdout


@pytest.mark.parametrize(
    ("engine", "version", "schedule", "more", "words"),
    [
        ("sglang", "0.5.12", "1:3", (), "0.5.13"),
        ("sglang", "0.5.23", "1:3", ("--algorithm=NGRAM",), "not NGRAM"),
        ("vllm", "0.23.0", "1:3", ("--algorithm=eagle3",), "0.24.0"),
        ("tensorrtllm", "1.2.1", "1:3", ("--algorithm=Eagle3",), "ignores it"),
        ("sglang", "0.5.23", "2:3", (), "starts at 1"),
    ],
)
def test_what_the_engine_would_refuse_is_exit_status_1_with_its_reason(engine, version, schedule, more, words):
    done = run(engine, version, schedule, *more)
    assert done.exit_code == 1
    assert words in done.output


@pytest.mark.parametrize(
    ("engine", "version", "schedule"), [("ollama", "1", "1:3"), ("vllm", "new", "1:3"), ("vllm", "0.33.0", "x")]
)
def test_input_that_cannot_be_used_is_exit_status_2(engine, version, schedule):
    assert run(engine, version, schedule).exit_code == 2
