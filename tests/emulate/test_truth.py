"""The hidden truth that options choose: the shapes that docs/emulators.md promises, and what is refused."""

import pytest

from crossover.emulate.core import EngineCore
from crossover.emulate.drafts import Fixed, Off
from crossover.emulate.options import BadOptionError, options_of
from crossover.emulate.requests import Limits

CONTEXT = 500


def tokens_per_second(drafts, batch, flags):
    """Of a full batch in steady state."""
    engine = EngineCore(options_of({}, flags).truth(), Limits(batch, 10**8), drafts, seed=3)
    for _ in range(batch):
        engine.submit(0.0, CONTEXT, 10**5)

    def run_until(steps):
        while engine.counters.decode_steps < steps:
            engine.advance(engine.next_step_at)
        return engine.counters.output_tokens, engine.clock_seconds

    (tokens, began), (more, ended) = run_until(30), run_until(130)
    return (more - tokens) / (ended - began)


def gains(drafts, batch, flags):
    return tokens_per_second(drafts, batch, flags) > tokens_per_second(Off(), batch, flags)


SPREAD = " --acceptance-spread 0"
SHAPES = {
    "one crossing": (lambda: Fixed(3), "--acceptance 0.6", {8: True, 100: True, 130: False}),
    "an earlier one with a worse draft": (lambda: Fixed(3), "--acceptance 0.45", {8: True, 48: True, 66: False}),
    "a tree crosses early": (lambda: Fixed(5, tree=32), "", {4: True, 16: True, 26: False, 64: False}),
    "a curve that crosses twice": (
        lambda: Fixed(3),
        "--model 57b-moe-h100-tp4 --acceptance 0.3",
        {4: False, 16: True, 40: True, 64: False},
    ),
    "always a loss": (lambda: Fixed(5), "--acceptance 0.3", {1: False, 16: False, 64: False}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_that_the_documentation_promises(shape):
    drafts, flags, expected = SHAPES[shape]
    assert {batch: gains(drafts(), batch, flags + SPREAD) for batch in expected} == expected


def test_a_cliff_is_a_jump_of_every_step_beyond_it():
    flags = "--cliff 32,3 --acceptance 0.5"
    for drafts in (Off, lambda: Fixed(3)):
        before, after = (tokens_per_second(drafts(), batch, flags) / batch for batch in (32, 33))
        assert before / after == pytest.approx(3, rel=0.12)


def test_padding_makes_stairs():
    def step(batch):
        return batch / tokens_per_second(Off(), batch, "--padding 64 --model 8b-a100")

    def kernel(batch):
        truth = options_of({}, "--padding 64 --model 8b-a100").truth()
        return truth.model.step_seconds(batch, 0, 0, off=True)

    assert kernel(65) == kernel(128)
    assert kernel(65) > kernel(64)
    assert step(65) > step(64)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--model 9b", "--model"),
        ("--acceptance 1.5", "--acceptance"),
        ("--acceptance=", "--acceptance"),
        ("--fault nonsense", "--fault"),
        ("--fault reset-counters", "--fault"),
        ("--cliff 32", "--cliff"),
        ("--server-version new", "--server-version"),
        ("--time-scale 0", "--time-scale"),
        ("--no-such-option 1", "--no-such-option"),
        ("--seed", "--seed"),
        ("stray", "stray"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(flags, named):
    with pytest.raises(BadOptionError, match=named):
        options_of({"engine": "sglang"}, flags)


def test_a_variable_says_all_that_the_command_line_says():
    made = options_of(
        {"model": "8b-h100"}, "--acceptance 0.8,0.6 --draft-kv --watch=16,32 --fault html,nan --kv-tokens 5000"
    )
    assert (made.acceptance, made.draft_kv, made.watch) == ((0.8, 0.6), True, (16, 32))
    assert (made.fault, made.kv_tokens) == (("html", "nan"), 5000)
