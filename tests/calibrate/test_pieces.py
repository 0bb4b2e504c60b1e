"""The small pure parts: workload, steady state, wire, counters, environment."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import EngineType, PodReading, SchedulerReading
from crossover.calibrate import wire
from crossover.calibrate.contract import Route
from crossover.calibrate.counters import rate_blocks, server_side, was_restarted
from crossover.calibrate.environment import Environment
from crossover.calibrate.prompts import prompt
from crossover.calibrate.steady import steady
from crossover.calibrate.workload import Workload, WorkloadError

# -- workload ----------------------------------------------------------------------------------------------------------


def test_quantiles_are_met_by_what_is_drawn():
    workload = Workload.of_quantiles([(0.5, 100), (1.0, 300)], [(0.1, 20), (0.9, 200)])
    outputs = sorted(wanted for _, wanted in workload.pairs)
    assert outputs[round(0.1 * len(outputs))] == pytest.approx(20, abs=2)
    assert outputs[round(0.9 * len(outputs)) - 1] == pytest.approx(200, abs=2)
    assert max(given for given, _ in workload.pairs) == pytest.approx(300, abs=2)


def test_context_counts_requests_by_the_time_they_run():
    """Two kinds: 10 tokens out after 100 in, 990 out after 500 in. Nearly always the long one runs."""
    workload = Workload(((100, 10), (500, 990)))
    assert workload.context_tokens == pytest.approx((105 * 10 + 995 * 990) / 1000)
    assert Workload.fixed(100, 200).context_tokens == 200


@pytest.mark.parametrize(
    "header",
    ["input_tokens,output_tokens", "t_s,Input_Tokens,Output_Tokens", "TIMESTAMP,ContextTokens,GeneratedTokens"],
)
def test_columns_of_public_traces(header):
    width = header.count(",") + 1
    line = ",".join(["0", "374", "44"][-width:])
    assert Workload.of_trace(f"{header}\n{line}\n").pairs == ((374, 44),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "columns input_tokens and output_tokens"),
        ("input_tokens,output_tokens\n1,x\n", "line 2"),
        ("input_tokens,output_tokens\n0,1\n", "no requests"),
        ("", "columns"),
    ],
)
def test_a_trace_that_cannot_be_used_says_why(text, says):
    with pytest.raises(WorkloadError, match=says):
        Workload.of_trace(text)


@pytest.mark.parametrize("pair", [(0, 10), (10, 1)])
def test_lengths_that_measure_nothing_are_refused(pair):
    with pytest.raises(WorkloadError):
        Workload.fixed(*pair)


@given(words=st.integers(2, 400), seed=st.integers(0, 1000))
def test_prompts_have_the_length_asked_for_and_never_the_same_beginning(words, seed):
    draw = random.Random(seed)
    one, two = prompt(words, draw), prompt(words, draw)
    assert abs(len(one.split()) - words) <= 1
    assert one.split()[0] != two.split()[0]


# -- steady state ------------------------------------------------------------------------------------------------------


def test_the_beginning_is_cut_off():
    draw = random.Random(1)
    blocks = [20.0, 40.0, 60.0, 80.0] + [100 + draw.gauss(0, 1) for _ in range(30)]
    found = steady(blocks)
    assert 4 <= found.start <= 8
    assert found.mean == pytest.approx(100, abs=1)


def test_the_error_is_that_of_the_mean():
    """Over many draws the true mean lies within two of the errors told nine times in ten or more."""
    inside = 0
    for seed in range(200):
        draw = random.Random(seed)
        found = steady([100 + draw.gauss(0, 5) for _ in range(40)])
        inside += abs(found.mean - 100) <= 2 * found.relative_error * found.mean
    assert inside >= 180


def test_neighbours_that_agree_make_the_error_larger():
    draw = random.Random(3)
    independent = [draw.gauss(100, 5) for _ in range(60)]
    slow = [sum(independent[max(0, place - 5) : place + 1]) / min(6, place + 1) for place in range(60)]
    assert steady(slow).relative_error > 1.5 * (5 / 6**0.5) / 60**0.5 / 100


@pytest.mark.parametrize("blocks", [[], [1.0] * 5, [0.0] * 20])
def test_too_little_is_not_steady(blocks):
    assert steady(blocks) is None


# -- wire --------------------------------------------------------------------------------------------------------------


def test_usage_of_every_route():
    chat = [b'{"choices":[]}', b'{"usage":{"prompt_tokens":7,"completion_tokens":9}}']
    assert (wire.usage(chat).input_tokens, wire.usage(chat).output_tokens) == (7, 9)
    native = [b'{"text":"","meta_info":{"prompt_tokens":7,"completion_tokens":9,"spec_verify_ct":4}}']
    assert wire.usage(native).verify_steps == 4
    assert wire.usage([b'{"error":{"message":"x"}}']).failed
    assert wire.usage([b"not json", b"[]", b'{"usage":{"completion_tokens":-1}}']).output_tokens is None


def test_events_of_a_stream():
    assert wire.event(b'data: {"a":1}\r') == b'{"a":1}'
    assert wire.event(b"data:[DONE]") is None
    assert wire.event(b": ping") is None


def test_the_native_route_is_the_engines_own():
    assert wire.resolved(Route.AUTO, EngineType.SGLANG) is Route.GENERATE
    assert wire.resolved(Route.AUTO, EngineType.VLLM) is Route.COMPLETIONS
    assert wire.resolved(Route.CHAT, EngineType.SGLANG) is Route.CHAT
    body = wire.body(Route.CHAT, "m", "hello", 5, stream=True)
    assert body["messages"][0]["content"] == "hello"
    assert body["stream_options"] == {"include_usage": True}


# -- counters ----------------------------------------------------------------------------------------------------------


def reading(at, *schedulers):
    return PodReading(EngineType.VLLM, None, "/metrics", at, tuple(schedulers))


def scheduler(name="0", **values):
    return SchedulerReading(name, **values)


def test_ranks_are_summed_and_one_unknown_makes_the_sum_unknown():
    both = [
        reading(at, scheduler("0", output_tokens_total=10 * at), scheduler("1", output_tokens_total=30 * at))
        for at in (0, 5)
    ]
    assert server_side(both, 0, 5).tokens_per_second == 40
    one = [reading(at, scheduler("0", output_tokens_total=10 * at), scheduler("1")) for at in (0, 5)]
    assert server_side(one, 0, 5).tokens_per_second is None


def test_a_counter_that_fell_is_a_restart_not_a_rate():
    readings = [reading(0, scheduler(output_tokens_total=100)), reading(5, scheduler(output_tokens_total=20))]
    assert was_restarted(readings)
    assert server_side(readings, 0, 5).tokens_per_second is None
    assert rate_blocks(readings) == []


def test_a_draft_length_that_changed_is_seen():
    steps = [(0, 0), (100, 300), (200, 400)]
    mixed = [
        reading(at, scheduler(drafts_total=float(drafts), draft_tokens_total=float(tokens), draft_tokens=3.0))
        for at, (drafts, tokens) in enumerate(steps)
    ]
    assert not server_side(mixed[:2], 0, 9).draft_changed
    assert server_side([mixed[0], mixed[2]], 0, 9).draft_tokens == 2
    shown = [reading(at, scheduler(draft_tokens=draft)) for at, draft in enumerate((3, 3, 0, 3, 0, 0, 3))]
    assert server_side(shown, 0, 9).draft_changed


# -- environment -------------------------------------------------------------------------------------------------------


def test_what_makes_points_stale():
    here = Environment(image="a:1", engine_version="1", gpu="8 x H100", arguments=("--tp", "4"))
    assert here.differs(here) == ()
    assert here.differs(Environment(image="a:2", engine_version="1", arguments=("--tp", "8"))) == ("image", "arguments")
    assert here.differs(Environment()) == (), "what is not told has not changed"
    assert here.fingerprint == Environment(**{f: getattr(here, f) for f in here.__slots__}).fingerprint
    assert here.fingerprint != Environment(image="a:2").fingerprint
