"""Against numbers that others measured and published."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossover.commands.fit import app
from crossover.decide.shape_of_steps import Sample, fit
from crossover.decide.sweeps import SERIES_COLUMNS, is_sweep, read_sweeps
from crossover.decide.tables import TableError, read_points, rows_of, write_points
from tests.decide.truth import points

PUBLISHED = Path(__file__).parents[1] / "fixtures" / "published"


def expected():
    with (PUBLISHED / "published-crossovers.csv").open() as file:
        return list(csv.DictReader(file))


def sweeps(name):
    return read_sweeps(rows_of((PUBLISHED / name).read_text()))


def key_of(row):
    return tuple(row.get(column) or "" for column in SERIES_COLUMNS)


FOUND = {key_of(item.name): item for item in sweeps("published-sweeps.csv")}


@pytest.mark.parametrize(
    "row", expected(), ids=lambda row: f"{row['source'][:30]} {row['model'][:20]} {row['method'][:25]}"
)
def test_every_published_series_crosses_where_its_table_says(row):
    series = FOUND[key_of(row)]
    assert len(series.points) == int(row["points"])
    assert series.points[0][0] == float(row["batch_min"])
    assert series.points[-1][1] == pytest.approx(float(row["speedup_at_max"]), abs=1e-3)
    if row["crossover"] == "interpolated":
        assert series.verdict.startswith("crosses at")
        assert series.crossover == pytest.approx(float(row["crossover_batch"]), abs=0.06)
    else:
        assert series.verdict == row["crossover"]
        assert series.crossover is None


def test_every_series_with_several_loads_is_in_that_table():
    several = {key for key, item in FOUND.items() if len(item.points) > 1}
    assert several == {key_of(row) for row in expected()}


def test_a_table_of_crossovers_says_the_same_again():
    again = {key_of(item.name): item for item in sweeps("published-crossovers.csv")}
    for row in expected():
        item = again[key_of(row)]
        assert item.crossover == (pytest.approx(float(row["crossover_batch"])) if row["crossover_batch"] else None)


@pytest.mark.parametrize(
    ("source", "method", "draft", "crossover"),
    [
        ("EAGLE-3 paper arXiv:2503.01840 Table 5 (vLLM)", "eagle", "2", 26.4),
        ("EAGLE-3 paper arXiv:2503.01840 Table 5 (vLLM)", "eagle-3", "2", None),
    ],
)
def test_an_axis_in_the_value_is_read_and_another_axis_is_left_out(source, method, draft, crossover):
    (series,) = [
        item
        for item in sweeps("vllm-published-sweeps.csv")
        if (item.name["source"], item.name["method"], item.name.get("draft_len")) == (source, method, draft)
    ]
    assert series.crossover == (pytest.approx(crossover, abs=0.06) if crossover else None)


def test_lines_by_requests_per_second_are_no_batches():
    rows = rows_of("source,batch_or_qps,speedup\na,batch:2,1.3\na,batch:8,0.9\na,qps:4,0.5\n")
    (series,) = read_sweeps(rows)
    assert series.points == ((2.0, 1.3), (8.0, 0.9))


def test_a_sweep_without_an_engine_column_is_read():
    verdicts = {item.name["method"]: item.verdict for item in sweeps("trtllm-published-sweeps.csv")}
    assert verdicts == {
        "MTP": "none up to 1",
        "MTP + relaxed acceptance": "none up to 1",
        "Eagle3 two-model": "none up to 8",
    }


@pytest.mark.parametrize(
    ("hardware", "model", "workload", "speed"),
    [
        ("B200", "GLM-5/5.1", "8k/1k", 33),
        ("H200", "DeepSeek-V4-Pro", "1k/1k", 29),
        ("MI355X", "DeepSeek-V4-Pro", "8k/1k", 33),
    ],
)
def test_under_a_speed_target_speculation_pays_above_the_break_even_speed(hardware, model, workload, speed):
    (series,) = [
        item
        for item in sweeps("published-interactivity.csv")
        if (item.name["hardware"], item.name["model"], item.name["isl_osl"]) == (hardware, model, workload)
        and item.name["precision"] == ("FP4" if hardware == "MI355X" else "FP8")
    ]
    assert series.by_speed
    assert series.crossover == pytest.approx(speed, abs=0.7), "interpolated by hand"
    assert series.verdict.startswith("pays from")


def test_where_every_speed_pays_there_is_no_crossover():
    above = [item for item in sweeps("published-interactivity.csv") if item.points[0][1] >= 1]
    assert len(above) == 20
    assert all(item.crossover is None and item.verdict.endswith(" on") for item in above)


@pytest.mark.parametrize("name", ["published-steptime.csv", "acceptance-specforge.csv"])
def test_a_table_without_speed_ups_is_refused_with_what_is_missing(name):
    assert not is_sweep(rows_of((PUBLISHED / name).read_text()))
    result = CliRunner().invoke(app, [str(PUBLISHED / name)])
    assert result.exit_code == 2
    assert "needs running_requests, draft_tokens and step_ms or" in result.output


def steptimes():
    with (PUBLISHED / "published-steptime.csv").open() as file:
        rows = list(csv.DictReader(file))
    groups = {}
    for row in rows:
        if row["scope"] == "linear layers":
            key = tuple(row[column] for column in ("source", "hardware", "model", "precision"))
            groups.setdefault(key, []).append((float(row["tokens_per_step"]), float(row["ms"])))
    return groups


@pytest.mark.parametrize("key", sorted(steptimes()), ids=lambda key: " ".join(key[1:]))
def test_published_kernel_times_have_the_shape(key):
    """Tokens in one step against time: the smooth maximum describes them to a few percent without a datasheet."""
    samples = [Sample(tokens, 1.0, 0.0, 0.0, ms / 1000) for tokens, ms in steptimes()[key]]
    shape = fit(samples)
    assert shape is not None
    assert shape.relative_error < 0.07
    assert 100 <= shape.knee <= 1200


def test_speedups_as_json():
    result = CliRunner().invoke(app, [str(PUBLISHED / "published-sweeps.csv"), "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    crossing = [item for item in document["series"] if item["crossover"] is not None and item["points"] >= 3]
    assert document["kind"] == "speedups"
    assert {round(item["crossover"], 1) for item in crossing} >= {26.4, 104.7, 117.3}


# -- crossover fit on points ------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(write_points(points(noise=0.02)))
    return path


def test_points_survive_as_a_table():
    original = points(noise=0.02)
    again = read_points(rows_of(write_points(original)))
    assert [(p.running_requests, p.draft_tokens, p.off) for p in again] == [
        (p.running_requests, p.draft_tokens, p.off) for p in original
    ]
    assert [p.step_seconds for p in again] == pytest.approx([p.step_seconds for p in original], rel=1e-4)


def test_fit_prints_crossover_schedule_and_capacity(table, tmp_path):
    picture = tmp_path / "fit.png"
    result = CliRunner().invoke(app, [str(table), "--tpot-ms", "50", "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "schedule: draft 7 up to" in result.output
    assert "capacity at TPOT <= 50 ms" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_fit_as_json(table):
    document = json.loads(CliRunner().invoke(app, [str(table), "--json", "--tpot-ms", "50"]).stdout)
    seven = next(c for c in document["crossovers"] if c["draft_tokens"] == 7 and c["against"] == "off")
    (crossing,) = seven["crossings"]
    assert crossing["low"] <= 47.9 <= crossing["high"], "the truth the points were drawn from"
    assert document["schedule"][0][0] == 1
    assert {entry["variant"] for entry in document["capacity"]} == {"off", "gated", "draft-1", "draft-3", "draft-7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("a,b\n1,2\n", "columns are a, b: a table of points needs running_requests"),
        ("running_requests,draft_tokens,step_ms\n4,3,abc\n", "line 2, column step_ms: 'abc' is not a number"),
        ("running_requests,draft_tokens,step_ms\n4,3,\n", "line 2: neither step_ms nor tokens_per_second is given"),
        ("running_requests,draft_tokens\n4,3\n", "needs running_requests, draft_tokens and step_ms or"),
        (
            "running_requests,draft_tokens,step_ms\n4,3,7\n-4,3,7\n",
            "line 3, column running_requests: -4 must be above 0",
        ),
        ("running_requests,draft_tokens,step_ms\n4,1.5,7\n", "column draft_tokens: 1.5 must be a whole number"),
        ("running_requests,draft_tokens,step_ms,off\n4,3,7,yes\n", "column off: is true with draft_tokens 3"),
        (
            "running_requests,draft_tokens,step_ms,acceptance_length\n4,3,7,4.5\n",
            "column acceptance_length: 4.5 must lie between 1 and 4",
        ),
        ("batch,speedup\n4,fast\n", "line 2, column speedup: 'fast' is not a number"),
        ("batch,speedup\n4,-1\n", "line 2: load 4 and speed-up -1 must both be above 0"),
        ("qps,speedup\n4,1.2\n", "no line has a speedup and a load"),
        ("running_requests,draft_tokens,step_ms\n,3,7\n", "line 2, column running_requests: is missing"),
        (
            "running_requests,draft_tokens,step_ms,off\n4,0,7,perhaps\n",
            "column off: 'perhaps' is neither true nor false",
        ),
        ("running_requests,draft_tokens,step_ms\n4,3,inf\n", "is not a number"),
        ("<html><body>no</body></html>\nx\n", "a table of points needs running_requests"),
    ],
)
def test_a_table_that_cannot_be_used_says_where_and_how_to_mend_it(tmp_path, text, message):
    path = tmp_path / "points.csv"
    path.write_text(text)
    result = CliRunner().invoke(app, [str(path)])
    assert result.exit_code == 2
    assert message in result.output


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    assert CliRunner().invoke(app, [str(tmp_path / "none.csv")]).exit_code == 2
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 10)
    assert CliRunner().invoke(app, [str(binary)]).exit_code == 2


@pytest.mark.parametrize("suffix", ["", ".xyz"])
def test_a_picture_of_an_unknown_kind_or_in_no_folder_is_refused(table, tmp_path, suffix):
    assert CliRunner().invoke(app, [str(table), "--plot", str(tmp_path / f"none/fit{suffix or '.png'}")]).exit_code == 2
    result = CliRunner().invoke(app, [str(table), "--plot", str(tmp_path / f"fit{suffix or '.txt'}")])
    assert result.exit_code == 2
    assert "name it .png, .svg or .pdf" in result.output


@pytest.mark.parametrize("name", ["published-sweeps.csv", "published-interactivity.csv"])
def test_sweeps_as_a_table_and_a_picture(tmp_path, name):
    picture = tmp_path / "sweeps.svg"
    result = CliRunner().invoke(app, [str(PUBLISHED / name), "--plot", str(picture)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "crossover," in result.output
    assert "<svg" in picture.read_text()[:2000]


def test_off_may_be_written_as_a_draft_length():
    rows = rows_of("running_requests,draft_tokens,step_ms\n4,off,20\n4,0,21\n")
    assert [(p.draft_tokens, p.off) for p in read_points(rows)] == [(0, True), (0, False)]
    with pytest.raises(TableError, match="draft_tokens"):
        read_points(rows_of("running_requests,draft_tokens,step_ms\n4,many,20\n"))
