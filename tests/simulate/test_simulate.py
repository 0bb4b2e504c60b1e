"""`crossover simulate` end to end: the contract of its files, sameness, the controller's own plan inside."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossover.commands.simulate import app
from crossover.simulate.catalog import CATALOG

TRACE = Path(__file__).parents[1] / "fixtures" / "traces" / "azure2023_conv_20min.csv"
FIELDS = {
    "policy",
    "seed",
    "gpu_hours",
    "ttft_attainment",
    "tpot_attainment",
    "attainment",
    "output_tokens_within_slo_per_gpu_hour",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "replica_changes",
    "draft_changes",
    "restarts",
    "reversals",
    "dropped_requests",
    "ratio_to_clairvoyant",
}
runner = CliRunner()


def run(tmp_path, *more, name="out"):
    done = runner.invoke(app, [str(TRACE), "--out", str(tmp_path / name), *more])
    summary = tmp_path / name / "summary.json"
    return done, json.loads(summary.read_text()) if summary.exists() else None


def policies(*names):
    return [word for name in names for word in ("--policy", name)]


def test_every_policy_runs_and_writes_the_promised_fields(tmp_path):
    done, records = run(tmp_path, *policies(*CATALOG), "--scale", "3")
    assert done.exit_code == 0, done.output
    assert {record["policy"] for record in records} == set(CATALOG)
    for record in records:
        assert set(record) >= FIELDS
        assert 0 <= record["attainment"] <= min(record["ttft_attainment"], record["tpot_attainment"]) <= 1
        assert record["gpu_hours"] > 0


def test_the_same_seed_gives_the_same_summary_and_another_another(tmp_path):
    names = policies("keda+table", "crossover")
    _, first = run(tmp_path, *names, name="a")
    _, again = run(tmp_path, *names, name="b")
    _, other = run(tmp_path, *names, "--seed", "2", name="c")
    assert first == again
    assert first != other


def test_processes_change_nothing(tmp_path):
    names = policies("keda+table", "static", "crossover")
    _, alone = run(tmp_path, *names, "--jobs", "1", name="a")
    _, together = run(tmp_path, *names, "--jobs", "2", name="b")
    assert alone == together


def test_seeds_are_a_record_each_and_the_clairvoyant_is_the_measure(tmp_path):
    _, records = run(tmp_path, *policies("static", "clairvoyant"), "--seed", "1", "--seed", "2")
    assert [(record["policy"], record["seed"]) for record in records] == [
        ("static", 1),
        ("static", 2),
        ("clairvoyant", 1),
        ("clairvoyant", 2),
    ]
    assert all(record["ratio_to_clairvoyant"] == 1.0 for record in records[2:])


def test_the_report_is_one_file_that_needs_nothing_else(tmp_path):
    run(tmp_path, *policies("keda", "clairvoyant"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 4
    assert "What the controller goes by" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_bounds_hold(tmp_path):
    _, records = run(tmp_path, *policies("keda"), "--scale", "40", "--max-replicas", "3")
    assert records[0]["gpu_hours"] <= 3 * 0.75 * 0.36


def test_a_plant_and_a_profile_from_csv_may_differ(tmp_path):
    rows = ["running_requests,draft_tokens,context_tokens,step_ms,acceptance_length"]
    rows += [f"{b},{k},500,{5 + 0.05 * b * (k + 1) + 0.8 * k},{1 + 0.6 * k}" for k in (0, 3) for b in (1, 16, 64, 256)]
    table = tmp_path / "points.csv"
    table.write_text("\n".join(rows) + "\n")
    done, records = run(tmp_path, *policies("crossover"), "--plant", str(table), "--profile", str(table))
    assert done.exit_code == 0, done.output
    assert records[0]["gpu_hours"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "magic"], "magic"),
        (["--plant", "nowhere.csv"], "presets are"),
        (["--start", "999999"], "nothing at"),
        (["--workload", "poetry"], "poetry"),
    ],
)
def test_input_that_cannot_be_used_is_exit_status_2_and_says_why(tmp_path, arguments, words):
    done, _ = run(tmp_path, *arguments)
    assert done.exit_code == 2
    assert words in done.output
