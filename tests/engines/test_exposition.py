"""The scanner against prometheus-client as oracle, and every way a body can be broken."""

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from crossover.engines.exposition import NotExposition, inflate, scan

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"

names = st.from_regex(r"[a-z_:][a-z0-9_:]{0,12}", fullmatch=True)
LINE_BREAKS = "\r\n\x00\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"
label_values = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters=LINE_BREAKS), max_size=12)
label_names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
numbers = st.one_of(st.floats(), st.integers(-(10**9), 10**9))
rows_of_samples = st.lists(
    st.tuples(names, st.dictionaries(label_names, label_values, max_size=3), numbers), max_size=12
)


def escape(text):
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def shown(value):
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if value == math.inf:
        return "+Inf"
    return "-Inf" if value == -math.inf else repr(value)


@st.composite
def expositions(draw):
    rows = draw(rows_of_samples)
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = []
    for name, labels, value in rows:
        text = ",".join(f'{key}="{escape(label)}"' for key, label in labels.items())
        stamp = draw(st.sampled_from(["", " 1700000000000"]))
        lines.append(f"{name}{{{text}}} {shown(value)}{stamp}" if labels else f"{name} {shown(value)}{stamp}")
    return end.join([*lines, ""])


def flat(samples):
    return [(tuple(sorted(labels.items())), shown(float(value))) for labels, value in samples]


@given(expositions())
@settings(max_examples=200, deadline=None)
def test_agrees_with_prometheus_client(made):
    text = made
    expected = {}
    for family in text_string_to_metric_families(text.replace("\r\n", "\n")):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    found = scan(text.encode(), frozenset(expected) | {"absent"})
    assert {name: flat((s.labels, s.value) for s in rows) for name, rows in found.samples.items()} == {
        name: flat(rows) for name, rows in expected.items()
    }
    assert found.skipped_lines == 0


@pytest.mark.parametrize("path", sorted(METRICS.glob("*.prom")), ids=lambda path: path.stem)
def test_every_fixture_agrees_with_prometheus_client(path):
    body = path.read_bytes()
    expected = {}
    # Without TYPE lines, since the oracle renames counters that do not end in _total.
    untyped = "\n".join(line for line in body.decode().split("\n") if not line.startswith("#"))
    for family in text_string_to_metric_families(untyped):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    found = scan(body, frozenset(expected))
    assert {name: flat((s.labels, s.value) for s in rows) for name, rows in found.samples.items()} == {
        name: flat(rows) for name, rows in expected.items()
    }


def test_only_wanted_names_are_kept():
    found = scan(b'a{x="1"} 1\nab 2\n', frozenset({"ab"}))
    assert dict(found.samples).keys() == {"ab"}
    assert found.names_seen


def test_a_truncated_body_loses_its_last_line_only():
    found = scan(b"a 1\na 12", frozenset({"a"}))
    assert [sample.value for sample in found.values("a")] == [1.0]
    assert found.truncated


def test_openmetrics_is_read_too():
    found = scan(b'# TYPE a counter\na_total{b="c"} 3 # {trace="x"} 1\n# EOF\n', frozenset({"a_total"}))
    assert found.one("a_total") == 3.0


def test_gzip_is_read_too_and_a_bomb_is_refused():
    assert scan(gzip.compress(b"a 1\n"), frozenset({"a"})).one("a") == 1.0
    with pytest.raises(NotExposition):
        inflate(gzip.compress(b"0" * 40_000_000))
    with pytest.raises(NotExposition):
        scan(b"\x1f\x8bnonsense", frozenset({"a"}))


@pytest.mark.parametrize("body", [b"<!doctype html><html></html>", b"\n <html>", b'{"detail":"x"}', b"[]", b"\x00\x01"])
def test_html_json_and_binary_are_no_exposition(body):
    with pytest.raises(NotExposition):
        scan(body, frozenset({"a"}))


def test_bad_lines_are_counted_not_fatal():
    found = scan(b'a{b=} 1\na{b="c"} x\na{b="c"}\na 4\n', frozenset({"a"}))
    assert [sample.value for sample in found.values("a")] == [4.0]
    assert found.skipped_lines == 3


@pytest.mark.parametrize(
    "line",
    [
        'a{b="c"} 1',
        'a {b="c"} 1',
        'a\t{b="c"}\t1',
        'a{b="c",} 1',
        'a{b="c"}1',
        'a{b="c"} 1 1700',
        'a{b="} 2"} 1',
        'a{b="c"} 1 ',
    ],
)
def test_spacing_makes_no_difference(line):
    found = scan(f"{line}\n".encode(), frozenset({"a"}))
    assert [sample.value for sample in found.values("a")] == [1.0]
    assert set(found.values("a")[0].labels) == {"b"}


def test_a_name_that_begins_like_a_wanted_one_is_another_name():
    found = scan(b"ab 1\na:b 2\na_b 3\na 4\n", frozenset({"a"}))
    assert found.one("a") == 4.0
    assert found.skipped_lines == 0


def test_one_is_unknown_for_several_series_or_nan():
    found = scan(b'a{b="1"} 1\na{b="2"} 2\nc NaN\n', frozenset({"a", "c"}))
    assert found.one("a") is None
    assert found.one("c") is None
    assert found.one("absent") is None


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_never_raises_anything_but_its_own_verdict(body):
    try:
        scan(body, frozenset({"a"}))
    except NotExposition:
        return
