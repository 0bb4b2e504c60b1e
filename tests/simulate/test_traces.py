"""Traces: every format of the documentation, faults that name the file and the fix."""

import gzip
from pathlib import Path
from random import Random
from statistics import stdev

import pytest

from crossover.simulate.traces import Length, TraceError, read

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"


def test_requests_are_binned_by_the_second_and_none_is_lost():
    rows = (TRACES / "azure2023_conv_20min.csv").read_text().splitlines()[1:]
    trace = read(TRACES / "azure2023_conv_20min.csv")
    assert trace.bin_seconds == 1.0
    assert trace.requests == len(rows)
    outputs = [float(row.split(",")[2]) for row in rows]
    assert trace.mean_output_tokens == pytest.approx(sum(outputs) / len(outputs))


def test_rates_take_their_lengths_from_the_table_beside_them():
    trace = read(TRACES / "servegen_rate_m_large.csv")
    assert trace.bin_seconds == 2.0
    assert trace.mean_input_tokens == pytest.approx(914, rel=0.1)  # the collection's own mean
    assert trace.mean_output_tokens == pytest.approx(155, rel=0.1)


def test_rates_keep_the_mean_of_every_window_and_the_seed_decides_the_rest():
    first, again, other = (read(TRACES / "servegen_rate_m_large.csv", seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    rate = float((TRACES / "servegen_rate_m_large.csv").read_text().splitlines()[1].split(",")[1])
    assert sum(item.requests for item in first.bins[:300]) / 600 == pytest.approx(rate, rel=0.1)


def test_timestamps_gzip_and_any_order(tmp_path):
    text = "timestamp,input_tokens,output_tokens\n2024-01-01T00:00:03+00:00,5,7\n2024-01-01T00:00:00+00:00,1,2\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    trace = read(tmp_path / "a.csv.gz")
    assert [item.requests for item in trace.bins] == [1, 0, 0, 1]
    assert trace.name == "a"


def test_the_part_that_will_be_used_sets_the_bins():
    path = TRACES / "servegen_rate_m_large.csv"
    assert read(path, hours=2.0).bin_seconds == 1.0
    assert read(path, hours=2.0).seconds == read(path).seconds


def test_a_mean_of_many_lengths_scatters_less_than_one():
    length, chance = Length(100.0, 50.0), Random(1)
    ones = [length.mean_of(1, chance) for _ in range(2000)]
    hundreds = [length.mean_of(100, chance) for _ in range(2000)]
    assert stdev(hundreds) == pytest.approx(5.0, rel=0.1)
    assert stdev(ones) > 5 * stdev(hundreds)


def test_gaps_in_collection_are_not_idle_time(tmp_path):
    (tmp_path / "r.csv").write_text("t_s,req_per_s,rate_weighted_cv\n0,100,0\n600,0,0\n")
    trace = read(tmp_path / "r.csv", lengths=(10.0, 10.0))
    assert trace.requests == pytest.approx(100 * 1200, rel=0.05)


def test_a_window_and_a_scale():
    trace = read(TRACES / "azure2023_conv_20min.csv")
    assert trace.window(60.0, 120.0).seconds == 120.0
    assert trace.scaled(3.0).requests == pytest.approx(3 * trace.requests)
    with pytest.raises(TraceError, match="nothing at"):
        trace.window(1e6, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "needed are"),
        ("t_s,input_tokens,output_tokens\n", "no rows"),
        ("t_s,input_tokens,output_tokens\n1,x,2\n", "no number"),
        ("t_s,req_per_s\n0,1\n", "lengths"),
    ],
)
def test_a_trace_that_cannot_be_used_says_why(tmp_path, text, words):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(TraceError, match=words):
        read(tmp_path / "bad.csv")
