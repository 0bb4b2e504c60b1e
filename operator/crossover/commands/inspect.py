"""`crossover inspect`: what Crossover sees in one pod, the first thing to run when something looks wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from crossover.api.fleet import Capability, PodReading, SchedulerReading, ScrapeFault
from crossover.engines import ENGINES, detect
from crossover.engines.contract import Answer, Engine
from crossover.observe.scraper import Scraper, Unusable
from crossover.report.texts import SCRAPE_FAULT_FIX

app = typer.Typer()

AUTO = "auto"
NAMES = {str(kind).lower(): kind for kind in ENGINES}
KNOWN, UNKNOWN, UNREADABLE = 0, 1, 2
DESCRIPTION = "/server_info"
NOT_SERVED = "absent: this server does not serve it"
SHOWN = tuple(field.name for field in fields(SchedulerReading) if field.name != "unknown")


UNUSABLE = (ScrapeFault.NOT_METRICS, ScrapeFault.WRONG_ENGINE, ScrapeFault.HTTP_STATUS, ScrapeFault.UNAUTHORIZED)
"""Faults for which nothing was read at all; with the others the server was understood and does not tell its batch."""


@app.command()
def inspect(
    source: Annotated[
        str, typer.Argument(help="http://HOST:PORT, a full URL of /metrics or /v1/loads, a FILE, or - for stdin.")
    ],
    engine: Annotated[str, typer.Option(help=f"Which server: {AUTO}, {', '.join(NAMES)}.")] = AUTO,
    over: Annotated[
        float, typer.Option(min=0.0, help="Read a URL twice, so many seconds apart: some values are differences.")
    ] = 0.0,
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
        seen = _from_url(source, wanted, over) if "://" in source else _from_file(source, wanted)
    except Unusable as unusable:
        seen = _nothing(unusable.fault, unusable.detail)
    except OSError as error:
        typer.echo(f"{source}: {error.strerror or type(error).__name__}", err=True)
        raise typer.Exit(UNREADABLE) from None
    document = as_document(seen.reading, seen.capability)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    if seen.is_unusable:
        typer.echo(_why(source, seen.reading), err=True)
        raise typer.Exit(UNREADABLE)
    if not as_json:
        _show(document)
    raise typer.Exit(KNOWN if seen.batch_is_known else UNKNOWN)


@dataclass(frozen=True, slots=True)
class Seen:
    """One pod or file, read as the operator reads it."""

    reading: PodReading
    capability: Capability | None = None

    @property
    def is_unusable(self) -> bool:
        fault = self.reading.fault
        return fault is not None and (self.reading.engine is None or fault in UNUSABLE) and self.capability is None

    @property
    def batch_is_known(self) -> bool:
        schedulers = self.reading.schedulers
        return bool(schedulers) and all(scheduler.running_requests is not None for scheduler in schedulers)


def _nothing(fault: ScrapeFault, detail: str | None = None) -> Seen:
    return Seen(PodReading(None, None, "", time.time(), fault=fault, fault_detail=detail))


def _why(source: str, reading: PodReading) -> str:
    """Ours; nothing of the remote answer."""
    assert reading.fault is not None
    if "://" not in source:
        return f"{source}: no engine that Crossover knows answers like that ({', '.join(NAMES)})"
    port = urlsplit(source).port
    text = SCRAPE_FAULT_FIX[reading.fault].format(port=port if port is not None else "(none given)")
    return f"{source} {text} ({reading.fault_detail})" if reading.fault_detail else f"{source} {text}"


def as_document(reading: PodReading, capability: Capability | None) -> dict[str, Any]:
    """The documented JSON object. Unknown is null; its reason stands in ``unknown`` of the same scheduler."""
    version = (capability.version if capability is not None else None) or reading.version
    engine = reading.engine or (capability.engine if capability is not None else None)
    document: dict[str, Any] = {
        "engine": str(engine) if engine is not None else None,
        "version": version,
        "source": reading.source,
        "fault": str(reading.fault) if reading.fault is not None else None,
        "traps": [{"code": trap.code, "message": trap.message} for trap in reading.traps],
        "schedulers": [_scheduler(scheduler) for scheduler in reading.schedulers],
    }
    if capability is not None:
        document["speculation"] = {
            "algorithm": capability.speculative_algorithm,
            "max_draft_tokens": capability.max_draft_tokens,
            "max_running_requests": capability.max_running_requests,
            "can_follow_schedule": capability.schedule_dialect is not None,
            "why_not": capability.schedule_refusal,
            "follows_schedule": capability.follows_schedule,
            "adapts_by_itself": capability.adapts_by_itself,
            "live_running_cap": capability.live_running_cap,
            "running_cap": capability.running_cap,
        }
    return document


def _scheduler(scheduler: SchedulerReading) -> dict[str, Any]:
    """Every null has its reason beside it."""
    values = {name: getattr(scheduler, name) for name in SHOWN}
    missing = {name: NOT_SERVED for name, value in values.items() if value is None}
    known = {name: reason for name, reason in scheduler.unknown.items() if values.get(name) is None}
    return {**values, "unknown": {**missing, **known}}


def _from_file(source: str, wanted: Engine | None) -> Seen:
    body = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    answer = Answer(_path_of(body), 200, body)
    found = wanted or detect([answer])
    if found is None:
        return _nothing(ScrapeFault.WRONG_ENGINE)
    if answer.path == DESCRIPTION:
        told = found.capability(answer, None)
        reading = PodReading(found.type, None, DESCRIPTION, time.time(), fault=ScrapeFault.METRICS_OFF)
        return Seen(reading, told) if told is not None else _nothing(ScrapeFault.NOT_METRICS)
    return Seen(found.read([answer], time.time(), None))


def _path_of(body: bytes) -> str:
    """Which path answers like that: a JSON object is the loads of SGLang or a server's description of itself."""
    if body.lstrip()[:1] != b"{":
        return "/metrics"
    return "/v1/loads" if b'"loads"' in body else DESCRIPTION


