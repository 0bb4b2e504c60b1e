"""The step-time model against published measurements: kernel timings, and speed-ups by batch.

Kernel timings are met with constants fitted to each family (the fits of tests/decide/test_step_model.py). Speed-ups are a
prediction: where a source tells the acceptance length it is used, else it is taken from the smallest batch of the series; the
other batches are what the model says. Read-off-a-figure values are good to about 0.03.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.decide.test_step_model import FITS, fit_errors

from bench.machine import save
from crossover.decide.step_model import PRESETS, StepModel

SWEEPS = Path(__file__).parents[1] / "tests" / "fixtures" / "published" / "published-sweeps.csv"
CONTEXT = {"CNN/DM": 900, "GSM8K": 300, "ShareGPT": 400, "InstructCoder": 500}
"""Mean KV tokens per request, roughly, by dataset; 400 where the source tells none."""
FAMILIES = (
    # source, model, preset, cost per speculating request and step in that build
    ("arXiv:2601.11580 fig. 1", "Llama-3.1-8B", "8b-h100", 16e-6),
    ("arXiv:2601.11580 fig. 1", "Qwen3-8B", "8b-h100", 16e-6),
    ("arXiv:2601.11580 fig. 1", "Llama-3-70B", "70b-h100-tp4", 88e-6),
    ("vllm-project/vllm PR 32374 (test table)", "Llama-3.1-8B", "8b-h100", 0.0),
)

Point = tuple[float, float, float | None]
"""Batch, speed-up, acceptance length where told."""


def kernels() -> list[dict[str, Any]]:
    found = []
    for fit in FITS:
        errors = fit_errors(*fit[:8])
        found.append(
            {
                "source": fit[0],
                "hardware": fit[1].name,
                "model": fit[2],
                "precision": fit[3],
                "points": len(errors),
                "mean_error": round(fmean(errors), 3),
                "largest_error": round(max(errors), 3),
            }
        )
    return found


def series(source: str, model: str) -> Iterator[tuple[str, int, list[Point]]]:
    """(method, draft tokens, points) of chains with an EAGLE head."""
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    with SWEEPS.open() as file:
        for row in csv.DictReader(file):
            same = row["source"] == source and row["model"] == model
            if not same or not row["method"].startswith("EAGLE") or not row["draft_len"].isdigit():
                continue
            told = float(row["accept_len"]) if row["accept_len"] else None
            place = (row["method"], int(row["draft_len"]))
            groups[place].append((float(row["batch_or_concurrency"]), float(row["speedup"]), told))
    for (method, draft), points in groups.items():
        yield method, draft, sorted(points)


def speed_up(model: StepModel, batch: float, draft: int, length: float, context: float) -> float:
    alone = model.step_seconds(batch, 0, batch * context, off=True)
    return length * alone / model.step_seconds(batch, draft, batch * context)


def sweeps() -> list[dict[str, Any]]:
    found = []
    for source, name, preset, extra in FAMILIES:
        model = replace(PRESETS[preset], model=replace(PRESETS[preset].model, speculation_seconds_per_request=extra))
        errors: list[float] = []
        count = 0
        for method, draft, points in series(source, name):
            context = next((tokens for dataset, tokens in CONTEXT.items() if dataset in method), 400)
            first, *rest = points
            taken = first[1] / speed_up(model, first[0], draft, 1.0, context)
            told = first[2] is not None
            for batch, measured, length in points if told else rest:
                predicted = speed_up(model, batch, draft, length or taken, context)
                errors.append(predicted / measured - 1)
            count += 1
        found.append(
            {
                "source": source,
                "model": name,
                "series": count,
                "predicted_points": len(errors),
                "mean_absolute_error": round(fmean(abs(item) for item in errors), 3),
                "bias": round(fmean(errors), 3),
                "largest_error": round(max(abs(item) for item in errors), 3),
            }
        )
    return found


def main() -> None:
    save("step_model", {"kernel_timings": kernels(), "speed_ups": sweeps()})


if __name__ == "__main__":
    main()
