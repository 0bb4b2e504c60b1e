"""TensorRT-LLM: configuration in every form that can be changed, schedules in both meanings, refusals in its own terms."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import ScheduleDialect
from crossover.engines.contract import Refusal, WantedSpeculation
from crossover.engines.tensorrt_llm_place import OVERRIDE_VARIABLE
from crossover.engines.tensorrt_llm_settings import FILE, capability, edit, read, render

SPEC = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/m/draft"}
DOCUMENT = {"enable_iter_perf_stats": True, "max_batch_size": 256, "speculative_config": SPEC}
PATH = "/config/llm.yaml"
FILES = {PATH: yaml.safe_dump(DOCUMENT)}


def serve(*args, **more):
    return {"name": "trt", "command": ["trtllm-serve", "/m"], "args": ["--host=0.0.0.0", *args], "env": [], **more}


def dynamo(*args, override=None):
    env = [] if override is None else [{"name": OVERRIDE_VARIABLE, "value": json.dumps(override)}]
    command = ["python3", "-m", "dynamo.trtllm"]
    return {"name": "trt", "command": command, "args": [f"--extra-engine-args={PATH}", *args], "env": env}


def dynamo_flags(*args):
    return {"name": "trt", "command": ["python3", "-m", "dynamo.trtllm"], "args": list(args), "env": []}


def dynamo_variable():
    return {
        "name": "trt",
        "command": ["python3", "-m", "dynamo.trtllm"],
        "args": ["--model=/m"],
        "env": [{"name": "DYN_TRTLLM_EXTRA_ENGINE_ARGS", "value": PATH}],
    }


FORMS = {
    "dynamo variable": dynamo_variable(),
    "dynamo flags": dynamo_flags(
        "--trtllm.speculative_config.decoding_type",
        "Eagle3",
        "--trtllm.speculative_config.max_draft_len=3",
        "--trtllm.speculative_config.speculative_model",
        "/m/draft",
        "--trtllm.max_batch_size",
        "256",
    ),
    "dynamo flags over a yaml": dynamo("--trtllm.speculative_config.max_draft_len", "3"),
    "set alone": serve(
        "--set=speculative_config.decoding_type=Eagle3",
        "--set",
        "speculative_config.max_draft_len=3",
        "--set=speculative_config.speculative_model=/m/draft",
        "--set",
        "max_batch_size=256",
    ),
    "command only": {
        "name": "trt",
        "command": ["trtllm-serve", "/m", f"--config={PATH}"],
        "env": [],
    },
    "config": serve(f"--config={PATH}"),
    "extra options": serve("--extra_llm_api_options", PATH),
    "set": serve(f"--config={PATH}", "--set", "speculative_config.max_draft_len=3"),
    "dynamo": dynamo(),
    "dynamo override": dynamo(override={"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}),
    "dynamo flag": dynamo("--override-engine-args", '{"max_batch_size": 128}'),
}
VERSION = "1.3.0rc29"


def able(item=None, version=VERSION, files=FILES):
    return capability(version, item if item is not None else FORMS["config"], files)


def applied(item, files, done):
    new, known = {**item}, dict(files)
    for field in ("command", "args"):
        if getattr(done, field) is not None:
            new[field] = list(getattr(done, field))
    env = {entry["name"]: entry["value"] for entry in item["env"]}
    for name, value in done.env.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    new["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if done.file is not None:
        known[done.file.mount_path] = done.file.content
    return new, known


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form):
    settings = read(FORMS[form], FILES)
    assert (settings.enabled, settings.algorithm, settings.draft_tokens) == (True, "EAGLE3", 3)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_another_length_once(form):
    item, wanted = FORMS[form], WantedSpeculation(True, draft_tokens=2)
    after, files = applied(item, FILES, edit(item, FILES, wanted, able(item), {}))
    assert read(after, files).draft_tokens == 2
    assert edit(after, files, wanted, able(after, files=files), {}).is_empty


@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_off_by_leaving_speculation_out_and_comes_back(form):
    item = FORMS[form]
    off = edit(item, FILES, WantedSpeculation(False), able(item), {})
    without, files = applied(item, FILES, off)
    assert not read(without, files).enabled
    assert edit(without, files, WantedSpeculation(False), able(without, files=files), {}).is_empty
    on = edit(without, files, WantedSpeculation(True), able(without, files=files), off.removed)
    back, files = applied(without, files, on)
    assert read(back, files) == read(item, FILES)


@pytest.mark.parametrize("form", FORMS)
def test_editing_towards_what_is_there_changes_nothing(form):
    item = FORMS[form]
    assert edit(item, FILES, WantedSpeculation(True, draft_tokens=3), able(item), {}).is_empty
    assert edit(item, FILES, WantedSpeculation(True), able(item), {}).is_empty


def test_the_users_own_config_map_is_not_written_a_copy_is_named_instead():
    done = edit(FORMS["config"], FILES, WantedSpeculation(False), able(), {})
    assert done.file is not None
    assert done.args == ("--host=0.0.0.0", f"--config={FILE}")
    assert yaml.safe_load(done.file.content) == {"enable_iter_perf_stats": True, "max_batch_size": 256}


def test_dynamos_override_is_the_least_intrusive_place():
    item = FORMS["dynamo override"]
    off = edit(item, FILES, WantedSpeculation(False), able(item), {})
    assert off.args is None
    assert off.file is None
    override = json.loads(off.env[OVERRIDE_VARIABLE])
    assert override == {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}, "speculative_config": None}
    less = edit(item, FILES, WantedSpeculation(True, draft_tokens=1), able(item), {})
    assert json.loads(less.env[OVERRIDE_VARIABLE])["speculative_config"] == {"max_draft_len": 1}


def test_the_old_name_of_the_length_is_kept():
    files = {PATH: yaml.safe_dump({"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3}})}
    item = FORMS["config"]
    done = edit(item, files, WantedSpeculation(True, draft_tokens=1), able(item, files=files), {})
    assert yaml.safe_load(done.file.content)["speculative_config"] == {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 1,
    }


def test_a_schedule_excludes_max_concurrency():
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": {**SPEC, "max_concurrency": 32}})}
    item = FORMS["config"]
    told = able(item, files=files)
    assert told.adapts_by_itself
    done = edit(item, files, WantedSpeculation(True, schedule=((1, 3), (33, 1))), told, {})
    config = yaml.safe_load(done.file.content)["speculative_config"]
    assert "max_concurrency" not in config
    assert config["draft_len_schedule"] == {32: 3, 256: 1}


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (serve(command=["bash", "-c", "cat > /tmp/x <<EOF\nEOF\ntrtllm-serve /m"], args=[]), "ShellCommand"),
        (serve("--config=/etc/elsewhere.yaml"), "ConfigNotReadable"),
        (serve(env=[{"name": "NIM_MODEL_PROFILE", "value": "x"}]), "NIMProfile"),
        (serve(command=["tritonserver"]), "TritonModelRepository"),
        (dynamo("--override-engine-args", "{broken"), "InvalidConfig"),
    ],
)
def test_what_cannot_be_changed_here_is_refused_with_the_fix(item, code):
    with pytest.raises(Refusal) as refused:
        read(item, FILES)
    assert refused.value.code == code
    assert refused.value.fix


def test_a_server_without_a_yaml_has_no_place_for_it():
    with pytest.raises(Refusal) as refused:
        edit(serve(), {}, WantedSpeculation(True), able(), {"speculative_config": SPEC})
    assert refused.value.code == "NoConfigFile"


# -- schedules -----------------------------------------------------------------------------------------------------------


def test_keys_are_lower_bounds_up_to_1_2_and_upper_bounds_from_1_3():
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": {**SPEC, "decoding_type": "NGram"}})}
    old, new = able(version="1.2.1", files=files), able(version=VERSION, files=files)
    assert old.schedule_dialect is ScheduleDialect.TENSORRT_LLM_LOWER_BOUND
    assert new.schedule_dialect is ScheduleDialect.TENSORRT_LLM_UPPER_BOUND
    assert yaml.safe_load(render(((1, 3), (33, 1)), old)) == {"draft_len_schedule": {1: 3, 33: 1}}
    assert yaml.safe_load(render(((1, 3), (33, 1)), new)) == {"draft_len_schedule": {32: 3, 256: 1}}


def test_zero_is_floored_at_1_where_it_is_not_known_to_be_safe():
    """A band of 0 silently collapses the acceptance of requests that live through it."""
    assert yaml.safe_load(render(((1, 3), (33, 0)), able())) == {"draft_len_schedule": {32: 3, 256: 1}}


@pytest.mark.parametrize(
    ("version", "changed", "words"),
    [
        ("1.2.1", {}, "ignores it"),
        ("1.2.1", {"decoding_type": "MTP"}, "ignores it"),
        (None, {}, "version"),
        (VERSION, {"decoding_type": "Medusa"}, "does not work with MEDUSA"),
        (VERSION, {"acceptance_window": 100}, "acceptance gate"),
    ],
)
def test_a_server_that_would_ignore_or_break_on_a_schedule_is_told_apart(version, changed, words):
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": {**SPEC, **changed}})}
    told = able(version=version, files=files)
    assert told.schedule_dialect is None
    assert words in told.schedule_refusal


def test_the_limit_counts_what_draft_tokens_take_of_the_token_budget():
    files = {PATH: yaml.safe_dump({**DOCUMENT, "max_num_tokens": 400})}
    assert able(files=files).max_running_requests == 100
    assert able().max_running_requests == 256


@pytest.mark.parametrize("schedule", [(), ((2, 3),), ((1, 3), (1, 1)), ((1, 3), (9, -1)), ((1, 1), (9, 3))])
def test_the_validators_rules_are_applied_before_the_start(schedule):
    with pytest.raises(Refusal) as refused:
        render(schedule, able())
    assert refused.value.code == "InvalidSchedule"


falling = st.lists(st.tuples(st.integers(2, 256), st.integers(1, 6)), max_size=5, unique_by=lambda pair: pair[0]).map(
    lambda pairs: (
        (1, 7),
        *zip(sorted(key for key, _ in pairs), sorted((d for _, d in pairs), reverse=True), strict=True),
    )
)


@given(falling)
def test_both_dialects_look_up_as_the_schedule(schedule):
    """1.2: the largest key not above the batch. 1.3: the smallest key not below it, off above all."""
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": {**SPEC, "decoding_type": "NGram"}})}
    lower = yaml.safe_load(render(schedule, able(version="1.2.1", files=files)))["draft_len_schedule"]
    upper = yaml.safe_load(render(schedule, able(files=files)))["draft_len_schedule"]
    for batch in range(1, 257):
        wanted = [draft for key, draft in schedule if key <= batch][-1]
        assert lower[max(key for key in lower if key <= batch)] == wanted
        assert upper[min(key for key in upper if key >= batch)] == wanted


# -- round trip: what is read, asked for again, changes nothing -------------------------------------------------------------

lengths = st.integers(1, 7)
tables = st.one_of(
    st.none(),
    st.builds(
        lambda first, rest: dict(zip([first, *(first + 1 + n for n in range(len(rest)))], [7, *rest], strict=True)),
        st.integers(2, 64),
        st.lists(st.integers(0, 6), max_size=4),
    ),
)


@st.composite
def containers(draw):
    """A container in one of the forms, and its files: with or without speculation, with or without a schedule."""
    spec = {"decoding_type": draw(st.sampled_from(["Eagle3", "MTP", "NGram"])), "max_draft_len": draw(lengths)}
    table = draw(tables)
    if table is not None:
        spec |= {"max_draft_len": 7, "draft_len_schedule": table}
    document = {"enable_iter_perf_stats": True}
    if draw(st.booleans()):
        document["max_batch_size"] = draw(st.sampled_from([64, 256]))
    form = draw(st.sampled_from(["config", "options", "dynamo", "override", "override over yaml", "set", "flags"]))
    in_yaml = form in ("config", "options", "dynamo") and draw(st.booleans())
    if in_yaml:
        document["speculative_config"] = spec
    files = {PATH: yaml.safe_dump(document)}
    if form in ("config", "options"):
        return serve(*([f"--config={PATH}"] if form == "config" else ["--extra_llm_api_options", PATH])), files
    if form == "dynamo":
        return dynamo(), files
    if form.startswith("override"):
        item = dynamo(override={"speculative_config": spec})
        return (item, files) if form == "override over yaml" else ({**item, "args": ["--model=/m"]}, files)
    prefix = "--set={}={}" if form == "set" else "--trtllm.{}={}"
    spec.pop("draft_len_schedule", None)
    flags = [prefix.format(f"speculative_config.{key}", value) for key, value in spec.items()]
    item = serve(f"--config={PATH}", *flags) if form == "set" else dynamo(*flags)
    return item, files


@given(containers())
def test_edit_towards_what_is_read_changes_nothing(made):
    item, files = made
    settings = read(item, files)
    told = able(item, files=files)
    length = None if settings.schedule else settings.draft_tokens
    wanted = WantedSpeculation(settings.enabled, draft_tokens=length, schedule=settings.schedule)
    assert edit(item, files, wanted, told, {}).is_empty


@given(containers(), lengths)
def test_what_is_edited_is_read_back_and_only_that_has_changed(made, length):
    item, files = made
    if not read(item, files).enabled:
        return
    done = edit(item, files, WantedSpeculation(True, draft_tokens=length), able(item, files=files), {})
    after, known = applied(item, files, done)
    settings = read(after, known)
    assert (settings.draft_tokens, settings.schedule) == (length, ())
    assert settings.algorithm == read(item, files).algorithm
    off = edit(after, known, WantedSpeculation(False), able(after, files=known), {})
    gone, rest = applied(after, known, off)
    assert not read(gone, rest).enabled
    assert other_flags(gone) == other_flags(item)


def other_flags(item):
    """All flags but those of speculation; the YAML is another file, named by the same flag."""
    flags = [word.partition("=")[0] for word in item["args"] if word.startswith("--")]
    return [flag for flag in flags if flag != "--set" and "speculative_config" not in flag]


# -- what the engine itself would say (the rules as its documentation gives them, written a second time) --------------------


def engine_accepts(config, dialect):
    """Raises like the validator: strict keys are not checked here, the table is."""
    table = config["draft_len_schedule"]
    assert config["max_draft_len"] > 0
    assert all(isinstance(key, int) and key >= 1 for key in table)
    assert all(0 <= value <= config["max_draft_len"] for value in table.values())
    assert table[min(table)] == config["max_draft_len"]
    assert "max_concurrency" not in config
    if dialect is ScheduleDialect.TENSORRT_LLM_LOWER_BOUND:
        assert 1 in table


anything = st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 8)), max_size=6)


@given(anything, st.sampled_from(["1.2.1", VERSION]), st.booleans())
def test_whatever_is_rendered_passes_the_engines_validator(schedule, version, capped):
    spec = {**SPEC, "decoding_type": "NGram", **({"max_concurrency": 32} if capped else {})}
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": spec})}
    item = FORMS["config"]
    told = able(item, version, files)
    try:
        done = edit(item, files, WantedSpeculation(True, schedule=tuple(schedule)), told, {})
    except Refusal:
        return
    if schedule:
        engine_accepts(yaml.safe_load(done.file.content)["speculative_config"], told.schedule_dialect)


# -- versions and traps -----------------------------------------------------------------------------------------------------


def test_the_same_table_means_the_opposite_in_1_2_and_1_3():
    spec = {**SPEC, "decoding_type": "NGram", "draft_len_schedule": {1: 3, 8: 1}}
    files = {PATH: yaml.safe_dump({**DOCUMENT, "speculative_config": spec})}
    assert able(version="1.2.1", files=files).schedule == ((1, 3), (8, 1))
    assert able(version=VERSION, files=files).schedule == ((1, 3), (2, 1), (9, 0))


def test_above_the_largest_key_1_3_drafts_nothing():
    spec = {**SPEC, "draft_len_schedule": {4: 3, 32: 1}}
    assert read(FORMS["config"], {PATH: yaml.safe_dump({"speculative_config": spec})}).schedule == (
        (1, 3),
        (5, 1),
        (33, 0),
    )
    whole = {"max_batch_size": 32, "speculative_config": spec}
    assert read(FORMS["config"], {PATH: yaml.safe_dump(whole)}).schedule == ((1, 3), (5, 1))


def test_a_schedule_that_is_written_is_seen_as_written():
    """Else it would be called for again and again."""
    item, wanted = FORMS["config"], ((1, 3), (33, 1))
    after, files = applied(item, FILES, edit(item, FILES, WantedSpeculation(True, schedule=wanted), able(item), {}))
    assert read(after, files).schedule == wanted
    assert able(after, files=files).follows_schedule


@pytest.mark.parametrize(
    ("version", "config", "follows", "adapts", "words"),
    [
        ("1.2.1", {"decoding_type": "Eagle3", "max_concurrency": 32}, False, False, "max_concurrency 32"),
        ("1.2.1", {"decoding_type": "MTP", "max_concurrency": 32}, False, False, "ignores it"),
        ("1.2.1", {"decoding_type": "Eagle3", "eagle3_one_model": False}, True, False, None),
        ("1.2.1", {"decoding_type": "NGram", "max_concurrency": 32}, True, True, None),
        ("1.1.0", {"decoding_type": "NGram"}, False, False, "before 1.2"),
        ("1.3.0rc3", {"decoding_type": "NGram"}, False, False, "lower or upper bounds"),
        ("1.3.0rc29", {"decoding_type": "Eagle3", "max_concurrency": 32}, True, True, None),
        ("1.3.0", {"decoding_type": "MTP"}, True, False, None),
        ("1.3.0rc29", {"decoding_type": "AUTO"}, False, True, "AUTO"),
        ("1.3.0rc29", {"decoding_type": "SaveState"}, False, False, "SAVESTATE"),
        ("1.3.0rc29", {"decoding_type": "MTP", "acceptance_rate_window_size": 9}, False, False, "for good"),
    ],
)
def test_who_honours_what(version, config, follows, adapts, words):
    spec = {"max_draft_len": 3, **config}
    told = able(version=version, files={PATH: yaml.safe_dump({"max_batch_size": 64, "speculative_config": spec})})
    assert (told.schedule_dialect is not None, told.adapts_by_itself) == (follows, adapts)
    if words is not None:
        assert words in told.schedule_refusal


def test_which_of_flag_and_yaml_wins_changed_so_where_they_differ_the_limit_is_unknown():
    assert able(serve(f"--config={PATH}", "--max_batch_size=256")).max_running_requests == 256
    assert able(serve(f"--config={PATH}", "--max-batch-size", "64")).max_running_requests is None


def test_the_default_token_budget_of_8192_bounds_the_batch_too():
    files = {PATH: yaml.safe_dump({**DOCUMENT, "max_batch_size": 4096})}
    assert able(files=files).max_running_requests == 8192 // 4
    assert able(serve(f"--config={PATH}", "--max_num_tokens", "512")).max_running_requests == 128


def test_set_takes_null_and_wins_over_the_yaml():
    item = FORMS["set"]
    off = edit(item, FILES, WantedSpeculation(False), able(item), {})
    assert off.file is None
    assert off.args == ("--host=0.0.0.0", f"--config={PATH}", "--set", "speculative_config=null")
    less = edit(item, FILES, WantedSpeculation(True, draft_tokens=1), able(item), {})
    assert less.args[-2:] == ("--set", "speculative_config.max_draft_len=1")


def test_a_schedule_is_no_flag_it_goes_into_the_yaml():
    item, wanted = FORMS["set"], WantedSpeculation(True, schedule=((1, 3), (33, 1)))
    done = edit(item, FILES, wanted, able(item), {})
    assert yaml.safe_load(done.file.content)["speculative_config"]["draft_len_schedule"] == {32: 3, 256: 1}
    assert "--set" not in done.args
    for form in ("set alone", "dynamo flags"):
        with pytest.raises(Refusal) as refused:
            edit(FORMS[form], FILES, wanted, able(FORMS[form]), {})
        assert refused.value.code == "NoConfigFile"


def test_dynamos_flags_say_none_for_null_and_exclude_the_override():
    item = FORMS["dynamo flags over a yaml"]
    off = edit(item, FILES, WantedSpeculation(False), able(item), {})
    assert off.env == {}
    assert off.args[-2:] == ("--trtllm.speculative_config", "none")


def test_dynamos_override_takes_a_schedule():
    item, wanted = FORMS["dynamo"], ((1, 3), (33, 1))
    done = edit(item, FILES, WantedSpeculation(True, schedule=wanted), able(item), {})
    after, files = applied(item, FILES, done)
    assert read(after, files).schedule == wanted


def test_a_draft_tree_is_not_resized():
    files = {PATH: yaml.safe_dump({"speculative_config": {**SPEC, "max_total_draft_tokens": 12}})}
    with pytest.raises(Refusal) as refused:
        edit(FORMS["config"], files, WantedSpeculation(True, draft_tokens=2), able(files=files), {})
    assert refused.value.code == "TreeDraft"


def test_a_length_of_0_is_no_length():
    with pytest.raises(Refusal) as refused:
        edit(FORMS["config"], FILES, WantedSpeculation(True, draft_tokens=0), able(), {})
    assert refused.value.code == "InvalidDraftLength"


@pytest.mark.parametrize("name", [OVERRIDE_VARIABLE, "DYN_TRTLLM_EXTRA_ENGINE_ARGS"])
def test_a_variable_from_elsewhere_is_refused(name):
    item = {**dynamo(), "args": ["--model=/m"], "env": [{"name": name, "valueFrom": {"configMapKeyRef": {}}}]}
    with pytest.raises(Refusal) as refused:
        read(item, FILES)
    assert refused.value.code == "VariableNotReadable"
