"""`make demo`: two emulated fleets on a real control plane, load up and down, the story in kubectl describe.

Exit status 0 only if the story is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from e2e.demo.fleets import FLEETS
from e2e.demo.rig import Rig
from e2e.demo.story import STORIES, Evidence

LOW, HIGH = 30, 160
"""Requests in flight per fleet: 10 and 53 on each of 3 pods, threshold 32, target 40."""
PHASES = (
    ("schedule and first looks, low load", 30.0, LOW, LOW),
    ("ramp up across the threshold", 20.0, LOW, HIGH),
    ("high load", 55.0, HIGH, HIGH),
    ("ramp down", 15.0, HIGH, LOW),
    ("low load", 60.0, LOW, LOW),
)
STEP_SECONDS = 0.5
PRINT_SECONDS = 5.0


def main() -> int:
    console = Console(soft_wrap=True, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="crossover-demo-"))
    rig = Rig(folder)
    good = False
    try:
        for name, step in (
            ("control plane", rig.control_plane),
            ("chart", rig.chart),
            ("operator", rig.operator),
            ("fleets", rig.fleets),
            ("autoscalers", rig.autoscalers),
        ):
            _step(console, name, step)
        ramp_at, fall_at = asyncio.run(_play(console, rig))
        _show(console, rig)
        good = _judge(console, rig, ramp_at, fall_at)
    finally:
        rig.stop()
        if not good:
            console.print(f"operator log: {folder}/operator-1.log")
    return 0 if good else 1


def _step(console: Console, name: str, step: Callable[[], str]) -> None:
    began = time.monotonic()
    with console.status(f"{name} ...") if console.is_terminal else contextlib.nullcontext():
        said = step()
    console.print(f"[green]ok[/] {name:<14} {time.monotonic() - began:5.1f} s  {said}")


async def _play(console: Console, rig: Rig) -> tuple[float, float]:
    """Drive the load; the times at which it began to rise and to fall."""
    times: dict[str, float] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(progress)
        await rig.run(stack)
        bar = progress.add_task("load", total=sum(seconds for _, seconds, _, _ in PHASES))
        printed = 0.0
        for name, seconds, first, last in PHASES:
            times[name] = began = time.time()
            while (now := time.time()) < began + seconds:
                share = (now - began) / seconds
                rig.set_load(round(first + (last - first) * share))
                progress.update(bar, advance=STEP_SECONDS, description=f"{name}: {_line(rig)}")
                if not console.is_terminal and now - printed >= PRINT_SECONDS:
                    printed = now
                    console.print(f"{time.strftime('%H:%M:%S')} {name:<34} {_line(rig)}")
                await asyncio.sleep(STEP_SECONDS)
        rig.set_load(0)
    return times["ramp up across the threshold"], times["ramp down"]


def _line(rig: Rig) -> str:
    """Both fleets in one line, from the witness's newest sample."""
    parts = []
    for fleet in FLEETS:
        samples = rig.records[fleet.name].samples
        if samples:
            now = samples[-1]
            drafts = sorted({pod.draft_tokens for pod in now.pods}) or ["?"]
            shown = "-".join(str(draft) for draft in dict.fromkeys((drafts[0], drafts[-1])))
            parts.append(
                f"{fleet.name}: {now.ready}/{now.replicas} pods, batch {now.mean_running or 0:4.1f}, draft {shown}"
            )
    return "   ".join(parts)


def _show(console: Console, rig: Rig) -> None:
    for arguments in (("get", "modelautoscalers"), *(("describe", "modelautoscaler", fleet.name) for fleet in FLEETS)):
        console.print(f"\n[bold]$ kubectl {' '.join(arguments)}[/]")
        console.print(rig.kubectl(*arguments), markup=False)


def _judge(console: Console, rig: Rig, ramp_at: float, fall_at: float) -> bool:
    good = True
    for fleet in FLEETS:
        console.print(f"\n[bold]The story of {fleet.name}[/]")
        evidence = Evidence(
            rig.records[fleet.name], rig.status(fleet.name), rig.events(fleet.name), rig.process.log, ramp_at, fall_at
        )
        for line in STORIES[fleet.name](evidence):
            good &= line.holds
            console.print(f"  [{'green' if line.holds else 'red'}]{'ok  ' if line.holds else 'FAIL'}[/] {line.text}")
    console.print("\n[bold green]The story is right.[/]" if good else "\n[bold red]The story is NOT right.[/]")
    return good


if __name__ == "__main__":
    sys.exit(main())
