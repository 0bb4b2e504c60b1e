"""CPU time of one plan, of a tick of 1,000 fleets, and what importing the decision costs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.decide.fleets import EAGLE, FOLLOWS, INTENT, fleet

from bench.machine import save
from crossover.api.decision import Memory
from crossover.api.fleet import FleetSnapshot
from crossover.api.intent import Intent, Objectives, ReplicaIntent, SpeculationIntent
from crossover.api.points import CalibrationPoint
from crossover.decide import plan
from crossover.decide.profile import Profile, fit_profile
from crossover.decide.step_model import PRESETS, acceptance_length

ROUNDS = 7
CALIBRATED = Intent(
    ReplicaIntent(min=1, max=400), SpeculationIntent(max_draft_tokens=5), Objectives(time_per_output_token_seconds=0.04)
)


def snapshot(pods: int, at: float) -> FleetSnapshot:
    """A steady fleet of pods that follow a schedule and tell everything."""
    made = fleet(*[20.0 + number % 7 for number in range(pods)], at=at, draft=3.0, capability=FOLLOWS, settings=EAGLE)
    told = tuple(
        replace(pod, output_tokens_per_second=900.0, acceptance_length=2.4, time_per_output_token_seconds=0.012)
        for pod in made.pods
    )
    return replace(made, pods=told, startup_seconds=180.0)


def profile() -> Profile:
    model = PRESETS["8b-h100"]
    return fit_profile(
        CalibrationPoint(
            batch,
            draft,
            off=off,
            context_tokens=600,
            step_seconds=model.step_seconds(batch, draft, 600 * batch, off=off),
            acceptance_length=acceptance_length(0.67, draft),
        )
        for draft, off in ((1, False), (3, False), (5, False), (0, True))
        for batch in (1, 4, 16, 64, 128, 256)
    )


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Best of `ROUNDS`, per call."""
    best = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(repeats):
            work()
        best.append((time.process_time() - began) / repeats)
    return 1000 * min(best)


def warmed(pods: int, intent: Intent, used: Profile | None) -> tuple[FleetSnapshot, Memory]:
    """Memory as after a quarter of an hour."""
    memory = Memory()
    for tick in range(180):
        seen = snapshot(pods, 1_800_000_000.0 + 5 * tick)
        memory = plan(seen, intent, memory, used).memory
    return seen, memory


def one_plan(pods: int, intent: Intent, used: Profile | None) -> float:
    seen, memory = warmed(pods, intent, used)
    return milliseconds(lambda: plan(seen, intent, memory, used), 20)


def thousand_fleets(used: Profile) -> float:
    """Four pods each, half of them calibrated; seconds."""
    simple, calibrated = warmed(4, INTENT, None), warmed(4, CALIBRATED, used)

    def tick() -> None:
        for _ in range(500):
            plan(simple[0], INTENT, simple[1], None)
            plan(calibrated[0], CALIBRATED, calibrated[1], used)

    return milliseconds(tick, 1) / 1000


def import_cost() -> dict[str, Any]:
    script = (
        "import sys, time; t = time.process_time(); import crossover.decide; d = time.process_time() - t; "
        "print(d, 'numpy' in sys.modules)"
    )
    found = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    times, numpy = zip(*(item.stdout.split() for item in found), strict=True)
    return {"import_ms": round(1000 * min(map(float, times)), 1), "imports_numpy": "True" in numpy}


def main() -> None:
    used = profile()
    result = {
        "one_plan_ms": {
            "simple, 4 pods": round(one_plan(4, INTENT, None), 3),
            "simple, 100 pods": round(one_plan(100, INTENT, None), 3),
            "calibrated, 4 pods": round(one_plan(4, CALIBRATED, used), 3),
            "calibrated, 100 pods": round(one_plan(100, CALIBRATED, used), 3),
        },
        "tick_of_1000_fleets_s": round(thousand_fleets(used), 3),
        **import_cost(),
    }
    save("decide", result)


if __name__ == "__main__":
    main()
