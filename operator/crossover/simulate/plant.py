"""What the servers really are: step times and acceptance. Separate from what a controller believes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from crossover.decide.profile import fit_profile
from crossover.decide.step_model import PRESETS, StepModel, acceptance_length
from crossover.simulate.table_plant import TablePlant, read_points

ACCEPTANCE = {"chat": 0.68, "code": 0.82, "math": 0.76, "science": 0.67, "finance": 0.54}
"""Equivalent per-position acceptance of EAGLE-3 chains by workload class: medians over models and draft lengths of SpecForge's
published acceptance lengths (MT-Bench; HumanEval and LiveCodeBench; GSM8K and MATH-500; GPQA; FinanceQA)."""


class Plant(Protocol):
    """One replica. Times in seconds."""

    @property
    def kv_capacity_tokens(self) -> float: ...

    def step_seconds(self, running: float, draft_tokens: int, kv_tokens: float, off: bool) -> float: ...

    def acceptance_length(self, draft_tokens: int) -> float: ...

    def prefill_seconds(self, tokens: float) -> float: ...


@dataclass(frozen=True, slots=True)
class ModelPlant:
    """The step-time model of the emulators, with one acceptance."""

    model: StepModel
    acceptance: float

    @property
    def kv_capacity_tokens(self) -> float:
        return float(self.model.model.kv_capacity_tokens)

    def step_seconds(self, running: float, draft_tokens: int, kv_tokens: float, off: bool) -> float:
        return self.model.step_seconds(running, draft_tokens, kv_tokens, off=off)

    def acceptance_length(self, draft_tokens: int) -> float:
        return acceptance_length(self.acceptance, draft_tokens)

    def prefill_seconds(self, tokens: float) -> float:
        return self.model.prefill_seconds(tokens)


def plant(source: str, acceptance: float) -> Plant:
    """A preset's name, or a CSV of calibration points. Raises ValueError, OSError."""
    if source in PRESETS:
        return ModelPlant(PRESETS[source], acceptance)
    if not Path(source).exists():
        raise ValueError(f"--plant {source}: no such file, and no preset; presets are {', '.join(PRESETS)}")
    return TablePlant(fit_profile(read_points(Path(source))), acceptance)
