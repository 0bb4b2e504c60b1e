"""The machine a measurement came from, and where results go."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    """CPU model, cores, memory, Python and date."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def save(name: str, result: dict[str, Any]) -> None:
    """Write bench/results/NAME.json and print it."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": describe(), **result}, indent=2) + "\n"
    (RESULTS / f"{name}.json").write_text(text)
    print(text, end="")


def _lines(path: str) -> list[str]:
    place = Path(path)
    return place.read_text().splitlines() if place.exists() else []
