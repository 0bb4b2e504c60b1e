"""Command lines: read as argparse reads them, edited token by token."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.engines.arguments import Flag, parse
from crossover.engines.contract import Refusal

STEPS = Flag(("--steps",))
ON = Flag(("--adaptive",), takes_value=False)


def container(command=(), args=()):
    return {"name": "server", "command": list(command), "args": list(args)}


@pytest.mark.parametrize(
    ("command", "args", "field", "value"),
    [
        (["python3", "-m", "server"], ["--steps", "3"], "args", "3"),
        (["python3", "-m", "server"], ["--steps=3"], "args", "3"),
        (["python3", "-m", "server", "--steps", "3"], [], "command", "3"),
        (["server"], ["--steps=3", "--other", "--steps", "5"], "args", "5"),
        (["sh", "-c", "server --steps 3 --other x"], [], "command", "3"),
        (["/bin/bash", "-ec"], ["server \\\n  --steps=4"], "args", "4"),
        (["server"], ["--other"], "args", None),
        (["server"], ["--st_eps", "3"], "args", None),
    ],
)
def test_every_form_is_read(command, args, field, value):
    line = parse(container(command, args))
    assert (line.field, line.value(STEPS)) == (field, value)


def test_underscores_are_dashes():
    line = parse(container(["server"], ["--num_steps", "3"]))
    assert line.value(Flag(("--num-steps",))) == "3"


def test_an_image_that_hides_its_command_is_refused():
    with pytest.raises(Refusal, match="args"):
        parse(container())


words = st.sampled_from(["--steps", "--steps=2", "--adaptive", "--other", "--other=x", "value", "7", "--"])


@given(st.lists(words, max_size=8))
def test_editing_towards_what_is_there_changes_nothing(args):
    line = parse(container(["server"], args or ["x"]))
    value = line.value(STEPS)
    if value is not None:
        assert line.with_value(STEPS, value).tokens == line.tokens
    if line.has(ON):
        assert line.with_value(ON, None).tokens == line.tokens


@given(st.lists(st.sampled_from(["--steps=2", "--adaptive", "--other=x", "--more=y"]), min_size=1, max_size=8))
def test_edits_agree_with_argparse_and_touch_nothing_else(args):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps")
    parser.add_argument("--adaptive", action="store_true")
    parser.add_argument("--other")
    parser.add_argument("--more")
    before = parser.parse_args(args)
    edited = parse(container(["server"], args)).with_value(STEPS, "9").with_value(ON, None)
    after = parser.parse_args(list(edited.tokens))
    assert (after.steps, after.adaptive) == ("9", True)
    assert (after.other, after.more) == (before.other, before.more)
    removed = parse(container(["server"], args)).without(STEPS, ON)
    gone = parser.parse_args(list(removed.tokens))
    assert (gone.steps, gone.adaptive, gone.other, gone.more) == (None, False, before.other, before.more)


@given(st.lists(st.sampled_from(["--steps=2", "--other=x", "--more=y", "a", "b"]), min_size=1, max_size=8))
def test_what_is_taken_out_can_be_put_back_where_it_stood(args):
    line = parse(container(["server"], args))
    position, tokens = line.taken(STEPS)
    back = line.without(STEPS).inserted(position, tokens)
    assert sorted(back.tokens) == sorted(line.tokens)
    if args.count("--steps=2") <= 1:
        assert back.tokens == line.tokens


def test_a_plain_shell_string_is_edited_in_place():
    line = parse(container(["sh", "-c", "exec server --steps 3 --port 1"]))
    assert line.with_value(STEPS, "5").tokens == ("sh", "-c", "exec server --steps 5 --port 1")
    assert line.without(STEPS).tokens == ("sh", "-c", "exec server --port 1")


@pytest.mark.parametrize(
    "script",
    [
        "server --steps 3 | tee log",
        "server --steps $STEPS",
        "export A=1; server --steps 3",
        "server --json '{\"a\": 1}' --steps 3",
        "server --steps 3 && echo done",
    ],
)
def test_a_shell_script_with_quoting_expansion_or_several_commands_is_refused(script):
    line = parse(container(["sh", "-c", script]))
    with pytest.raises(Refusal) as refused:
        line.without(STEPS)
    assert refused.value.code == "ShellCommand"
    assert "list" in refused.value.fix


def test_options_split_over_command_and_args_are_refused():
    line = parse(container(["server", "--steps", "3"], ["--other"]))
    with pytest.raises(Refusal, match="Move all options into args"):
        line.without(STEPS)
