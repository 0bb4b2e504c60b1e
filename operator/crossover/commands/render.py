"""`crossover render`: a schedule in an engine's own dialect, with the engine's own refusals, before anything is rolled."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from crossover.api.fleet import Capability, EngineType, ScheduleDialect
from crossover.engines import ENGINES
from crossover.engines.contract import Answer, ConfigFile, Refusal, Schedule
from crossover.engines.sglang_settings import schedule_refusal as sglang_refusal
from crossover.engines.sglang_settings import version_of

app = typer.Typer()

NAMES = {str(kind).lower(): kind for kind in ENGINES}


@app.command()
def render(
    engine: Annotated[str, typer.Option(help=f"Which server: {', '.join(NAMES)}.")],
    version: Annotated[str, typer.Option(help="Its version, such as 0.5.23: dialects differ.")],
    schedule: Annotated[str, typer.Option(help="From running requests to draft length: 1:5,16:3,32:1,64:0.")],
    algorithm: Annotated[str, typer.Option(help="Speculative algorithm or method, as the engine names it.")] = "EAGLE",
    graph_sizes: Annotated[str, typer.Option(help="SGLang: CUDA-graph batch sizes, comma-separated.")] = "",
    max_running: Annotated[int | None, typer.Option(min=1, help="The server's own batch limit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show how a schedule is written for an engine and version, or why the engine would refuse it.

    Exit status: 0 rendered, 1 the engine would refuse it, 2 the input cannot be used.

    Example: crossover render --engine sglang --version 0.5.23 --schedule 1:3,33:0
    """
    if engine.lower() not in NAMES:
        raise typer.BadParameter(f"{engine!r}: one of {', '.join(NAMES)}", param_hint="--engine")
    kind = NAMES[engine.lower()]
    able = _able(kind, version, algorithm, _numbers(graph_sizes), max_running)
    wanted = _schedule(schedule)
    try:
        made = ENGINES[kind].render(wanted, able)
    except Refusal as refusal:
        if as_json:
            fields = {"code": refusal.code, "field": refusal.field, "message": refusal.message, "fix": refusal.fix}
            typer.echo(json.dumps({"engine": str(kind), "version": version, "refused": fields}))
        typer.echo(f"{refusal.code}: {refusal}", err=True)
        raise typer.Exit(1) from None
    content = made.content if isinstance(made, ConfigFile) else made
    if as_json:
        typer.echo(
            json.dumps({"engine": str(kind), "version": version, "dialect": able.schedule_dialect, "rendered": content})
        )
    else:
        typer.echo(content.rstrip("\n"))


def _able(
    kind: EngineType, version: str, algorithm: str, sizes: tuple[int, ...], max_running: int | None
) -> Capability:
    """What a server of that version can do when nothing else stands in the way."""
    if version_of(version) is None:
        raise typer.BadParameter(f"{version!r}: write it as 0.5.23", param_hint="--version")
    if kind is EngineType.SGLANG:
        refusal = sglang_refusal(version_of(version), algorithm, topk=1, dp_attention=False, multi_layer=False)
        dialect = ScheduleDialect.SGLANG_ADAPTIVE if refusal is None else None
        return Capability(
            kind,
            version,
            algorithm,
            schedule_dialect=dialect,
            schedule_refusal=refusal,
            batch_padding=sizes,
            zero_is_safe=True,
        )
    limit = [] if max_running is None else [f"--max-num-seqs={max_running}"]
    if kind is EngineType.VLLM:
        config = json.dumps({"method": algorithm.lower(), "num_speculative_tokens": 1})
        container = {"name": "server", "args": ["--speculative-config", config, *limit]}
        told = ENGINES[kind].capability(_version_answer(version), container)
    else:
        document = {
            "max_batch_size": max_running,
            "speculative_config": {"decoding_type": algorithm, "max_draft_len": 1},
        }
        files = {"/llm.yaml": json.dumps(document)}
        told = ENGINES[kind].capability(_version_answer(version), {"name": "s", "args": ["--config=/llm.yaml"]}, files)
    assert told is not None
    return told


def _version_answer(version: str) -> Answer:
    return Answer("/version", 200, json.dumps({"version": version}).encode())


def _schedule(text: str) -> Schedule:
    try:
        return tuple((int(key), int(draft)) for key, draft in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write it as 1:3,33:0", param_hint="--schedule") from None


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write it as 1,2,4,8", param_hint="--graph-sizes") from None
