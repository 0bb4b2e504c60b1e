"""What Crossover writes into a template, read by somebody else: the emulated servers start with it and follow it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api_server.containers import environment, expand
from tests.engines import test_tensorrt_llm_settings as trtllm
from tests.engines import test_vllm_settings as vllm

from crossover.emulate import trtllm_args, vllm_args
from crossover.engines import tensorrt_llm_settings, vllm_settings
from crossover.engines.contract import Refusal, WantedSpeculation

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def command_of(container):
    """What the kubelet would start."""
    env = environment(POD, container, "10.0.0.1")
    return [expand(word, env) for word in (*container.get("command", ()), *container.get("args", ()))], env


def started_vllm(container, files, folder, version=(0, 33, 0)):
    command, env = command_of(container)
    return vllm_args.parse(command, env, version, written(files, folder))


def started_trtllm(container, files, folder, version=(1, 3, 0)):
    command, env = command_of(container)
    return trtllm_args.parse(command, env, version, written(files, folder))


def written(files, folder):
    for path, content in files.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return folder


@st.composite
def schedules(draw, longest=5, least=0):
    """Lengths that fall with the batch, the first the longest."""
    keys = sorted(draw(st.sets(st.integers(2, 200), max_size=min(4, longest - least))))
    lengths = sorted(draw(st.sets(st.integers(least, longest), min_size=len(keys) + 1, max_size=len(keys) + 1)))
    return tuple(zip((1, *keys), reversed(lengths), strict=True))


def wanted_length(schedule, batch):
    return [length for key, length in schedule if key <= batch][-1]


@pytest.mark.parametrize("form", vllm.FORMS)
@given(schedule=schedules())
def test_vllm_follows_the_schedule_from_every_form(form, schedule, tmp_path_factory):
    if schedule[0][1] == 0:
        return
    item = vllm.FORMS[form]
    done = vllm_settings.edit(item, {}, WantedSpeculation(True, schedule=schedule), vllm.able(item=item), {})
    launch = started_vllm(vllm.applied(item, done), {}, tmp_path_factory.getbasetemp())
    assert launch.late_error is None
    assert not launch.warnings
    drafts = launch.drafts(None)
    for batch in range(1, 257):
        assert drafts.choose(batch) == wanted_length(schedule, batch)


@pytest.mark.parametrize("form", vllm.FORMS)
def test_vllm_runs_with_another_length_and_without_speculation(form, tmp_path):
    item = vllm.FORMS[form]
    assert started_vllm(item, {}, tmp_path).max_draft == 3
    for wanted, length in ((WantedSpeculation(True, draft_tokens=2), 2), (WantedSpeculation(False), 0)):
        done = vllm_settings.edit(item, {}, wanted, vllm.able(item=item), {})
        assert started_vllm(vllm.applied(item, done), {}, tmp_path).max_draft == length


@pytest.mark.parametrize("form", vllm.FORMS)
def test_vllm_accepts_as_it_is_forced_to(form, tmp_path):
    item = vllm.FORMS[form]
    wanted = WantedSpeculation(True, draft_tokens=2, forced_acceptance_length=2.4)
    done = vllm_settings.edit(item, {}, wanted, vllm.able(item=item), {})
    launch = started_vllm(vllm.applied(item, done), {}, tmp_path)
    assert (launch.max_draft, launch.forced_acceptance_length) == (2, 2.4)


def takes_schedules(form):
    item, wanted = trtllm.FORMS[form], WantedSpeculation(True, schedule=((1, 3), (9, 1)))
    try:
        tensorrt_llm_settings.edit(item, trtllm.FILES, wanted, trtllm.able(item), {})
    except Refusal:
        return False
    return True


FOLLOWING = [form for form in trtllm.FORMS if takes_schedules(form)]


def test_only_where_flags_alone_carry_the_configuration_is_a_schedule_refused():
    assert set(trtllm.FORMS) - set(FOLLOWING) <= {"dynamo flags", "dynamo flags over a yaml", "set alone"}


@pytest.mark.parametrize("form", FOLLOWING)
@given(schedule=schedules(least=1))
def test_trtllm_follows_the_schedule_from_every_form(form, schedule, tmp_path_factory):
    item = trtllm.FORMS[form]
    wanted = WantedSpeculation(True, schedule=schedule)
    done = tensorrt_llm_settings.edit(item, trtllm.FILES, wanted, trtllm.able(item), {})
    after, files = trtllm.applied(item, trtllm.FILES, done)
    launch = started_trtllm(after, files, tmp_path_factory.mktemp("trtllm"))
    drafts = launch.drafts()
    for batch in range(1, launch.max_batch + 1):
        assert drafts.choose(batch) == wanted_length(schedule, batch)


@given(schedule=schedules(longest=4, least=1))
def test_trtllm_follows_the_schedule_in_the_older_meaning(schedule, tmp_path_factory):
    config = {"decoding_type": "NGram", "max_draft_len": 4}
    files = {trtllm.PATH: json.dumps({"max_batch_size": 256, "speculative_config": config})}
    item = trtllm.FORMS["config"]
    able = tensorrt_llm_settings.capability("1.2.1", item, files)
    done = tensorrt_llm_settings.edit(item, files, WantedSpeculation(True, schedule=schedule), able, {})
    after, files = trtllm.applied(item, files, done)
    drafts = started_trtllm(after, files, tmp_path_factory.mktemp("trtllm"), (1, 2, 1)).drafts()
    for batch in range(1, 257):
        assert drafts.choose(batch) == wanted_length(schedule, batch)


@pytest.mark.parametrize("form", trtllm.FORMS)
def test_trtllm_runs_with_another_length_and_without_speculation(form, tmp_path):
    item = trtllm.FORMS[form]
    assert started_trtllm(item, trtllm.FILES, tmp_path).max_draft == 3
    for wanted, length in ((WantedSpeculation(True, draft_tokens=2), 2), (WantedSpeculation(False), 0)):
        done = tensorrt_llm_settings.edit(item, trtllm.FILES, wanted, trtllm.able(item), {})
        after, files = trtllm.applied(item, trtllm.FILES, done)
        assert started_trtllm(after, files, tmp_path).max_draft == length
