"""Whatever a server says, an engine reads it, says unknown, or names the fault: it never raises and never makes numbers up."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.api.fleet import PodReading
from crossover.engines import ENGINES
from crossover.engines.contract import Answer

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"
PAGES = {path.name: path.read_bytes() for path in sorted(METRICS.glob("*.prom")) if path.stat().st_size < 70_000}
DOCUMENTS = {
    path.name: json.loads(path.read_text()) for path in sorted(METRICS.glob("*.json")) if "server_info" not in path.name
}
DESCRIPTIONS = {path.name: json.loads(path.read_text()) for path in sorted(METRICS.glob("*server_info*.json"))}
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, "x", "", [], {}, [None], {"a": 1}]),
)


def is_sane(value):
    return value is None or (math.isfinite(value) and value >= 0)


def check(reading):
    assert isinstance(reading, PodReading)
    assert (reading.fault is None) == bool(reading.schedulers)
    for scheduler in reading.schedulers:
        for name in ("running_requests", "waiting_requests", "max_running_requests", "kv_usage", "draft_tokens"):
            assert is_sane(getattr(scheduler, name)), name


def leaves(document, path=()):
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key)
            yield from leaves(value, (*path, key))
    elif isinstance(document, list):
        for position, value in enumerate(document):
            yield (*path, position)
            yield from leaves(value, (*path, position))


def changed(document, path, value):
    """A copy with one place replaced."""
    if not path:
        return value
    head, *rest = path
    copy = list(document) if isinstance(document, list) else dict(document)
    copy[head] = changed(document[head], rest, value)
    return copy


@given(st.data())
@settings(max_examples=300)
def test_a_page_with_lines_broken_lost_or_cut(data):
    body = PAGES[data.draw(st.sampled_from(sorted(PAGES)))]
    lines = body.split(b"\n")
    wanted = [n for n, line in enumerate(lines) if line and line[:1] != b"#" and b"_bucket" not in line]
    for place in data.draw(st.lists(st.sampled_from(wanted), max_size=6)):
        text = data.draw(st.sampled_from([b"NaN", b"-1", b"+Inf", b"x", b"", b"1e400", b"0"]))
        lines[place] = lines[place].rpartition(b" ")[0] + b" " + text
    end = data.draw(st.integers(0, 40))
    broken = b"\n".join(lines)[: None if end == 0 else -end]
    for engine in ENGINES.values():
        first = engine.read([Answer(engine.load_paths(None)[0][-1], 200, body)], 0.0, None)
        check(engine.read([Answer(engine.load_paths(None)[0][-1], 200, broken)], 5.0, first))
        engine.recognises(Answer("/metrics", 200, broken))


@given(st.data())
@settings(max_examples=300)
def test_a_json_document_with_any_place_replaced(data):
    document = DOCUMENTS[data.draw(st.sampled_from(sorted(DOCUMENTS)))]
    places = list(leaves(document)) or [()]
    broken = changed(document, data.draw(st.sampled_from(places)), data.draw(junk))
    body = json.dumps(broken).encode()
    for engine in ENGINES.values():
        for path in ("/v1/loads", "/metrics", "/prometheus/metrics"):
            check(engine.read([Answer(path, 200, body)], 0.0, None))
            engine.recognises(Answer(path, 200, body))


@given(st.data())
@settings(max_examples=300)
def test_a_description_with_any_place_replaced(data):
    document = DESCRIPTIONS[data.draw(st.sampled_from(sorted(DESCRIPTIONS)))]
    broken = changed(document, data.draw(st.sampled_from(list(leaves(document)))), data.draw(junk))
    answer = Answer("/server_info", 200, json.dumps(broken).encode())
    for engine in ENGINES.values():
        told = engine.capability(answer, None)
        assert told is None or is_sane(told.max_running_requests)
        engine.recognises(answer)
        if engine.running_cap is not None:
            state = engine.running_cap.state(answer)
            assert state is None or min(state.in_force) >= 1


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"[1]", b"[[]]", b'[{"numActiveRequests": "x"}]']
)
def test_documents_made_to_break_a_reader(body):
    for engine in ENGINES.values():
        for path in ("/v1/loads", "/metrics", "/server_info", "/version"):
            check(engine.read([Answer(path, 200, body)], 0.0, None))
            engine.recognises(Answer(path, 200, body))
            engine.capability(Answer(path, 200, body), None)
