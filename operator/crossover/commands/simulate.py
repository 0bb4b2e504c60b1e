"""`crossover simulate`: a trace under several policies, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from crossover.api.points import CalibrationPoint
from crossover.commands import point_files
from crossover.commands.fit_plot import HOW_TO_READ, profile_figure
from crossover.decide.operating import Conditions
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.decide.tables import TableError
from crossover.simulate.catalog import CATALOG, DEFAULT
from crossover.simulate.compare import TUNING_SHARE, Comparison, Rules, compare, runs
from crossover.simulate.fleet import Physics
from crossover.simulate.plant import ACCEPTANCE, plant
from crossover.simulate.report import COLUMNS, html_page, rows
from crossover.simulate.run import Bounds
from crossover.simulate.traces import Trace, TraceError, read
from crossover.simulate.verdict import sentences, verdicts

app = typer.Typer()

QUICK_BINS = 300_000
"""Bins over all runs below which other processes cost more than they bring."""
BRIEF = ("policy", "gpu_hours", "attainment", "output_tokens_within_slo_per_gpu_hour", "replica_changes", "reversals")
"""What a terminal shows; the rest is in summary.json and report.html."""


@app.command()
def simulate(
    trace: Annotated[
        Path, typer.Argument(help="CSV or CSV.gz: a row a request, or a row a window (docs/simulate.md).")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for summary.json and report.html.")],
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help=f"Repeat for more. Known: {', '.join(CATALOG)}.")
    ] = None,
    plant_source: Annotated[
        str, typer.Option("--plant", help="What servers are: a preset or a CSV of points.")
    ] = "8b-h100",
    profile: Annotated[
        Path | None, typer.Option(help="What the controller believes; default: the plant with 2 % noise.")
    ] = None,
    start: Annotated[float, typer.Option(min=0, help="Begin at this second of the trace.")] = 0.0,
    hours: Annotated[float | None, typer.Option(min=0.01, help="Use this many hours of it.")] = None,
    scale: Annotated[float, typer.Option(min=0.0001, help="Multiply all arrivals.")] = 1.0,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Repeat for intervals.")] = None,
    min_replicas: Annotated[int, typer.Option(min=1)] = 1,
    max_replicas: Annotated[int, typer.Option(min=1)] = 64,
    max_draft_tokens: Annotated[int, typer.Option(min=1, max=16)] = 5,
    ttft: Annotated[float, typer.Option(min=0.01, help="Target, seconds.")] = 2.0,
    tpot: Annotated[float, typer.Option(min=0.001, help="Target, seconds.")] = 0.04,
    workload: Annotated[str, typer.Option(help=f"Acceptance by class: {', '.join(ACCEPTANCE)}.")] = "chat",
    startup_seconds: Annotated[float, typer.Option(min=0, help="Median start-up of a pod.")] = 180.0,
    attainment: Annotated[
        float, typer.Option(min=0, max=1, help="What the search asks of every policy on the tuning part.")
    ] = 0.99,
    frontier: Annotated[
        bool, typer.Option(help="Run every choice of every policy over the contest, and compare at equal attainment.")
    ] = False,
    metric_loss: Annotated[float, typer.Option(min=0, max=1, help="Share of looks that see nothing.")] = 0.0,
    metric_delay: Annotated[float, typer.Option(min=0, help="Age of what policies see, seconds.")] = 5.0,
    fail_at: Annotated[float | None, typer.Option(help="One pod fails at this second of the contest.")] = None,
    lengths: Annotated[str | None, typer.Option(help="IN,OUT mean tokens, for traces of rates.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one where it is quick, else a core each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json too.")] = False,
) -> None:
    """Replay a load trace under several policies and draw what happened.

    The same search tunes every policy's target on the first quarter of the trace; the rest is the contest. Crossover's own
    policies run the very plan of the operator. Writes OUT/summary.json (a record per policy and seed) and OUT/report.html.

    Example: crossover simulate azure2023_conv.csv.gz --policy keda+table --policy crossover --policy clairvoyant --out out
    """
    names = tuple(policy or DEFAULT)
    unknown = [name for name in names if name not in CATALOG]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: one of {', '.join(CATALOG)}", param_hint="--policy")
    if workload not in ACCEPTANCE:
        raise typer.BadParameter(f"{workload!r}: one of {', '.join(ACCEPTANCE)}", param_hint="--workload")
    try:
        used = _trace(trace, start, hours, scale, (seed or [1])[0], lengths)
        ground = plant(plant_source, ACCEPTANCE[workload])
        belief = fit_profile(_points(profile), source=profile.name) if profile is not None else None
    except (TraceError, ProfileError, ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    physics = Physics(
        ground,
        startup_median_seconds=startup_seconds,
        ttft_target_seconds=ttft,
        tpot_target_seconds=tpot,
        failure_seconds=fail_at,
    )
    bounds = Bounds(min_replicas, max_replicas)
    rules = Rules(tuple(seed or [1]), attainment, metric_loss, metric_delay, frontier)
    made = _compare(used, physics, bounds, rules, names, max_draft_tokens, belief, jobs)
    _write(out, made, _notes(used, plant_source, profile, physics, workload))
    _show(made)
    if as_json:
        typer.echo(json.dumps(made.summary(), indent=2))


def _points(path: Path) -> list[CalibrationPoint]:
    try:
        return point_files.read(path)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None


def _trace(path: Path, start: float, hours: float | None, scale: float, seed: int, lengths: str | None) -> Trace:
    given = None
    if lengths is not None:
        first, comma, second = lengths.partition(",")
        if not comma:
            raise TraceError(f"--lengths {lengths!r}: write it as 900,150")
        given = (float(first), float(second))
    read_in = read(path, seed=seed, lengths=given, hours=hours)
    return read_in.window(start, None if hours is None else hours * 3600).scaled(scale)


def _compare(
    trace: Trace,
    physics: Physics,
    bounds: Bounds,
    rules: Rules,
    names: tuple[str, ...],
    max_draft_tokens: int,
    belief: Profile | None,
    jobs: int | None,
) -> Comparison:
    work = runs(names, rules)
    is_quick = work * len(trace.bins) < QUICK_BINS
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("reading", total=work)
        return compare(
            trace,
            physics,
            bounds,
            rules,
            policies=names,
            max_draft_tokens=max_draft_tokens,
            profile=belief,
            progress=lambda text: progress.update(bar, description=text, advance=1),
            jobs=1 if jobs is None and is_quick else jobs,
        )


def _notes(trace: Trace, source: str, profile: Path | None, physics: Physics, workload: str) -> list[str]:
    return [
        f"{trace.requests:,.0f} requests in {trace.seconds / 3600:.2f} h, mean input {trace.mean_input_tokens:.0f} and output "
        f"{trace.mean_output_tokens:.0f} tokens; the first {TUNING_SHARE:.0%} tunes, the rest is the contest.",
        f"Plant {source}, {workload} acceptance; the controller believes {profile or 'the plant with 2 % of noise'}.",
        f"Targets: TTFT {physics.ttft_target_seconds:g} s, TPOT {physics.tpot_target_seconds:g} s; start-up "
        f"{physics.startup_median_seconds:g} s median.",
        "A fluid model: requests of one bin share one fate (docs/simulate.md says what that loses).",
    ]


def _write(out: Path, made: Comparison, notes: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(made.summary(), indent=2) + "\n")
    (out / "report.html").write_text(html_page(made, notes, _picture(made.belief)))


def _picture(belief: Profile | None) -> tuple[Figure, str] | None:
    if belief is None:
        return None
    return profile_figure(belief, Conditions(belief.context_tokens)), HOW_TO_READ


def _show(made: Comparison) -> None:
    columns = [column for column in COLUMNS if column[0] in BRIEF]
    table = Table(title=made.trace)
    for _, title, _ in columns:
        table.add_column(title, justify="left" if title == "policy" else "right", no_wrap=title == "policy")
    for row in rows(made.outcomes, columns):
        table.add_row(*row)
    Console().print(table)
    for verdict in verdicts(made):
        typer.echo("\n".join(sentences(verdict)))
