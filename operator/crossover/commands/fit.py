"""`crossover fit`: what calibration points say."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from crossover.api.points import CalibrationPoint
from crossover.calibrate.result import schedule_inside
from crossover.commands import point_files
from crossover.decide.crossings import Crossover, crossover_document, crossovers
from crossover.decide.operating import Conditions, Rates, all_rates
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.decide.schedule import describe
from crossover.decide.sweeps import Series, is_sweep, read_sweeps
from crossover.decide.tables import TableError, read_points, rows_of

app = typer.Typer()
ASSUMED = " (0 was not measured inside the engine: taken from off)"


@app.command()
def fit(
    points: Annotated[
        Path,
        typer.Argument(help="Calibration points: CSV, JSON or a saved Calibration (YAML); or a CSV of speed-ups."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines; the keys are documented in docs/fit.md.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as a picture (PNG, SVG or PDF).")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the points too: .csv, .json, or .yaml for a Calibration that kubectl apply takes."),
    ] = None,
    tpot_ms: Annotated[
        float | None, typer.Option(help="Target for time per output token, for the capacity.", min=0.1)
    ] = None,
    context_tokens: Annotated[
        float | None, typer.Option(help="KV tokens per request to judge at; default: the measured mean.", min=1)
    ] = None,
    max_running: Annotated[float | None, typer.Option(help="The engine's limit on running requests.", min=1)] = None,
    kv_capacity_tokens: Annotated[
        float | None, typer.Option(help="KV pool of one scheduler, in tokens.", min=1)
    ] = None,
) -> None:
    """Fit calibration points: where speculation stops paying, the schedule, the capacity of one scheduler.

    POINTS ends in .json or .yaml: a list of points, what `crossover calibrate --json` printed, or `kubectl get cal NAME -o
    yaml`. Else it is a CSV with one line per measurement. Columns: running_requests, draft_tokens (a number, or "off" for a
    process started without speculation; 0 is a speculating engine whose draft length is 0), context_tokens, step_ms or
    tokens_per_second, acceptance_length (bonus token included); optional verified_tokens (trees) and relative_error. A
    published sweep with the columns batch_or_concurrency and speedup, or tok_s_per_user and ratio, gives the crossover of
    every series.

    Exit status: 0 the points were used, 2 they cannot be (the message names line, column, value and fix).

    Example: crossover fit points.csv --tpot-ms 40 --plot curves.png
    """
    try:
        if points.suffix.lower() in point_files.OBJECTS:
            measured = point_files.read(points)
        else:
            rows = rows_of(point_files.text_of(points))
            if is_sweep(rows):
                _sweeps(read_sweeps(rows), as_json, plot)
                return
            measured = read_points(rows)
        profile = fit_profile(measured, source=points.name)
    except OSError as error:
        raise _unusable(f"{points}: {error.strerror or type(error).__name__}") from None
    except (TableError, ProfileError) as error:
        raise _unusable(f"{points}: {error}") from None
    conditions = Conditions(
        context_tokens if context_tokens is not None else profile.context_tokens,
        max_running_requests=max_running,
        kv_capacity_tokens=kv_capacity_tokens,
        tpot_seconds=tpot_ms / 1000 if tpot_ms is not None else None,
    )
    result = summary(profile, conditions)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print(profile, conditions, result)
    if out is not None:
        _write(out, measured)
    if plot is not None:
        _draw(lambda pictures: pictures.plot_profile(profile, conditions, plot), plot)


def _write(path: Path, measured: Sequence[CalibrationPoint]) -> None:
    try:
        point_files.write(path, measured)
    except OSError as error:
        raise _unusable(f"--out {path}: {error.strerror or type(error).__name__}") from None
    typer.echo(f"points: {path}", err=True)


def _unusable(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)


def _draw(draw: Callable[[Any], None], path: Path) -> None:
    """matplotlib is imported only here: the operator's image has none."""
    try:
        pictures = importlib.import_module("crossover.commands.fit_plot")
    except ModuleNotFoundError as error:
        raise _unusable(f"--plot {path}: needs {error.name}: pip install 'crossover[analysis]'") from None
    try:
        draw(pictures)
    except OSError as error:
        raise _unusable(f"--plot {path}: {error.strerror or type(error).__name__}") from None
    except ValueError:
        raise _unusable(
            f"--plot {path}: {path.suffix or 'no suffix'} is not a picture: name it .png, .svg or .pdf"
        ) from None
    typer.echo(f"plot: {path}", err=True)


# -- calibration points ------------------------------------------------------------------------------------------------


