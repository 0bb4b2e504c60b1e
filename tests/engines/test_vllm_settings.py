"""vLLM: the speculative configuration in every form the manifests use; what the engine would refuse is refused first."""

import json
import shlex
from itertools import pairwise

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import ScheduleDialect
from crossover.engines.contract import Refusal, WantedSpeculation
from crossover.engines.vllm_place import find
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


PATH = "/config/vllm.yaml"
FILES = {PATH: yaml.safe_dump({"max-num-seqs": 256, "speculative-config": EAGLE})}
TEXT_FILES = {PATH: yaml.safe_dump({"max-num-seqs": 256, "speculative_config": TEXT})}
DOTTED_WORDS = (
    "--speculative-config.method eagle3 --speculative-config.model=/m/draft "
    "--speculative-config.num-speculative-tokens=3"
)
IN_FILE = container("--config", PATH, "--port=1")


def able(version="0.33.0", item=None, files=FILES):
    return capability(version, item if item is not None else FORMS["pair"], files)


def with_file(files, done):
    return files if done.file is None else {**files, done.file.mount_path: done.file.content}


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


# -- a YAML of options in a ConfigMap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [FILES, TEXT_FILES])
def test_a_config_file_from_a_config_map_is_read_and_a_copy_is_edited(files):
    assert read(IN_FILE, files) == read(FORMS["pair"], {})
    assert able(item=IN_FILE, files=files).max_running_requests == 256
    done = edit(IN_FILE, files, WantedSpeculation(True, schedule=SCHEDULE), able(item=IN_FILE, files=files), {})
    after, known = applied(IN_FILE, done), with_file(files, done)
    assert read(after, known).schedule == SCHEDULE
    assert yaml.safe_load(done.file.content)["max-num-seqs"] == 256
    assert edit(after, known, WantedSpeculation(True, schedule=SCHEDULE), able(item=after, files=known), {}).is_empty


@pytest.mark.parametrize("item", [IN_FILE, container("--config", PATH, "--speculative-config", TEXT)])
def test_off_takes_it_out_of_the_file_too_and_on_names_the_users_own_file_again(item):
    off = edit(item, FILES, WantedSpeculation(False), able(item=item), {})
    gone, known = applied(item, off), with_file(FILES, off)
    assert not read(gone, known).enabled
    assert edit(gone, known, WantedSpeculation(False), able(item=gone, files=known), {}).is_empty
    back = applied(gone, edit(gone, known, WantedSpeculation(True), able(item=gone, files=known), off.removed))
    assert back["args"] == item["args"]


def test_the_command_line_wins_over_the_file():
    item = container("--config", PATH, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 6}')
    assert read(item, FILES).draft_tokens == 6
    done = edit(item, FILES, WantedSpeculation(True, draft_tokens=4), able(item=item), {})
    assert done.file is None


def test_behind_the_command_line_a_file_that_cannot_be_read_lets_nobody_say_off():
    item = container("--config", "/elsewhere.yaml", "--speculative-config", TEXT)
    assert read(item, {}).draft_tokens == 3
    with pytest.raises(Refusal) as refused:
        edit(item, {}, WantedSpeculation(False), able(item=item), {})
    assert refused.value.code == "ConfigFile"


# -- other forms --------------------------------------------------------------------------------------------------------------


def test_in_kserves_args_the_second_shell_pass_destroys_the_json():
    item = {**kserve(""), "args": ["--speculative-config", TEXT]}
    with pytest.raises(Refusal) as refused:
        read(item, {})
    assert refused.value.code == "KServeQuoting"
    assert "VLLM_ADDITIONAL_ARGS" in refused.value.fix


def test_short_flags_beside_the_json_are_merged_and_the_same_key_in_both_stops_the_server():
    assert read(container("--speculative-config", '{"method": "ngram"}', "--spec-tokens=4"), {}).draft_tokens == 4
    with pytest.raises(Refusal, match="both"):
        read(container("--speculative-config", TEXT, "--spec-tokens=4"), {})
    with pytest.raises(Refusal, match="dotted"):
        read(container("--speculative-config", TEXT, "--speculative-config.method=ngram"), {})


def test_another_length_changes_one_word_where_each_key_has_its_own():
    item = FORMS["spec flags"]
    done = edit(item, {}, WantedSpeculation(True, draft_tokens=5), able(item=item), {})
    assert done.args == ("--spec-method", "eagle3", "--spec-model", "/m/draft", "--spec-tokens", "5")


def test_a_plain_shell_string_is_edited_as_far_as_it_needs_no_quotes():
    item = container(command=["sh", "-c", f"exec vllm serve /m {DOTTED_WORDS} --port 1"])
    assert read(item, {}).draft_tokens == 3
    less = edit(item, {}, WantedSpeculation(True, draft_tokens=2), able(item=item), {})
    assert read(applied(item, less), {}).draft_tokens == 2
    off = edit(item, {}, WantedSpeculation(False), able(item=item), {})
    assert off.command == ("sh", "-c", "exec vllm serve /m --port 1")
    with pytest.raises(Refusal) as refused:
        edit(item, {}, WantedSpeculation(True, schedule=SCHEDULE), able(item=item), {})
    assert refused.value.code == "ShellCommand"


def test_on_again_with_another_length():
    item = FORMS["equals"]
    off = edit(item, {}, WantedSpeculation(False), able(item=item), {})
    gone = applied(item, off)
    on = edit(gone, {}, WantedSpeculation(True, draft_tokens=2), able(item=gone), off.removed)
    assert read(applied(gone, on), {}).draft_tokens == 2


