"""What the fluid fleet of `crossover simulate` loses against a run request by request on the emulators' scheduler.

The same requests, the same plant, a fixed number of replicas behind a least-requests router. `EngineCore` batches, prefills
in chunks and draws acceptance request by request; the fluid advances bins. Errors are the fluid's, in points of attainment
and as shares of times.
"""

from __future__ import annotations

import csv
import gzip
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.machine import save
from crossover.decide.step_model import PRESETS
from crossover.emulate.core import EngineCore
from crossover.emulate.drafts import Fixed
from crossover.emulate.requests import Limits, Request
from crossover.emulate.truth import Truth
from crossover.simulate.fleet import Physics
from crossover.simulate.plant import ACCEPTANCE, ModelPlant
from crossover.simulate.policies.peers import Static
from crossover.simulate.run import Bounds, Outcome, run
from crossover.simulate.traces import Bin, Trace, read

TRACES = Path(__file__).parent / "traces"
SECONDS = 600.0
MODEL = PRESETS["8b-h100"]
DRAFT = 3
PLANT = ModelPlant(MODEL, ACCEPTANCE["chat"])
PHYSICS = Physics(PLANT)
SETTINGS = (
    ("azure2023_conv", 2, 1),
    ("azure2023_conv", 4, 2),
    ("azure2023_conv", 4, 1),
    ("mooncake_fast25_conversation", 1, 4),
)
"""Trace, each request so many times, replicas."""


@dataclass(frozen=True, slots=True)
class Measured:
    ttft_attainment: float
    tpot_attainment: float
    ttft_p50_s: float
    tpot_p50_s: float
    tpot_p99_s: float


def requests(name: str, copies: int) -> list[tuple[float, int, int]]:
    """(arrival, input, output) of the first `SECONDS`; copies are spread over the second."""
    with gzip.open(TRACES / f"{name}.csv.gz", "rt") as file:
        rows = [(float(r["t_s"]), int(r["input_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(file)]
    rows = [row for row in rows if row[0] < SECONDS and row[2] > 0]
    return sorted((at + copy / copies, given, made) for at, given, made in rows for copy in range(copies))


def one_by_one(arrivals: list[tuple[float, int, int]], replicas: int, *, round_robin: bool = False) -> Measured:
    truth = Truth(MODEL, (ACCEPTANCE["chat"],))
    limits = Limits(PHYSICS.max_running_requests, int(PLANT.kv_capacity_tokens))
    cores = [EngineCore(truth, limits, Fixed(DRAFT), seed=number + 1) for number in range(replicas)]
    sent: list[Request] = []
    for number, (at, given, made) in enumerate(arrivals):
        for core in cores:
            core.advance(at)
        least = min(cores, key=lambda core: len(core.running) + len(core.waiting))
        least = cores[number % replicas] if round_robin else least
        sent.append(least.submit(at, given, made))
    for core in cores:
        core.advance(arrivals[-1][0] + 3600.0)
    ttfts, tpots = [], []
    for item in sent:
        assert item.first_token_at_seconds is not None
        assert item.ended_at_seconds is not None
        ttfts.append(item.first_token_at_seconds - item.arrived_at_seconds)
        tpots.append((item.ended_at_seconds - item.first_token_at_seconds) / max(item.output_tokens - 1, 1))
    return Measured(
        share(ttfts, PHYSICS.ttft_target_seconds),
        share(tpots, PHYSICS.tpot_target_seconds),
        quantile(ttfts, 0.5),
        quantile(tpots, 0.5),
        quantile(tpots, 0.99),
    )


def share(values: list[float], most: float) -> float:
    return sum(value <= most for value in values) / len(values)


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(at * len(values)))]


def as_fluid(trace: Trace, replicas: int) -> Outcome:
    return run(
        "static",
        trace,
        PHYSICS,
        Bounds(replicas, replicas),
        lambda running: (DRAFT, False),
        lambda fleet: Static(float(replicas)),
        seed=1,
    )


def merged(trace: Trace, count: int) -> Trace:
    """Bins as long traces have them."""
    bins = []
    for first in range(0, len(trace.bins), count):
        part = trace.bins[first : first + count]
        total = sum(item.requests for item in part)
        given = sum(item.requests * item.input_tokens for item in part) / max(total, 1e-9)
        made = sum(item.requests * item.output_tokens for item in part) / max(total, 1e-9)
        bins.append(Bin(total, given, made if total else 1.0))
    return replace(trace, bin_seconds=trace.bin_seconds * count, bins=tuple(bins))


def compared(name: str, copies: int, replicas: int) -> dict[str, Any]:
    arrivals = requests(name, copies)
    began = time.process_time()
    exact = one_by_one(arrivals, replicas)
    middle = time.process_time()
    trace = read(TRACES / f"{name}.csv.gz").window(0, SECONDS).scaled(copies)
    fluid = as_fluid(trace, replicas)
    after = time.process_time()
    round_robin = one_by_one(arrivals, replicas, round_robin=True)
    coarse = as_fluid(merged(trace, 10), replicas)
    return {
        "trace": name,
        "requests": len(arrivals),
        "replicas": replicas,
        **{
            field: {
                "one_by_one": round(getattr(exact, field), 4),
                "one_by_one_round_robin": round(getattr(round_robin, field), 4),
                "fluid": round(getattr(fluid, field), 4),
                "fluid_10_s_bins": round(getattr(coarse, field), 4),
            }
            for field in Measured.__slots__
        },
        "cpu_ratio": round((middle - began) / (after - middle)),
    }


def main() -> None:
    save("fluid", {"seconds": SECONDS, "draft_tokens": DRAFT, "runs": [compared(*setting) for setting in SETTINGS]})


if __name__ == "__main__":
    main()
