"""SGLang: settings in a pod template are read, rendered and edited; what the engine would refuse is refused first.

The independent judge of edits is the emulator's argument parser, which is argparse as in the server.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.emulate.commands import LaunchError
from crossover.emulate.sglang_args import AdaptiveSteps, parse
from crossover.engines.contract import ContainerEdit, Refusal, WantedSpeculation
from crossover.engines.sglang_settings import capability_of_container, edit, read, render

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


def test_the_pod_spec_is_the_second_source_of_the_capability():
    told = capability_of_container(container(*BASE, *EAGLE, "--max-running-requests=64"))
    assert told is not None
    assert told.schedule_dialect is ScheduleDialect.SGLANG_ADAPTIVE
    assert (told.max_draft_tokens, told.max_running_requests, told.version) == (3, 64, None)
    assert told.zero_is_safe is None


def test_the_last_repetition_wins_as_in_argparse():
    settings = read(container(*BASE, *EAGLE, "--speculative-num-steps", "2"), {})
    assert settings.draft_tokens == 2
