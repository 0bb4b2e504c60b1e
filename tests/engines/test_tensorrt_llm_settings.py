"""TensorRT-LLM: configuration in every form that can be changed, schedules in both meanings, refusals in its own terms."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import ScheduleDialect
from crossover.engines.contract import Refusal, WantedSpeculation
from crossover.engines.tensorrt_llm_settings import FILE, OVERRIDE_VARIABLE, capability, edit, read, render

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


FORMS = {
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
