"""vLLM: the speculative configuration in every form the manifests use; what the engine would refuse is refused first."""

import json
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import ScheduleDialect
from crossover.engines.contract import Refusal, WantedSpeculation
from crossover.engines.vllm_settings import SCHEDULE_KEY, capability, edit, read, render

EAGLE = {"method": "eagle3", "model": "/m/draft", "num_speculative_tokens": 3}
TEXT = json.dumps(EAGLE)
SCHEDULE = ((1, 3), (33, 1), (65, 0))


def container(*args, command=("vllm", "serve", "/m"), env=()):
    return {"name": "vllm", "command": list(command), "args": list(args), "env": list(env)}


def kserve(value):
    script = 'eval "exec vllm serve /m ${VLLM_ADDITIONAL_ARGS} $@"'
    return container(command=["/bin/bash", "-c", script], env=[{"name": "VLLM_ADDITIONAL_ARGS", "value": value}])


FORMS = {
    "pair": container("--speculative-config", TEXT),
    "equals": container(f"--speculative-config={TEXT}"),
    "underscore": container("--speculative_config", TEXT),
    "short": container("-sc", TEXT),
    "dotted": container(
        "--speculative-config.method",
        "eagle3",
        "--speculative-config.model=/m/draft",
        "--speculative-config.num_speculative_tokens",
        "3",
    ),
    "spec flags": container("--spec-method", "eagle3", "--spec-model", "/m/draft", "--spec-tokens", "3"),
    "command only": container(command=["vllm", "serve", "/m", "--speculative-config", TEXT]),
    "variable": container("--speculative-config=$(SPEC)", env=[{"name": "SPEC", "value": TEXT}]),
    "kserve": kserve(f"--speculative-config '{TEXT}'"),
}


def able(version="0.33.0", item=None):
    return capability(version, item if item is not None else FORMS["pair"])


def applied(item, done):
    new = {**item}
    for field in ("command", "args"):
        if getattr(done, field) is not None:
            new[field] = list(getattr(done, field))
    if done.env:
        new["env"] = [{"name": name, "value": value} for name, value in done.env.items()]
    return new


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form):
    settings = read(FORMS[form], {})
    assert (settings.enabled, settings.algorithm, settings.draft_tokens) == (True, "eagle3", 3)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_a_schedule_once(form):
    item = FORMS[form]
    wanted = WantedSpeculation(True, schedule=SCHEDULE)
    after = applied(item, edit(item, {}, wanted, able(item=item), {}))
    assert read(after, {}).schedule == SCHEDULE
    assert edit(after, {}, wanted, able(item=after), {}).is_empty


@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_off_by_leaving_speculation_out_and_comes_back_as_it_was(form):
    item = FORMS[form]
    off = edit(item, {}, WantedSpeculation(False), able(item=item), {})
    without = applied(item, off)
    assert not read(without, {}).enabled
    assert edit(without, {}, WantedSpeculation(False), able(item=without), {}).is_empty
    back = applied(without, edit(without, {}, WantedSpeculation(True), able(item=without), off.removed))
    assert read(back, {}) == read(item, {})


@pytest.mark.parametrize("form", FORMS)
def test_editing_towards_what_is_there_changes_nothing(form):
    item = FORMS[form]
    assert edit(item, {}, WantedSpeculation(True, draft_tokens=3), able(item=item), {}).is_empty
    assert edit(item, {}, WantedSpeculation(True), able(item=item), {}).is_empty


def test_another_draft_length_drops_the_schedule():
    item = container("--speculative-config", json.dumps({**EAGLE, SCHEDULE_KEY: [[1, 32, 3], [33, 64, 0]]}))
    after = applied(item, edit(item, {}, WantedSpeculation(True, draft_tokens=2), able(item=item), {}))
    assert (read(after, {}).draft_tokens, read(after, {}).schedule) == (2, ())


def test_other_arguments_stay_as_they_are():
    item = container("--max-model-len", "8192", "--speculative-config", TEXT, "--port=8000")
    off = edit(item, {}, WantedSpeculation(False), able(item=item), {})
    assert off.args == ("--max-model-len", "8192", "--port=8000")


def test_kserves_second_shell_pass_needs_quotes():
    item = FORMS["kserve"]
    done = edit(item, {}, WantedSpeculation(True, draft_tokens=5), able(item=item), {})
    words = shlex.split(done.env["VLLM_ADDITIONAL_ARGS"])
    text = (
        next(word for word in words if "{" in word).partition("=")[2] or words[words.index("--speculative-config") + 1]
    )
    assert json.loads(text)["num_speculative_tokens"] == 5


