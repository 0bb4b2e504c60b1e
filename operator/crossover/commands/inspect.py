"""`crossover inspect`: what Crossover sees in one pod, the first thing to run when something looks wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from crossover.api.fleet import Capability, PodReading, SchedulerReading
from crossover.engines import ENGINES, detect
from crossover.engines.contract import Answer, Engine
from crossover.observe.scraper import Scraper, Unusable
from crossover.report.texts import SCRAPE_FAULT_FIX

app = typer.Typer()

AUTO = "auto"
NAMES = {str(kind).lower(): kind for kind in ENGINES}
KNOWN, UNKNOWN, UNREADABLE = 0, 1, 2
SHOWN = tuple(field.name for field in fields(SchedulerReading) if field.name != "unknown")


@app.command()
def inspect(
    source: Annotated[
        str, typer.Argument(help="http://HOST:PORT, a full URL of /metrics or /v1/loads, a FILE, or - for stdin.")
    ],
    engine: Annotated[str, typer.Option(help=f"Which server: {AUTO}, {', '.join(NAMES)}.")] = AUTO,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, stable and documented in docs/inspect.md.")
    ] = False,
) -> None:
    """Show what Crossover sees in a pod, with every trap it recognised.

    Exit status: 0 when the batch is known, 1 when it is not, 2 when the source cannot be read.

    Example: kubectl port-forward pod/llama-0 30000 & crossover inspect http://127.0.0.1:30000
    """
    if engine != AUTO and engine.lower() not in NAMES:
        raise typer.BadParameter(f"{engine!r}: one of {AUTO}, {', '.join(NAMES)}", param_hint="--engine")
    wanted = None if engine == AUTO else ENGINES[NAMES[engine.lower()]]
    try:
        answers, info = _from_url(source, wanted) if "://" in source else (_from_file(source), None)
    except Unusable as unusable:
        port = urlsplit(source).port
        text = SCRAPE_FAULT_FIX[unusable.fault].format(port=port if port is not None else "(none given)")
        typer.echo(f"{source} {text} ({unusable.detail})" if unusable.detail else f"{source} {text}", err=True)
        raise typer.Exit(UNREADABLE) from None
    except OSError as error:
        typer.echo(f"{source}: {error.strerror or type(error).__name__}", err=True)
        raise typer.Exit(UNREADABLE) from None
    found = wanted or detect(answers)
    if found is None:
        typer.echo(f"{source}: no engine that Crossover knows answers like that ({', '.join(NAMES)})", err=True)
        raise typer.Exit(UNREADABLE)
    reading = found.read(answers, time.time(), None)
    capability = found.capability(info, None) if info is not None else None
    document = as_document(reading, capability)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(document)
    if reading.fault is not None:
        raise typer.Exit(UNREADABLE if not answers else UNKNOWN)
    raise typer.Exit(KNOWN if all(item.running_requests is not None for item in reading.schedulers) else UNKNOWN)


def as_document(reading: PodReading, capability: Capability | None) -> dict[str, Any]:
    """The documented JSON object. Unknown is null, its reason stands in ``unknown`` of the same scheduler."""
    version = (capability.version if capability is not None else None) or reading.version
    document: dict[str, Any] = {
        "engine": str(reading.engine) if reading.engine is not None else None,
        "version": version,
        "source": reading.source,
        "fault": str(reading.fault) if reading.fault is not None else None,
        "traps": [{"code": trap.code, "message": trap.message} for trap in reading.traps],
        "schedulers": [
            {**{name: getattr(scheduler, name) for name in SHOWN}, "unknown": dict(scheduler.unknown)}
            for scheduler in reading.schedulers
        ],
    }
    if capability is not None:
        document["speculation"] = {
            "algorithm": capability.speculative_algorithm,
            "max_draft_tokens": capability.max_draft_tokens,
            "can_follow_schedule": capability.schedule_dialect is not None,
            "why_not": capability.schedule_refusal,
            "follows_schedule": capability.follows_schedule,
            "adapts_by_itself": capability.adapts_by_itself,
        }
    return document


def _from_file(source: str) -> list[Answer]:
    body = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    is_loads = body.lstrip()[:1] == b"{"
    return [Answer("/v1/loads" if is_loads else "/metrics", 200, body)]


def _from_url(source: str, wanted: Engine | None) -> tuple[list[Answer], Answer | None]:
    """All that Crossover itself would fetch from this server. Raises Unusable."""
    parts = urlsplit(source)
    if parts.scheme != "http" or not parts.hostname:
        raise typer.BadParameter(f"{source!r}: give http://HOST:PORT", param_hint="SOURCE")
    return asyncio.run(
        _fetch(parts.hostname, parts.port or 80, parts.path + (f"?{parts.query}" if parts.query else ""), wanted)
    )


async def _fetch(host: str, port: int, path: str, wanted: Engine | None) -> tuple[list[Answer], Answer | None]:
    engines = [wanted] if wanted is not None else list(ENGINES.values())
    async with Scraper(timeout_seconds=5.0) as scraper:
        if path not in ("", "/"):
            return [await scraper.fetch(host, port, path)], None
        answers: list[Answer] = []
        for engine in engines:
            answers = await scraper.first_group(host, port, engine.load_paths(None))
            if any(engine.recognises(answer) for answer in answers):
                return answers, await _info(scraper, host, port, engine)
        return answers, None


async def _info(scraper: Scraper, host: str, port: int, engine: Engine) -> Answer | None:
    for path in engine.info_paths:
        try:
            answer = await scraper.fetch(host, port, path)
        except Unusable:
            return None
        if answer.status == 200:
            return answer
    return None


def _show(document: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"[bold]{document['engine'] or 'unknown engine'}[/] {document['version'] or ''}  by {document['source']}"
    )
    if document["fault"]:
        console.print(f"[red]fault[/] {document['fault']}")
    for scheduler in document["schedulers"]:
        table = Table(title=f"scheduler {scheduler['name']}", title_justify="left", show_header=False)
        for name in SHOWN[1:]:
            value, reason = scheduler[name], scheduler["unknown"].get(name)
            if value is not None:
                table.add_row(name, f"{value:g}" if isinstance(value, int | float) else str(value), "")
            elif reason:
                table.add_row(name, "unknown", reason)
        console.print(table)
    for name, value in document.get("speculation", {}).items():
        if value not in (None, False):
            console.print(f"speculation: {name} {value}")
    for trap in document["traps"]:
        console.print(f"[yellow]{trap['code']}[/] {trap['message']}")
