"""The page of each engine names every trap that its adapter recognises and every refusal that it can give."""

import re
from pathlib import Path

import pytest

from crossover.engines import sglang_metrics, tensorrt_llm_iterations, vllm

ROOT = Path(__file__).parents[2]
TRAPS = {"sglang": sglang_metrics.TRAPS, "vllm": vllm.TRAPS, "tensorrt-llm": tensorrt_llm_iterations.TRAPS}
DESCRIBED_IN_WORDS = {
    "vllm": {"InvalidSchedule", "ScheduleUnsupported", "InvalidDraftLength", "NothingToPutBack"},
    "sglang": {"InvalidDraftLength", "InvalidConfig"},
    "tensorrt-llm": {"InvalidDraftLength", "InvalidConfig", "NothingToPutBack"},
}
"""What a page says without the code."""


def page(name):
    return (ROOT / "docs" / "engines" / f"{name}.md").read_text()


def refusals(name):
    """Codes of the refusals raised in the modules of an engine."""
    prefix = name.replace("-", "_")
    sources = (ROOT / "operator" / "crossover" / "engines").glob(f"{prefix}*.py")
    return {code for path in sources for code in re.findall(r'Refusal\(\s*"(\w+)"', path.read_text())}


@pytest.mark.parametrize("name", TRAPS)
def test_every_trap_stands_on_the_page(name):
    assert {code for code in TRAPS[name] if f"`{code}`" not in page(name)} <= DESCRIBED_IN_WORDS[name]


@pytest.mark.parametrize("name", TRAPS)
def test_every_refusal_stands_on_the_page(name):
    codes = refusals(name)
    assert len(codes) >= 5
    assert {code for code in codes if f"`{code}`" not in page(name)} <= DESCRIBED_IN_WORDS[name]


@pytest.mark.parametrize("name", TRAPS)
def test_no_page_names_a_trap_that_nobody_recognises(name):
    """In the table of traps, whose rows begin with their codes."""
    table = page(name).split("not to believe")[1].split("\n## ")[0]
    named = {code for row in re.findall(r"(?m)^\| (`.*?) \|", table) for code in re.findall(r"`(\w+)`", row)}
    assert named <= set(TRAPS[name])


@pytest.mark.parametrize("name", TRAPS)
def test_every_trap_is_recognised_somewhere(name):
    """A text without code that gives it would promise too much."""
    prefix = name.replace("-", "_")
    sources = (ROOT / "operator" / "crossover" / "engines").glob(f"{prefix}*.py")
    code = "\n".join(path.read_text() for path in sources)
    assert [trap for trap in TRAPS[name] if code.count(f'"{trap}"') < 2] == []
