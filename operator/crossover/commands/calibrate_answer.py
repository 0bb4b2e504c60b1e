"""What `crossover calibrate` prints: a table and a line for people, one JSON object for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from crossover.calibrate.contract import Described, Measured
from crossover.calibrate.result import CalibrationResult, as_document, summarise
from crossover.calibrate.runner import Swept
from crossover.commands.fit import ASSUMED
from crossover.decide.profile import ProfileError
from crossover.decide.schedule import describe as describe_schedule
from crossover.decide.variant import Variant
from crossover.engines.contract import ConfigFile

GOOD, NO_ANSWER, UNUSABLE_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves behind, whole or interrupted."""

    described: Mapping[Variant, Described]
    swept: Swept
    output_tokens_per_request: float
    interrupted: bool


def tell(outcome: Outcome, tpot_seconds: float | None, *, as_json: bool, plot: Path | None) -> int:
    """Prints the answer; the exit status."""
    speculating = next((d for v, d in sorted(outcome.described.items(), reverse=True) if not v.off), None)
    result: CalibrationResult | None = None
    why = "nothing was measured"
    try:
        result = summarise(
            outcome.swept.points,
            capability=speculating.capability if speculating is not None else None,
            limits={v: float(d.most_running_requests) for v, d in outcome.described.items() if d.most_running_requests},
            tpot_seconds=tpot_seconds,
            output_tokens_per_request=outcome.output_tokens_per_request,
        )
    except ProfileError as error:
        why = str(error)
    if as_json:
        typer.echo(json.dumps(_document(outcome, result), indent=2))
    else:
        _show(outcome, result, why)
    if plot is not None and result is not None:
        from crossover.commands.fit_plot import plot_profile  # noqa: PLC0415 - matplotlib only when asked for

        plot_profile(result.profile, result.conditions, plot)
    if outcome.interrupted:
        return INTERRUPTED
    return GOOD if result is not None and result.crossovers else NO_ANSWER


def _document(outcome: Outcome, result: CalibrationResult | None) -> dict[str, Any]:
    document: dict[str, Any] = as_document(result) if result is not None else {"verdict": None, "points": []}
    one = next(iter(outcome.described.values()), None)
    return {
        **document,
        "ended": "Interrupted"
        if outcome.interrupted
        else (str(outcome.swept.done.reason) if outcome.swept.done else None),
        "environment": {
            "engine": str(one.engine) if one is not None else None,
            "version": one.capability.version if one is not None and one.capability is not None else None,
            "model": one.model if one is not None else None,
        },
        "servers": [{"url": d.server.base_url, "variant": v.name} for v, d in sorted(outcome.described.items())],
        "measurements": [_measurement(item) for item in outcome.swept.measured],
        "failures": [
            {
                "variant": ask.variant.name,
                "running_requests": ask.running_requests,
                "reason": str(failure.reason),
                "message": failure.message,
            }
            for ask, failure in outcome.swept.failures
        ],
    }


def _measurement(item: Measured) -> dict[str, Any]:
    point, tpot, ttft = item.point, item.time_per_output_token, item.time_to_first_token
    return {
        "variant": Variant(point.draft_tokens, point.off).name,
        "asked_running_requests": point.asked_running_requests,
        "running_requests": point.running_requests,
        "output_tokens_per_second": point.output_tokens_per_second,
        "client_output_tokens_per_second": item.client_tokens_per_second,
        "step_seconds": point.step_seconds,
        "acceptance_length": point.acceptance_length,
        "time_per_output_token_seconds": {"mean": tpot.mean, "p50": tpot.p50, "p99": tpot.p99},
        "time_to_first_token_seconds": {"mean": ttft.mean, "p50": ttft.p50, "p99": ttft.p99},
        "kv_tokens": item.kv_tokens,
        "seconds": item.seconds,
        "requests": item.requests,
        "usable": item.is_usable,
        "caveats": [{"code": str(caveat.code), "message": caveat.message} for caveat in item.caveats],
    }


def _show(outcome: Outcome, result: CalibrationResult | None, why: str) -> None:
    console = Console()
    for ask, failure in outcome.swept.failures:
        console.print(
            f"[red]{failure.reason}[/] {ask.variant.shown} at {ask.running_requests}: {failure.message}",
            highlight=False,
        )
    if result is None:
        console.print(f"no answer: {why}", highlight=False)
        return
    table = Table("running", "setting", "tok/s", "step ms", "AL", "TPOT ms", "TTFT ms", "+-")
    for item in sorted(
        outcome.swept.measured, key=lambda m: (m.point.off, m.point.draft_tokens, m.point.running_requests)
    ):
        point = item.point
        table.add_row(
            f"{point.running_requests:.1f}",
            Variant(point.draft_tokens, point.off).shown,
            _number(point.output_tokens_per_second, 1, 0),
            _number(point.step_seconds, 1000, 2),
            _number(point.acceptance_length, 1, 2),
            _number(item.time_per_output_token.mean, 1000, 1),
            _number(item.time_to_first_token.mean, 1000, 0),
            f"{point.relative_error or 0:.1%}" + ("" if item.is_usable else " (left out)"),
        )
    console.print(table)
    for code, count, message in _caveats(outcome.swept.measured):
        console.print(f"[yellow]{code}[/] in {count} points: {message}", highlight=False)
    for crossover in result.crossovers:
        console.print(
            f"crossover of draft {crossover.variant.draft_tokens} against {crossover.against.shown}: {crossover.shown}",
            highlight=False,
        )
    if result.schedule:
        assumed = ASSUMED if result.zero_is_assumed else ""
        console.print(f"schedule: {describe_schedule(result.schedule)}{assumed}", highlight=False)
    rendered = result.rendered
    if rendered is not None:
        console.print(rendered.content if isinstance(rendered, ConfigFile) else rendered, highlight=False, markup=False)
    elif result.refusal:
        console.print(
            f"schedule not rendered for this server: {result.refusal}{_by_hand(outcome, result)}", highlight=False
        )
    console.print(result.verdict, highlight=False)


def _by_hand(outcome: Outcome, result: CalibrationResult) -> str:
    """Servers other than SGLang do not tell how they were started: the command that takes it from the user."""
    one = next((item for item in outcome.described.values() if not item.variant.off), None)
    if one is None or one.capability is None or one.capability.version is None:
        return ""
    entries = ",".join(f"{start}:{draft}" for start, draft in result.schedule)
    engine = str(one.engine).lower()
    return f"\n  crossover render --engine {engine} --version {one.capability.version} --schedule {entries}"


def _caveats(measured: Sequence[Measured]) -> list[tuple[str, int, str]]:
    """One line for each kind, with the first message."""
    found: dict[str, list[str]] = {}
    for item in measured:
        for caveat in item.caveats:
            found.setdefault(str(caveat.code), []).append(caveat.message)
    return [(code, len(messages), messages[0]) for code, messages in found.items()]


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"