# -- what the engine itself would say (its validator's rules as its documentation gives them, written a second time) ----------


def engine_accepts(config):
    most, ranges = config["num_speculative_tokens"], config[SCHEDULE_KEY]
    assert most > 0
    assert isinstance(ranges, list)
    assert ranges[0][0] == 1
    end_before = 0
    for start, end, draft in ranges:
        assert start > end_before
        assert end >= start
        assert 0 <= draft <= most
        end_before = end


anything = st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 8)), max_size=6)


@given(anything, st.sampled_from(sorted(FORMS)), st.sampled_from([None, 100]))
def test_whatever_is_rendered_passes_the_engines_validator(schedule, form, limit):
    item = FORMS[form]
    if limit is not None and form != "kserve":
        item = {**item, "args": [*item["args"], f"--max-num-seqs={limit}"]}
    try:
        done = edit(item, {}, WantedSpeculation(True, schedule=tuple(schedule)), able(item=item), {})
    except Refusal:
        return
    if schedule:
        engine_accepts(find(applied(item, done), {}).config)


configs = st.fixed_dictionaries(
    {"method": st.sampled_from(["ngram", "eagle3", "mtp", "suffix"]), "num_speculative_tokens": st.integers(1, 7)},
    optional={
        "model": st.just("/m/draft"),
        SCHEDULE_KEY: st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=4).map(
            lambda widths: [
                [1 + sum(w for w, _ in widths[:n]), sum(w for w, _ in widths[: n + 1]), draft]
                for n, (_, draft) in enumerate(widths)
            ]
        ),
    },
)


@given(configs, st.sampled_from(["pair", "equals", "short", "variable", "kserve", "file", "text in file"]))
def test_edit_towards_what_is_read_changes_nothing(config, form):
    text = json.dumps(config)
    item = {
        "pair": container("--speculative-config", text),
        "equals": container(f"--speculative-config={text}"),
        "short": container("-sc", text),
        "variable": container("--speculative-config=$(SPEC)", env=[{"name": "SPEC", "value": text}]),
        "kserve": kserve(f"--speculative-config '{text}'"),
    }.get(form, IN_FILE)
    files = {PATH: yaml.safe_dump({"speculative-config": text if form == "text in file" else config})}
    settings = read(item, files)
    length = None if settings.schedule else settings.draft_tokens
    wanted = WantedSpeculation(settings.enabled, draft_tokens=length, schedule=settings.schedule)
    assert edit(item, files, wanted, able(item=item, files=files), {}).is_empty


# -- versions and traps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "config", "more", "words"),
    [
        ("0.24.0", {}, {}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("0.24.0", {}, {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}, None),
        ("0.26.0", {}, {"args": ["-dp", "2"]}, "deadlock"),
        ("0.27.0", {}, {"args": ["--data-parallel-size=2"]}, "drops the schedule"),
        ("0.33.0", {"disable_by_batch_size": 32}, {}, "removed in 0.17.0"),
        ("0.33.0", {"method": "deepseek_mtp"}, {}, None),
        ("0.33.0", {"method": "extract_hidden_states"}, {}, "drops the schedule"),
        ("0.33.0", {}, {"args": ["--data-parallel-size", "1"]}, None),
    ],
)
def test_what_the_engine_would_do_with_a_schedule_by_version(version, config, more, words):
    base = container("--speculative-config", json.dumps({**EAGLE, **config}))
    item = {**base, **more, "args": [*base["args"], *more.get("args", [])]}
    told = able(version, item)
    assert (told.schedule_refusal is None) == (words is None)
    if words is not None:
        assert words in told.schedule_refusal


@pytest.mark.parametrize(("version", "adapts"), [("0.9.2", True), ("0.10.2", False), ("0.16.0", False)])
def test_disable_by_batch_size_worked_in_v0_and_was_read_by_nothing_afterwards(version, adapts):
    item = container("--speculative-config", json.dumps({**EAGLE, "disable_by_batch_size": 32}))
    assert able(version, item).adapts_by_itself is adapts


def test_a_k_above_the_maximum_is_clamped_silently_and_read_as_what_is_in_force():
    item = container("--speculative-config", json.dumps({**EAGLE, SCHEDULE_KEY: [[1, 8, 9], ["9", "64", "1"]]}))
    assert read(item, {}).schedule == ((1, 3), (9, 1))


@pytest.mark.parametrize("table", [{"1": 3}, [[1, 2]], "x", [["a", 1, 2]]])
def test_tables_of_another_shape_are_no_schedule(table):
    assert read(container("--speculative-config", json.dumps({**EAGLE, SCHEDULE_KEY: table})), {}).schedule == ()


def test_never_speculating_is_no_schedule_and_0_no_length():
    with pytest.raises(Refusal, match="greater than 0"):
        render(((1, 0),), able())
    with pytest.raises(Refusal) as refused:
        edit(FORMS["pair"], {}, WantedSpeculation(True, draft_tokens=0), able(), {})
    assert refused.value.code == "InvalidDraftLength"


@pytest.mark.parametrize("name", ["/m/llama-eagle3", "/m/EAGLE-llama", "/m/x-dflash", "/m/DSpark", "/m/tiny"])
def test_the_method_is_inferred_from_the_drafts_name(name):
    expected = {"/m/llama-eagle3": "eagle3", "/m/EAGLE-llama": "eagle", "/m/x-dflash": "dflash", "/m/DSpark": "dspark"}
    item = container("--speculative-config", json.dumps({"model": name, "num_speculative_tokens": 2}))
    assert read(item, {}).algorithm == expected.get(name, "draft_model")