def summary(profile: Profile, conditions: Conditions) -> dict[str, Any]:
    """Everything `--json` prints. Numbers are plain; unknown is null."""
    rates = {variant: Rates.of(profile, variant, conditions) for variant in profile.measured}
    schedule, assumed = schedule_inside(profile, all_rates(profile, profile.curves, conditions))
    return {
        "kind": "points",
        "points": sum(curve.points for curve in profile.curves.values()),
        "context_tokens": conditions.context_tokens,
        "fit_relative_error": profile.shape.relative_error if profile.shape is not None else None,
        "crossovers": [_crossover_json(item) for item in crossovers(profile, conditions)],
        "schedule": [list(entry) for entry in schedule],
        "schedule_text": describe(schedule),
        "schedule_zero_is_assumed": assumed,
        "capacity": [
            {
                "variant": variant.name,
                "tokens_per_second": item.capacity if item.capacity > 0 else None,
                "running_requests": item.batch_at(item.capacity) if item.capacity > 0 else None,
                "measured_running_requests": list(item.measured),
            }
            for variant, item in rates.items()
        ],
    }


def _crossover_json(item: Crossover) -> dict[str, Any]:
    shown = crossover_document(item)
    for crossing in shown["crossings"]:
        crossing["verified_tokens"] = crossing["running_requests"] * (item.variant.draft_tokens + 1)
    return shown


def _print(profile: Profile, conditions: Conditions, result: dict[str, Any]) -> None:
    console = Console()
    error = result["fit_relative_error"]
    how = (
        f"step-time terms fitted to {error:.1%}" if error is not None else "too few points for more than straight lines"
    )
    console.print(f"{result['points']} points, {conditions.context_tokens:.0f} KV tokens per request; {how}\n")
    table = Table("draft", "against", "crossover", "verified", "gain at lowest", "gain at highest")
    for item in crossovers(profile, conditions):
        verified = ", ".join(f"{c.running_requests * (item.variant.draft_tokens + 1):.0f}" for c in item.crossings)
        gains = (item.gain_at_low, item.gain_at_high)
        ends = [f"{gain:+.0%} at {load:g}" for gain, load in zip(gains, item.measured, strict=True)]
        table.add_row(str(item.variant.draft_tokens), item.against.name, item.shown, verified or "-", *ends)
    if table.row_count:
        console.print("crossover in running requests (95 % interval), and as verified tokens per step")
        console.print(table)
    else:
        console.print("No crossover: measure at least one draft length and one zero (0 or off).")
    console.print(f"schedule: {result['schedule_text']}{ASSUMED if result['schedule_zero_is_assumed'] else ''}")
    target = conditions.tpot_seconds
    how = f" at TPOT <= {1000 * target:.0f} ms" if target is not None else ""
    capacity = Table(
        "variant", f"capacity{how}, tok/s", "at running requests", title="one scheduler", title_justify="left"
    )
    for entry in result["capacity"]:
        rate, running = entry["tokens_per_second"], entry["running_requests"]
        beyond = running is not None and running > 1.05 * entry["measured_running_requests"][1]
        shown = ("meets the target at no batch", "-") if rate is None else (f"{rate:.0f}", f"{running:.0f}")
        capacity.add_row(entry["variant"], *shown[:1], shown[1] + (" (extrapolated)" if beyond else ""))
    console.print(capacity)


# -- published sweeps --------------------------------------------------------------------------------------------------


def _sweeps(series: list[Series], as_json: bool, plot: Path | None) -> None:
    if as_json:
        document = {"kind": "speedups", "series": [_series_json(item) for item in series]}
        typer.echo(json.dumps(document, indent=2))
    else:
        _print_sweeps(series)
    if plot is not None:
        _draw(lambda pictures: pictures.plot_sweeps(series, plot), plot)


def _series_json(item: Series) -> dict[str, Any]:
    return {
        "name": dict(item.name),
        "axis": "tokens_per_second_per_user" if item.by_speed else "running_requests",
        "points": len(item.points),
        "batch_min": item.points[0][0],
        "batch_max": item.points[-1][0],
        "crossover": item.crossover,
        "crossings": [{"batch": place, "falls": falls} for place, falls in item.crossings],
        "verdict": item.verdict,
    }


def _print_sweeps(series: list[Series]) -> None:
    """One load says nothing about a crossover: such series are only counted, unless there is nothing else."""
    told = [item for item in series if len(item.points) > 1] or series
    axis = "tok/s of one user" if told[0].by_speed else "running requests"
    table = Table("series", "draft", "points", "speed-up", f"crossover, {axis}")
    for item in told:
        shown = " / ".join(item.name[key] for key in ("hardware", "engine", "model", "method") if key in item.name)
        (low, first), (high, last) = item.points[0], item.points[-1]
        ends = f"{first:.2f} at {low:g}, {last:.2f} at {high:g}"
        draft = "-" if item.draft_tokens is None else str(item.draft_tokens)
        table.add_row(shown, draft, str(len(item.points)), ends, item.verdict)
    console = Console()
    console.print(table)
    if len(told) < len(series):
        console.print(f"{len(series) - len(told)} more series were measured at one load only")
