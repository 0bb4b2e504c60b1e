"""GPU-hours of Crossover's plan against HPA and KEDA with the engine's own table, on traces that nothing was tuned on.

Every choice of every rival is run over the whole contest, so the rivals have hindsight and ours has not. Takes some minutes.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import save
from crossover.decide.step_model import PRESETS
from crossover.simulate.compare import Rules, compare
from crossover.simulate.fleet import Physics
from crossover.simulate.plant import ACCEPTANCE, ModelPlant
from crossover.simulate.run import Bounds
from crossover.simulate.traces import read
from crossover.simulate.verdict import Verdict, sentences, verdicts

TRACES = Path(__file__).parent / "traces"
POLICIES = ("hpa+table", "keda+table", "keda", "static+table", "crossover", "clairvoyant")
SETTINGS = (
    ("azure2023_conv", "8b-h100", "chat", 4.0, 0.0, 1.0),
    ("azure2023_conv", "8b-h100", "chat", 16.0, 0.0, 1.0),
    ("azure2023_conv", "8b-a100", "finance", 4.0, 0.0, 1.0),
    ("mooncake_fast25_conversation", "8b-h100", "chat", 4.0, 0.0, 1.0),
    ("servegen_rate_m_large", "8b-h100", "chat", 0.2, 3 * 86_400.0, 12.0),
    ("servegen_rate_m_large", "70b-h200-tp4", "code", 0.2, 8 * 86_400.0, 12.0),
    ("servegen_rate_m_small", "8b-a100", "chat", 0.5, 3 * 86_400.0, 12.0),
)
"""Trace, plant, workload, scale, start in seconds, hours."""


def one(trace: str, plant: str, workload: str, scale: float, start: float, hours: float) -> dict[str, Any]:
    used = read(TRACES / f"{trace}.csv.gz", hours=hours).window(start, hours * 3600).scaled(scale)
    physics = Physics(ModelPlant(PRESETS[plant], ACCEPTANCE[workload]))
    began = time.monotonic()
    made = compare(
        used,
        physics,
        Bounds(1, 64),
        Rules((1,), frontier=True),
        policies=POLICIES,
        max_draft_tokens=5,
        jobs=None,
    )
    (verdict,) = verdicts(made)
    print(f"{trace} x{scale:g} on {plant}, {workload}", *sentences(verdict), sep="\n", flush=True)
    return {
        "trace": trace,
        "plant": plant,
        "workload": workload,
        "scale": scale,
        "start_s": start,
        "hours": hours,
        **_numbers(verdict),
        "wall_s": round(time.monotonic() - began),
    }


def _numbers(verdict: Verdict) -> dict[str, Any]:
    ours = {
        key: value for key, value in asdict(verdict.ours).items() if key in ("gpu_hours", "attainment", "reversals")
    }
    rivals = [
        {
            "group": item.group,
            "policy": f"{item.best.policy} {item.best.choice}" if item.best else None,
            "gpu_hours": item.best.outcome.gpu_hours if item.best else None,
            "attainment": item.best.outcome.attainment if item.best else None,
            "saving": item.saving,
        }
        for item in verdict.rivals
    ]
    return {"ours": ours, "rivals": rivals}


def main() -> None:
    save("policies", {"runs": [one(*setting) for setting in SETTINGS]})


if __name__ == "__main__":
    main()
