"""`crossover calibrate`: measure where speculation stops paying, on servers that are up."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from crossover.api.fleet import EngineType
from crossover.api.points import CalibrationPoint
from crossover.calibrate.contract import (
    Ask,
    Described,
    FailureReason,
    Measured,
    MeasureFailure,
    Precision,
    Route,
    Server,
    SweepPlan,
)
from crossover.calibrate.contract import Progress as PointProgress
from crossover.calibrate.measure import RealClock, describe, measure
from crossover.calibrate.probe import open_http
from crossover.calibrate.runner import Swept, sweep_servers
from crossover.calibrate.sweep import estimate_points
from crossover.calibrate.workload import Workload, WorkloadError
from crossover.commands import point_files
from crossover.commands.calibrate_answer import UNUSABLE_INPUT, Outcome, tell
from crossover.decide.tables import TableError
from crossover.decide.variant import GATED, OFF, Variant

app = typer.Typer()
NAMES = {str(kind).lower(): kind for kind in EngineType}
TOKEN_VARIABLE = "CROSSOVER_TOKEN"


@app.command()
def calibrate(
    urls: Annotated[
        list[str],
        typer.Argument(help="http(s)://HOST:PORT of servers of one model, each with its own speculation setting."),
    ],
    running: Annotated[
        str,
        typer.Option(help="Loads in running requests: a range 1-64, or exactly these: 1,8,32,64."),
    ] = "1-64",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="What the servers run as, in the order of the URLs: a draft length, gated or off. Left out: asked."
        ),
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Prompt length.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=2, help="Answer length.")] = 256,
    input_percentiles: Annotated[
        str | None, typer.Option(help="Prompt lengths by percentile instead: 5:60,50:400,99:3000.")
    ] = None,
    output_percentiles: Annotated[str | None, typer.Option(help="Answer lengths by percentile instead.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV (or .gz) with input_tokens and output_tokens: lengths drawn from it.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Text file, one prompt a line: acceptance depends on what is written.")
    ] = None,
    max_points: Annotated[int, typer.Option(min=2, max=500, help="Most points to measure.")] = 24,
    minutes: Annotated[
        float | None, typer.Option(min=0.05, help="Most time to spend; 1.5 minutes a point at most.")
    ] = None,
    precision: Annotated[
        float, typer.Option(min=0.05, max=10, help="Wanted standard error of a step time, in percent.")
    ] = 0.5,
    tpot_ms: Annotated[float | None, typer.Option(min=0.1, help="TPOT target, for the capacity.")] = None,
    engine: Annotated[
        str | None, typer.Option(help=f"Which server, where it cannot be told: {', '.join(NAMES)}.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name of requests; left out, the first that is served.")
    ] = None,
    route: Annotated[Route, typer.Option(help="How requests are sent.")] = Route.AUTO,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the metrics, where it is another one (Triton: 8002).")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the bearer token; or the variable {TOKEN_VARIABLE}.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Points (.csv, .json, .yaml), written after each; points already in it are kept and used."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; keys in docs/calibrate.md.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as a picture (PNG, SVG or PDF).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of lengths and prompts.")] = 1,
) -> None:
    """Measure where speculation stops paying, on servers at hand.

    Start the model once for each setting to compare (without speculation, with draft length 3, ...), each server for itself
    and unused by others, and give their addresses. Points are spent where curves may cross; "never" is an answer too.

    Exit status: 0 when there is an answer, 1 when what was measured gives none, 2 when a server or an option cannot be used,
    130 when interrupted (what was measured is kept).

    Example: crossover calibrate http://127.0.0.1:30000 http://127.0.0.1:30001 --running 1-128 --out points.csv
    """
    try:
        workload = _workload(
            trace,
            prompts,
            _percentiles("--input-percentiles", input_percentiles, input_tokens),
            _percentiles("--output-percentiles", output_percentiles, output_tokens),
        )
        smallest, largest, ladder = _loads(running)
        token = _token(token_file)
        servers = [
            replace(_server(url, engine, model, route, token, kind), metrics_port=metrics_port)
            for url, kind in zip(urls, _kinds(draft, urls), strict=True)
        ]
        earlier = _earlier(out)
    except (_BadInputError, WorkloadError, TableError, OSError, UnicodeDecodeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNUSABLE_INPUT) from None
    most = 90.0 if minutes is None else max(2.0, min(90.0, 60 * minutes * 2 / max_points))
    job = _Job(
        servers,
        SweepPlan((), smallest, largest, ladder, max_points),
        workload,
        Precision(precision / 100, min(4.0, most / 3), most),
        Swept(points=earlier),
        out,
        None if minutes is None else 60 * minutes,
        seed,
    )
    try:
        interrupted = asyncio.run(job.run())
    except MeasureFailure as failure:
        typer.echo(failure.message, err=True)
        raise typer.Exit(UNUSABLE_INPUT) from None
    outcome = Outcome(job.described, job.swept, workload.mean_output_tokens, interrupted)
    raise typer.Exit(tell(outcome, None if tpot_ms is None else tpot_ms / 1000, as_json=as_json, plot=plot))


class _BadInputError(ValueError):
    """An option that cannot be used: which, its value, and what would do."""


# -- options -----------------------------------------------------------------------------------------------------------


def _loads(text: str) -> tuple[int, int, tuple[int, ...]]:
    """(smallest, largest, exact ladder)."""
    try:
        if "-" in text:
            low, high = (int(part) for part in text.split("-"))
            if not 1 <= low <= high:
                raise ValueError
            return low, high, ()
        ladder = tuple(sorted({int(part) for part in text.split(",")}))
        if ladder[0] < 1:
            raise ValueError
    except ValueError:
        raise _BadInputError(f"--running {text!r}: write a range like 1-64 or a list like 1,8,32,64") from None
    return ladder[0], ladder[-1], ladder if len(ladder) > 1 else ()


def _kinds(draft: list[str] | None, urls: list[str]) -> list[Variant | None]:
    if not draft:
        return [None] * len(urls)
    if len(draft) != len(urls):
        raise _BadInputError(
            f"--draft is given {len(draft)} times for {len(urls)} URLs: give it once for each, in their order"
        )
    return [_kind(text) for text in draft]


def _kind(text: str) -> Variant:
    if text in ("off", "gated"):
        return OFF if text == "off" else GATED
    if not text.isdigit() or int(text) < 1:
        raise _BadInputError(f"--draft {text!r}: a draft length of 1 or more, gated (draft length 0) or off")
    return Variant(int(text))


def _server(
    url: str, engine: str | None, model: str | None, route: Route, token: str | None, kind: Variant | None
) -> Server:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise _BadInputError(f"{url!r}: give http://HOST:PORT without a path")
    if parts.username or parts.password:
        raise _BadInputError("a URL must not hold a password: use --token-file")
    if engine is not None and engine.lower() not in NAMES:
        raise _BadInputError(f"--engine {engine!r}: one of {', '.join(NAMES)}")
    return Server(url.rstrip("/"), NAMES[engine.lower()] if engine else None, model, kind, token, route)


def _token(path: Path | None) -> str | None:
    text = path.read_text(encoding="utf-8") if path is not None else os.environ.get(TOKEN_VARIABLE, "")
    token = text.strip()
    if any(not 33 <= ord(character) < 127 for character in token):
        raise _BadInputError("--token-file: a token is one word of printable ASCII")
    return token or None


def _earlier(out: Path | None) -> list[CalibrationPoint]:
    if out is None or not out.exists():
        return []
    try:
        return point_files.read(out)
    except TableError as error:
        raise TableError(f"--out {out}: {error}") from None


def _percentiles(option: str, text: str | None, fixed: int) -> list[tuple[float, float]]:
    """``"50:400,99:3000"`` -> [(0.5, 400), (0.99, 3000)]; not given: one length at all of them."""
    if text is None:
        return [(0.5, fixed)]
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return [(float(share) / 100, float(int(tokens))) for share, tokens in pairs]
    except ValueError:
        raise _BadInputError(f"{option} {text!r}: write percentile:tokens, as in 5:60,50:400,99:3000") from None


def _workload(
    trace: Path | None, prompts: Path | None, inputs: list[tuple[float, float]], outputs: list[tuple[float, float]]
) -> Workload:
    texts: tuple[str, ...] = ()
    if prompts is not None:
        texts = tuple(line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip())
        if not texts:
            raise _BadInputError(f"--prompts {prompts}: no text in it")
    if trace is None:
        return Workload.of_quantiles(inputs, outputs, texts)
    raw = trace.read_bytes()
    text = (gzip.decompress(raw) if trace.suffix == ".gz" else raw).decode("utf-8")
    found = Workload.of_trace(text)
    return Workload(found.pairs, texts)


# -- the run -----------------------------------------------------------------------------------------------------------


class _Job:
    """One run and its progress bar."""

    def __init__(
        self,
        servers: list[Server],
        plan: SweepPlan,
        workload: Workload,
        precision: Precision,
        swept: Swept,
        out: Path | None,
        seconds: float | None,
        seed: int,
    ) -> None:
        self._servers, self._plan, self._workload, self._precision = servers, plan, workload, precision
        self.swept, self._out, self._seconds, self._seed = swept, out, seconds, seed
        self.described: dict[Variant, Described] = {}

    async def run(self) -> bool:
        """True = interrupted. Raises `MeasureFailure` for a server that cannot be used at all."""
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            async with open_http() as http:
                await self._describe(http)
                await self._sweep(http)
        except asyncio.CancelledError:
            return True
        return False

    async def _describe(self, http: Any) -> None:
        for server in self._servers:
            try:
                described = await describe(server, http=http)
            except MeasureFailure as failure:
                raise MeasureFailure(failure.reason, f"{server.base_url}: {failure.message}") from None
            other = self.described.get(described.variant)
            if other is not None:
                raise _failure_of_twins(other, described)
            self.described[described.variant] = described

    async def _sweep(self, http: Any) -> None:
        limits = {v: d.most_running_requests for v, d in self.described.items() if d.most_running_requests}
        plan = SweepPlan(
            tuple(sorted(self.described)),
            self._plan.smallest_running_requests,
            self._plan.largest_running_requests,
            self._plan.ladder,
            self._plan.most_points,
            limits=limits,
        )
        clock = RealClock()
        ends_at = None if self._seconds is None else clock.now() + self._seconds
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} points"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        earlier = sum(Variant(point.draft_tokens, point.off) in self.described for point in self.swept.points)
        with bar:
            row = bar.add_task("starting", total=estimate_points(plan), completed=earlier)
            asked: list[Ask] = []

            def on_ask(ask: Ask) -> None:
                asked.append(ask)
                bar.update(row, description=f"{ask.variant.shown} at {ask.running_requests}")

            def on_point(progress: PointProgress) -> None:
                error = f", known to {progress.relative_error:.1%}" if progress.relative_error else ""
                ask = asked[-1]
                bar.update(
                    row, description=f"{ask.variant.shown} at {ask.running_requests}: {progress.seconds:.0f} s{error}"
                )

            def on_measured(measured: Measured) -> None:
                done = earlier + len(self.swept.measured)
                bar.update(row, completed=done, total=max(done, estimate_points(plan)))
                self._write()

            async def one(described: Described, running_requests: int) -> Measured:
                return await measure(
                    described,
                    running_requests,
                    self._workload,
                    http=http,
                    precision=self._precision,
                    progress=on_point,
                    seed=self._seed + len(self.swept.measured),
                )

            await sweep_servers(
                self.described,
                plan,
                one,
                self.swept,
                clock=clock,
                on_ask=on_ask,
                on_measured=on_measured,
                ends_at=ends_at,
            )

    def _write(self) -> None:
        if self._out is not None:
            point_files.write(self._out, self.swept.points)


def _failure_of_twins(one: Described, other: Described) -> MeasureFailure:
    return MeasureFailure(
        FailureReason.REJECTED,
        f"{one.server.base_url} and {other.server.base_url} both run as {one.variant.shown}: give one server for each setting",
    )