def test_keys_with_dashes_are_keys_with_underscores():
    item = container("--speculative-config", '{"num-speculative-tokens": 4, "method": "ngram"}')
    assert read(item, {}).draft_tokens == 4


def test_the_last_duplicate_wins():
    item = container(
        "--speculative-config", TEXT, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 6}'
    )
    assert read(item, {}).draft_tokens == 6


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (container(command=["bash", "-c", f"vllm serve /m --speculative-config '{TEXT}'"]), "ShellCommand"),
        (container("--config", "/etc/vllm.yaml"), "ConfigFile"),
        (container("--speculative-config", "{broken"), "InvalidConfig"),
        (container("--speculative-config=$(SPEC)", env=[{"name": "SPEC", "valueFrom": {}}]), "VariableNotReadable"),
    ],
)
def test_what_cannot_be_read_safely_is_refused_with_the_fix(item, code):
    with pytest.raises(Refusal) as refused:
        read(item, {})
    assert refused.value.code == code
    assert refused.value.fix


def test_on_without_anything_to_put_back_is_refused():
    with pytest.raises(Refusal, match="none was taken out"):
        edit(container("--port=1"), {}, WantedSpeculation(True), able(), {})


@pytest.mark.parametrize(
    ("version", "changed", "args", "words"),
    [
        ("0.23.0", {}, (), "0.24.0"),
        ("0.25.1", {}, ("--data-parallel-size", "2"), "deadlock"),
        ("0.33.0", {}, ("--data-parallel-size=2",), "drops the schedule"),
        ("0.33.0", {"method": "suffix"}, (), "method suffix"),
        ("0.33.0", {"enable_adaptive_verification": True}, (), "adaptive verification"),
        (None, {}, (), "version"),
    ],
)
def test_a_server_that_would_ignore_or_break_on_a_schedule_is_told_apart(version, changed, args, words):
    item = container("--speculative-config", json.dumps({**EAGLE, **changed}), *args)
    told = capability(version, item)
    assert told is not None
    assert told.schedule_dialect is None
    assert words in told.schedule_refusal
    with pytest.raises(Refusal) as refused:
        render(SCHEDULE, told)
    assert refused.value.code == "ScheduleUnsupported"


def test_adaptive_verification_is_left_alone():
    told = able(item=container("--speculative-config", json.dumps({**EAGLE, "enable_adaptive_verification": True})))
    assert told.adapts_by_itself


def test_the_limit_is_the_smaller_of_the_two_arguments():
    item = container("--speculative-config", TEXT, "--max-num-seqs", "256", "--max-num-active-seqs=128")
    assert able(item=item).max_running_requests == 128
    assert able().max_running_requests is None


@pytest.mark.parametrize("schedule", [(), ((2, 3),), ((1, 3), (1, 0)), ((1, 3), (9, -1)), ((9, 1), (1, 3))])
def test_the_validators_rules_are_applied_before_minutes_of_loading(schedule):
    with pytest.raises(Refusal) as refused:
        render(schedule, able())
    assert refused.value.code == "InvalidSchedule"


schedules = st.lists(st.tuples(st.integers(2, 512), st.integers(0, 7)), max_size=6, unique_by=lambda pair: pair[0]).map(
    lambda pairs: ((1, 7), *sorted(pairs))
)


@given(schedules)
def test_rendered_ranges_look_up_as_the_schedule(schedule):
    """vLLM: inclusive ranges, gaps and the tail carry the previous length forward."""
    ranges = json.loads(render(schedule, able()))
    assert ranges[0][0] == 1
    assert all(start <= end for start, end, _ in ranges)
    assert all(first[1] < second[0] for first, second in pairwise(ranges))

    def looked_up(batch):
        last = 0
        for start, _, draft in ranges:
            if start <= batch:
                last = draft
        return last

    for batch in (*range(1, 530, 7), *(key for key, _ in schedule)):
        assert looked_up(batch) == [draft for key, draft in schedule if key <= batch][-1]


def test_the_dialect_is_vllms():
    assert able().schedule_dialect is ScheduleDialect.VLLM_BATCH_SIZE_RANGES
    assert render(((1, 3), (65, 1), (129, 0)), able()) == "[[1,64,3],[65,128,1],[129,129,0]]"
