"""What `crossover explain` prints for a person: the documented object, section by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from crossover.report.reasons import NOTHING


def print_document(document: Mapping[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)

    def line(text: str) -> None:
        console.print(escape(text))

    console.print(f"[bold]{escape(str(document['name']))}[/] as of {document['at']}, mode {document['mode']}")
    fleet = document["fleet"]
    if fleet:
        line("  " + ", ".join(f"{key} {value}" for key, value in fleet.items()))
    crossover = document["crossover"]
    if crossover:
        line(f"  crossover {crossover.get('runningRequests', 'none')} running, from {crossover.get('source', '?')}")
    last = document["last_decision"]
    if last:
        console.print("\n[bold]Last decision[/]")
        line(f"  {last.get('time')} {last.get('action')} ({last.get('reason')}): {last.get('message')}")
        if last["meaning"]:
            line(f"  that is: {last['meaning']}; to do: {last['what_to_do'] or NOTHING}")
    for item in document["recent_decisions"]:
        line(f"  done: {item.get('summary')}")
    if document["stopped_by"]:
        console.print("\n[bold]What stops it[/]")
        for item in document["stopped_by"]:
            line(f"  {item['type']}={item['status']} {item.get('reason')}: {item.get('message')}")
    _print_again(console, document)
    _print_calibration(line, document["calibration"])
    _print_asked(console, document["asked"])
    for text in document["taken_for_granted"]:
        console.print(f"[dim]note: {escape(text)}[/]")


def _print_calibration(line: Callable[[str], None], told: Mapping[str, Any] | None) -> None:
    if told is None:
        return
    line(f"\n{told['source']}, under present conditions; inside one process: {told['schedule_text']}")
    for item in told["crossovers"]:
        at = ", ".join(
            f"{one['running_requests']:.0f} ({one['low']:.0f}-{one['high']:.0f})" for one in item["crossings"]
        )
        line(f"  draft {item['draft_tokens']} against {item['against']}: {at or item['verdict']}")
    for item in told["capacity"]:
        most = item["tokens_per_second"]
        line(f"  {item['variant']}: {'never within the target' if most is None else f'{most:.0f} tok/s per scheduler'}")


def _print_asked(console: Console, told: Mapping[str, Any] | None) -> None:
    if told is None:
        return
    batch = told["running_requests_per_scheduler"]
    shown = "" if batch is None else f", {batch:.1f} running per scheduler"
    console.print(f"\n[bold]Asked: {told['pods']} pods{shown}[/]")
    steps = [("at once", told["decision"])] if told["decision"] is not None else []
    steps += [(f"after {then['after_seconds']:.0f} s", then) for then in told["if_it_lasts"] if then["after_seconds"]]
    for when, then in steps:
        for name in ("draft", "replicas"):
            part = then[name]
            console.print(escape(f"  {when}: {name} {_shown(part)} ({part['reason']}): {part['message']}"))
        for item in then["alternatives"]:
            console.print(escape(f"    lost: {item['what']}: {item['lost_because']}"))
    for text in told["taken_for_granted"]:
        console.print(f"[dim]  note: {escape(text)}[/]")


def _print_again(console: Console, document: Mapping[str, Any]) -> None:
    again = document["decided_again"]
    if again is None:
        console.print("\nNothing can be decided again from this status.")
        return
    console.print("\n[bold]Decided again from these numbers[/]")
    for name in ("draft", "replicas"):
        part = again[name]
        console.print(escape(f"  {name} {_shown(part)} ({part['reason']}): {part['message']}"))
    for item in again["notices"]:
        console.print(escape(f"  notice {item['reason']}: {item['message']}"))
    if again["alternatives"]:
        console.print("[bold]Weighed and lost[/]")
        for item in again["alternatives"]:
            console.print(escape(f"  {item['what']}: {item['lost_because']}"))
    console.print("[bold]What would change it[/]")
    for turn in document["would_change"]:
        load = "this load" if turn["load_factor"] == 1 else f"{turn['load_factor']:.2f} times this load"
        batch, demand = turn["running_requests_per_scheduler"], turn["demand_tokens_per_second"]
        at = f" ({batch:.1f} running per scheduler" + (f", {demand:.0f} tok/s)" if demand is not None else ")")
        console.print(
            escape(f"  {turn['what']} at {load}{at} held for {turn['after_seconds']:.0f} s: {turn['message']}")
        )
    if not document["would_change"]:
        console.print(
            "  no load between a two-hundredth and 200 times the present one, as far as can be told from status"
        )


def _shown(part: Mapping[str, Any]) -> str:
    current = "unknown" if part["current"] is None else part["current"]
    return f"stays {current}" if part["target"] in (None, part["current"]) else f"{current} -> {part['target']}"