def _from_url(source: str, wanted: Engine | None, over: float) -> Seen:
    """All that Crossover itself would fetch from this server. Raises Unusable."""
    parts = urlsplit(source)
    if parts.scheme != "http" or not parts.hostname:
        raise typer.BadParameter(f"{source!r}: give http://HOST:PORT", param_hint="SOURCE")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return asyncio.run(_look(parts.hostname, parts.port or 80, path, wanted, over))


async def _look(host: str, port: int, path: str, wanted: Engine | None, over: float) -> Seen:
    async with Scraper(timeout_seconds=5.0) as scraper:
        answers, found = await _fetch(scraper, host, port, path, wanted)
        if found is None:
            status = next((answer.status for answer in answers if answer.status != 200), None)
            if status in (401, 403):
                return _nothing(ScrapeFault.UNAUTHORIZED, f"HTTP {status}")
            if status is not None:
                return _nothing(ScrapeFault.HTTP_STATUS, f"HTTP {status}")
            return _nothing(ScrapeFault.WRONG_ENGINE)
        reading = found.read(answers, time.time(), None)
        if over:
            await asyncio.sleep(over)
            answers, _ = await _fetch(scraper, host, port, path, found)
            reading = found.read(answers, time.time(), reading)
        info = await _info(scraper, host, port, found) if path in ("", "/") else None
        return Seen(reading, found.capability(info, None) if info is not None else None)


async def _fetch(
    scraper: Scraper, host: str, port: int, path: str, wanted: Engine | None
) -> tuple[list[Answer], Engine | None]:
    """The answers, and the engine they are of."""
    if path not in ("", "/"):
        answers = [await scraper.fetch(host, port, path)]
        return answers, wanted or detect(answers)
    answers = []
    for engine in [wanted] if wanted is not None else ENGINES.values():
        answers = await scraper.first_group(host, port, engine.load_paths(None))
        if wanted is not None or any(engine.recognises(answer) for answer in answers):
            return answers, engine
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
            elif reason and reason != NOT_SERVED:
                table.add_row(name, "unknown", reason)
        console.print(table)
    for name, value in document.get("speculation", {}).items():
        if value not in (None, False):
            console.print(f"speculation: {name} {value}")
    for trap in document["traps"]:
        console.print(f"[yellow]{trap['code']}[/] {trap['message']}")
