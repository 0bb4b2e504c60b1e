"""SGLang: settings in a pod template are read, rendered and edited; what the engine would refuse is refused first.

The independent judge of edits is the emulator's argument parser, which is argparse as in the server.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.emulate.commands import LaunchError
from crossover.emulate.sglang_args import AdaptiveSteps, parse
from crossover.engines.contract import ContainerEdit, Refusal, WantedSpeculation
from crossover.engines.sglang_settings import capability_of_container, edit, read, render, schedule_refusal

EAGLE = (
    "--speculative-algorithm=EAGLE",
    "--speculative-draft-model-path",
    "/m/draft",
    "--speculative-num-steps=3",
    "--speculative-eagle-topk=1",
    "--speculative-num-draft-tokens=4",
)
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
BASE = ("--model-path=/m", "--port=30000")
ROOT = Path("/nonexistent")
SIZES = (1, 2, 4, 8, 12, 16, *range(24, 129, 8))


def container(*args, command=("python3", "-m", "sglang.launch_server")):
    return {"name": "server", "command": list(command), "args": list(args)}


def able(**changed):
    given = {"version": "0.5.23", "speculative_algorithm": "EAGLE", "batch_padding": SIZES, "zero_is_safe": True}
    return Capability(EngineType.SGLANG, schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE, **(given | changed))


def change(item, wanted, capability=None, removed=None, files=None):
    return edit(item, files or {}, wanted, capability or able(), removed or {})


def applied(item, done):
    return {**item, **({"args": list(done.args)} if done.args is not None else {})}


@pytest.mark.parametrize(
    ("args", "enabled", "algorithm", "draft"),
    [
        ((*BASE, *EAGLE), True, "EAGLE", 3),
        ((*BASE, *NGRAM), True, "NGRAM", 7),
        ((*BASE, "--speculative-algo", "ngram"), True, "NGRAM", 11),
        ((*BASE, "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2"), True, "EAGLE", 2),
        ((*BASE, "--speculative-num-steps=3"), False, None, None),
        (BASE, False, None, None),
    ],
)
def test_settings_are_read_in_every_form(args, enabled, algorithm, draft):
    settings = read(container(*args), {})
    assert (settings.enabled, settings.algorithm, settings.draft_tokens) == (enabled, algorithm, draft)


def test_a_config_file_is_refused_because_the_settings_may_stand_there():
    with pytest.raises(Refusal) as refused:
        read(container("--config", "/etc/server.yaml"), {})
    assert refused.value.code == "ConfigFile"


def test_off_is_leaving_every_speculative_argument_out_and_on_puts_them_back_exactly():
    item = container(BASE[0], *EAGLE, BASE[1])
    off = change(item, WantedSpeculation(False))
    without = applied(item, off)
    assert without["args"] == list(BASE)
    assert parse([*item["command"], *without["args"]], (0, 5, 23), ROOT).algorithm is None
    on = change(without, WantedSpeculation(True), removed=off.removed)
    assert applied(without, on)["args"] == item["args"]


def test_off_when_nothing_is_on_changes_nothing():
    assert change(container(*BASE), WantedSpeculation(False)).is_empty


def test_on_without_anything_to_put_back_is_refused_with_the_fix():
    with pytest.raises(Refusal) as refused:
        change(container(*BASE), WantedSpeculation(True))
    assert refused.value.code == "NothingToPutBack"
    assert "--speculative" in refused.value.fix


def test_a_schedule_is_two_flags_and_a_file_and_the_server_accepts_it(tmp_path):
    item = container(*BASE, *EAGLE)
    done = change(item, WantedSpeculation(True, schedule=((1, 3), (33, 0))))
    assert done.file is not None
    place = tmp_path / done.file.mount_path.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(done.file.content)
    launch = parse([*item["command"], *done.args], (0, 5, 23), tmp_path)
    assert launch.adaptive
    assert launch.warnings == []
    again = change(
        applied(item, done),
        WantedSpeculation(True, schedule=((1, 3), (33, 0))),
        files={done.file.mount_path: done.file.content},
    )
    assert again == ContainerEdit("server")


def test_num_steps_is_moved_into_the_union_of_the_lists(tmp_path):
    """Steps outside of it are a ValueError after the model has loaded."""
    done = change(container(*BASE, *EAGLE), WantedSpeculation(True, schedule=((1, 5), (17, 1))))
    place = tmp_path / done.file.mount_path.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(done.file.content)
    assert parse(["-m", "sglang.launch_server", *done.args], (0, 5, 23), tmp_path).steps == 5
    with pytest.raises(LaunchError):
        parse(["-m", "sglang.launch_server", *done.args, "--speculative-num-steps=4"], (0, 5, 23), tmp_path)


schedules = st.lists(st.tuples(st.integers(2, 128), st.integers(0, 7)), max_size=5, unique_by=lambda pair: pair[0]).map(
    lambda pairs: ((1, 7), *sorted(pairs))
)


@given(schedules)
def test_with_cuda_graph_padding_no_band_begins_earlier_than_asked(schedule):
    """The emulator's lookup is the engine's: pad up to a graph size, then the largest key not above it."""
    file = render(schedule, able())
    table = {int(key): value["candidate_steps"] for key, value in json.loads(file.content).items()}
    assert all(len(steps) == 1 for steps in table.values())
    policy = AdaptiveSteps(table, SIZES)
    for batch in range(1, 129):
        position = max(i for i, (key, _) in enumerate(schedule) if key <= batch)
        allowed = {draft for _, draft in schedule[: position + 1]}
        assert policy.choose(batch) in allowed
    for key, draft in schedule:
        if key in {size + 1 for size in SIZES} | {1} and key <= 128:
            later = [other for other, _ in schedule if other > key]
            if not later or later[0] > min((s for s in SIZES if s >= key), default=key):
                assert policy.choose(key) == draft


@pytest.mark.parametrize(
    ("schedule", "capability", "code"),
    [
        ((), able(), "InvalidSchedule"),
        (((2, 3),), able(), "InvalidSchedule"),
        (((1, 3), (1, 2)), able(), "InvalidSchedule"),
        (((1, 3), (9, -1)), able(), "InvalidSchedule"),
        (((1, 3), (9, 0)), able(version="0.5.13"), "ZeroUnsupported"),
        (((1, 3),), Capability(EngineType.SGLANG, "0.5.23", "NGRAM", schedule_refusal="no"), "ScheduleUnsupported"),
    ],
)
def test_what_the_engine_would_refuse_minutes_later_is_refused_now(schedule, capability, code):
    with pytest.raises(Refusal) as refused:
        render(schedule, capability)
    assert refused.value.code == code


def test_another_draft_length_keeps_steps_and_tokens_consistent():
    done = change(container(*BASE, *EAGLE), WantedSpeculation(True, draft_tokens=5))
    launch = parse(["-m", "sglang.launch_server", *done.args], (0, 5, 23), ROOT)
    assert (launch.steps, launch.draft_tokens) == (5, 6)
    ngram = change(container(*BASE, *NGRAM), WantedSpeculation(True, draft_tokens=3))
    assert parse(["-m", "sglang.launch_server", *ngram.args], (0, 5, 23), ROOT).draft_tokens == 4


def test_a_fixed_draft_length_ends_the_schedule():
    scheduled = container(*BASE, *EAGLE, "--speculative-adaptive", "--speculative-adaptive-config=/x.json")
    done = change(scheduled, WantedSpeculation(True, draft_tokens=5))
    assert not [word for word in done.args if "adaptive" in word]


def test_a_tree_draft_is_not_resized():
    tree = container(*BASE, "--speculative-algorithm=EAGLE", "--speculative-num-steps=3", "--speculative-eagle-topk=4")
    with pytest.raises(Refusal) as refused:
        change(tree, WantedSpeculation(True, draft_tokens=5))
    assert refused.value.code == "TreeDraft"


@given(
    st.lists(
        st.sampled_from([*BASE, *EAGLE[:1], "--speculative-num-steps=3", "--tp-size=2", "--x"]), min_size=1, max_size=9
    )
)
def test_editing_towards_what_is_read_changes_nothing(args):
    item = container(*args)
    settings = read(item, {})
    wanted = WantedSpeculation(settings.enabled)
    assert change(item, wanted).is_empty


def test_the_pod_spec_is_the_second_source_of_the_capability_and_promises_no_schedule():
    """Without the version: before 0.5.13 a file with batch-size keys stops the server at start."""
    told = capability_of_container(container(*BASE, *EAGLE, "--max-running-requests=64"), {})
    assert told is not None
    assert told.schedule_dialect is None
    assert "version" in told.schedule_refusal
    assert (told.max_draft_tokens, told.max_running_requests, told.version) == (3, 64, None)
    assert told.zero_is_safe is None


def test_the_last_repetition_wins_as_in_argparse():
    settings = read(container(*BASE, *EAGLE, "--speculative-num-steps", "2"), {})
    assert settings.draft_tokens == 2


# -- forms --------------------------------------------------------------------------------------------------------------------

PATH = "/config/server.yaml"
OPTIONS = {
    "speculative-algorithm": "EAGLE",
    "speculative_draft_model_path": "/m/draft",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
    "max-running-requests": 64,
    "trust-remote-code": True,
    "log-requests": False,
}
FILES = {PATH: yaml.safe_dump(OPTIONS)}
SPEC_WORDS = " ".join(EAGLE)
FORMS = {
    "pairs": container(*BASE, *(part for word in EAGLE for part in word.split("="))),
    "equals": container(*BASE, *EAGLE),
    "command only": container(command=["python3", "-m", "sglang.launch_server", *BASE, *EAGLE]),
    "sglang serve": container(*BASE, *EAGLE, command=["sglang", "serve"]),
    "underscores": container(*BASE, *(word.replace("-", "_").replace("__", "--", 1) for word in EAGLE)),
    "abbreviations": container(
        *BASE,
        "--speculative-algo=EAGLE",
        "--speculative-num-s=3",
        "--speculative-eag=1",
        "--speculative-num-d=4",
        "--speculative-draft-model",
        "/m/draft",
    ),
    "shell string": container(command=["sh", "-c", f"exec python3 -m sglang.launch_server --port 1 {SPEC_WORDS}"]),
    "shell string with continuations": container(
        command=["/bin/bash", "-c", "python3 -m sglang.launch_server \\\n  --port 1 \\\n  " + " \\\n  ".join(EAGLE)]
    ),
    "config file": container("--config", PATH, "--port=30000"),
    "variables of the pod": container("--dist-init-addr=$(LWS_LEADER_ADDRESS)", *EAGLE),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form):
    settings = read(FORMS[form], FILES)
    assert (settings.enabled, settings.algorithm, settings.draft_tokens) == (True, "EAGLE", 3)


def after_edit(item, files, done):
    new = {**item}
    for field in ("command", "args"):
        if getattr(done, field) is not None:
            new[field] = list(getattr(done, field))
    return new, files if done.file is None else {**files, done.file.mount_path: done.file.content}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_goes_off_and_comes_back(form):
    item = FORMS[form]
    off = change(item, WantedSpeculation(False), files=FILES)
    gone, files = after_edit(item, FILES, off)
    assert not read(gone, files).enabled
    assert "speculative" not in str(gone)
    assert change(gone, WantedSpeculation(False), files=files).is_empty
    back, files = after_edit(gone, files, change(gone, WantedSpeculation(True), removed=off.removed, files=files))
    assert read(back, files) == read(item, FILES)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_a_schedule_and_another_length_once(form):
    for wanted in (WantedSpeculation(True, schedule=((1, 3), (33, 0))), WantedSpeculation(True, draft_tokens=2)):
        after, files = after_edit(FORMS[form], FILES, change(FORMS[form], wanted, able(batch_padding=()), files=FILES))
        settings = read(after, files)
        assert settings.schedule == wanted.schedule
        assert wanted.schedule or settings.draft_tokens == 2
        assert change(after, wanted, able(batch_padding=()), files=files).is_empty


def test_the_command_line_wins_over_the_config_file_and_the_users_file_is_not_written():
    item = container("--config", PATH, "--speculative-num-steps=5")
    assert read(item, FILES).draft_tokens == 5
    off = change(item, WantedSpeculation(False), files=FILES)
    rest = yaml.safe_load(off.file.content)
    assert rest == {"max-running-requests": 64, "trust-remote-code": True, "log-requests": False}
    assert off.args == ("--config", off.file.mount_path)


def test_adaptive_steps_asked_for_in_the_file_cannot_be_taken_back_by_an_argument():
    files = {PATH: yaml.safe_dump({**OPTIONS, "speculative-adaptive": True})}
    with pytest.raises(Refusal) as refused:
        change(FORMS["config file"], WantedSpeculation(True, draft_tokens=2), files=files)
    assert refused.value.code == "ConfigFile"


def test_an_ambiguous_abbreviation_is_nobodys():
    """--speculative-draft meant one option once and stops 0.5.23 with exit status 2."""
    assert read(container(*BASE, "--speculative-a=EAGLE", "--speculative-draft=/m"), {}).enabled is False


# -- what the engine itself would say (its rules as its documentation gives them, written a second time) ----------------------


def engine_accepts(content, launch, version):
    table = json.loads(content)
    assert all(key.isdigit() and int(key) >= 1 for key in table)
    union = set()
    for entry in table.values():
        steps = entry["candidate_steps"]
        assert steps
        assert all(isinstance(step, int) and step >= 0 for step in steps)
        assert version >= (0, 5, 14) or 0 not in steps
        assert len(steps) == 1, "a list that mixes 0 with others oscillates"
        union |= set(steps)
    assert launch.steps in union
    assert launch.topk == 1
    assert launch.draft_tokens == launch.steps + 1


anything = st.lists(st.tuples(st.integers(0, 140), st.integers(-1, 8)), max_size=6)


@given(anything, st.sampled_from(["0.5.12", "0.5.13", "0.5.14", "0.5.23", None]), st.sampled_from([(), SIZES]))
def test_whatever_is_rendered_passes_the_engines_rules(schedule, version, sizes):
    item = FORMS["equals"]
    told = able(version=version, batch_padding=sizes)
    try:
        done = change(item, WantedSpeculation(True, schedule=tuple(schedule)), told)
    except Refusal:
        return
    if schedule:
        launch = parse_flags(done.args)
        engine_accepts(done.file.content, launch, tuple(map(int, version.split("."))))


def parse_flags(args):
    """The steps, top-k and tokens of a command line, as argparse reads them."""
    parser = argparse.ArgumentParser()
    for name in ("num-steps", "eagle-topk", "num-draft-tokens"):
        parser.add_argument(f"--speculative-{name}", type=int)
    known, _ = parser.parse_known_args(list(args))
    return SimpleNamespace(
        steps=known.speculative_num_steps,
        topk=known.speculative_eagle_topk,
        draft_tokens=known.speculative_num_draft_tokens,
    )


@given(st.integers(1, 7), st.sampled_from(["EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE", "DFLASH"]), st.booleans())
def test_edit_towards_what_is_read_changes_nothing(steps, algorithm, scheduled):
    args = [*BASE, f"--speculative-algorithm={algorithm}"]
    args += [f"--speculative-num-steps={steps}", f"--speculative-num-draft-tokens={steps + 1}"]
    args += ["--speculative-eagle-topk=1"] if algorithm.startswith("EAGLE") else []
    files = {}
    if scheduled:
        args += ["--speculative-adaptive", "--speculative-adaptive-config=/mine.json"]
        files["/mine.json"] = json.dumps({"1": {"candidate_steps": [steps]}, "40": {"candidate_steps": [0]}})
    item = container(*args)
    settings = read(item, files)
    length = None if settings.schedule else settings.draft_tokens
    wanted = WantedSpeculation(settings.enabled, draft_tokens=length, schedule=settings.schedule)
    assert change(item, wanted, files=files).is_empty


# -- versions and traps -------------------------------------------------------------------------------------------------------


def test_none_as_an_algorithm_is_no_off_switch():
    with pytest.raises(Refusal) as refused:
        read(container(*BASE, "--speculative-algorithm=NONE"), {})
    assert refused.value.code == "AlgorithmNone"


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("two_batch_overlap", "two-batch overlap"),
        ("pdmux", "PD multiplexing"),
        ("dp_attention", "DP attention"),
        ("multi_layer", "multi-layer"),
    ],
)
def test_where_adaptive_steps_fall_back_to_a_fixed_length(flag, words):
    given_ = {"topk": 1, "dp_attention": False, "multi_layer": False, flag: True}
    assert words in schedule_refusal((0, 5, 23), "EAGLE", **given_)


@pytest.mark.parametrize("algorithm", ["NGRAM", "STANDALONE", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "MY_PLUGIN"])
def test_only_eagle_follows_a_schedule(algorithm):
    refusal = schedule_refusal((0, 5, 23), algorithm, topk=1, dp_attention=False, multi_layer=False)
    assert f"not {algorithm}" in refusal


@pytest.mark.parametrize("algorithm", ["eagle", "Eagle3", "nextn"])
def test_algorithms_are_case_insensitive(algorithm):
    assert schedule_refusal((0, 5, 23), algorithm, topk=1, dp_attention=False, multi_layer=False) is None


def test_the_length_of_a_block_draft_is_what_it_was_trained_for():
    item = container(*BASE, "--speculative-algorithm=DFLASH", "--speculative-dflash-block-size=8")
    with pytest.raises(Refusal) as refused:
        change(item, WantedSpeculation(True, draft_tokens=3))
    assert refused.value.code == "BlockDraft"


def test_a_zero_needs_the_version_to_be_known():
    with pytest.raises(Refusal) as refused:
        render(((1, 3), (33, 0)), Capability(EngineType.SGLANG, None, "EAGLE", schedule_refusal="no version"))
    assert refused.value.code == "ScheduleUnsupported"


def test_0_at_every_batch_is_no_schedule():
    with pytest.raises(Refusal, match="for nothing"):
        render(((1, 0),), able())


def test_the_limit_is_shared_out_over_attention_dp_ranks_and_whole_for_plain_replicas():
    limit = ("--max-running-requests=64", "--dp-size=8")
    assert capability_of_container(container(*BASE, *limit, "--enable-dp-attention"), {}).max_running_requests == 8
    assert capability_of_container(container(*BASE, *limit), {}).max_running_requests == 64


def test_the_default_of_48_running_requests_is_not_guessed_from_the_template():
    """A model's own default may come first; the server tells."""
    assert capability_of_container(container(*BASE, *EAGLE), {}).max_running_requests is None


def test_a_key_on_a_graph_size_acts_from_the_batch_after_the_size_before():
    """With graphs at 80, 88 and 96 a key 96 acts from batch 89."""
    content = render(((1, 3), (89, 0)), able(batch_padding=(80, 88, 96))).content
    assert json.loads(content) == {"1": {"candidate_steps": [3]}, "96": {"candidate_steps": [0]}}


def test_steps_without_the_other_two_options_would_stop_the_server_so_all_three_are_written():
    item = container(*BASE, "--speculative-algorithm=EAGLE")
    launch = parse_flags(change(item, WantedSpeculation(True, draft_tokens=4)).args)
    assert (launch.steps, launch.topk, launch.draft_tokens) == (4, 1, 5)
