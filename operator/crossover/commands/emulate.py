"""`crossover emulate`: a stand-in inference server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from crossover.emulate.options import COMMON_FAULTS, ENGINE_FAULTS, FORMS, BadOptionError, options_of
from crossover.emulate.servers import SERVERS, serve
from crossover.emulate.truth import MODELS

app = typer.Typer()

FAULTS_HELP = f"Start with these faults, comma-separated: {', '.join(COMMON_FAULTS)}; " + "; ".join(
    f"{engine}: {', '.join(names)}" for engine, names in ENGINE_FAULTS.items()
)


@app.command()
def emulate(
    engine: Annotated[str, typer.Argument(help=f"Which server: {', '.join(SERVERS)}.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: the container's command line, exactly as in a pod template.")
    ] = None,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; left out, the command line's own --port.")] = None,
    root: Annotated[Path, typer.Option(help="Folder below which absolute paths of the command line are found.")] = Path(
        "/"
    ),
    form: Annotated[
        str, typer.Option(help=f"What serves TensorRT-LLM ({', '.join(FORMS)}); left out, the command line tells.")
    ] = "",
    server_version: Annotated[
        str,
        typer.Option(help="Version to imitate: SGLang 0.4.6 to 0.5.23, vLLM 0.8.5 to 0.33.0, TensorRT-LLM 1.0 to 1.3."),
    ] = "",
    model: Annotated[str, typer.Option(help=f"Hidden truth, step times: {', '.join(MODELS)}.")] = "8b-h100",
    draft_kv: Annotated[bool, typer.Option(help="Hidden truth: the draft reads its own KV.")] = False,
    padding: Annotated[int, typer.Option(help="Hidden truth: tokens are padded to multiples of this (stairs).")] = 1,
    cliff: Annotated[
        str,
        typer.Option(help="Hidden truth, REQUESTS,FACTOR: beyond so many requests a step takes FACTOR times as long."),
    ] = "",
    acceptance: Annotated[
        str, typer.Option(help="Hidden truth: acceptance of each position given the one before; the last goes on.")
    ] = "0.67",
    acceptance_spread: Annotated[float, typer.Option(help="Hidden truth: requests differ by this share.")] = 0.1,
    step_noise: Annotated[
        float, typer.Option(help="Hidden truth: log-normal scatter of step times, as a share.")
    ] = 0.0,
    zero_costs_as: Annotated[
        int | None,
        typer.Option(help="Hidden truth: at draft length 0 a gated engine pays for this length all the same."),
    ] = None,
    zero_gap_acceptance: Annotated[
        float,
        typer.Option(help="Hidden truth: factor on the acceptance of requests that lived through a draft length 0."),
    ] = 1.0,
    kv_tokens: Annotated[int | None, typer.Option(help="Size of the KV cache; left out, the model's.")] = None,
    startup_seconds: Annotated[float, typer.Option(help="Load and warm-up time.")] = 2.0,
    drain_poll_seconds: Annotated[float, typer.Option(help="How often a draining server looks for work.")] = 5.0,
    time_scale: Annotated[float, typer.Option(help="2 = everything runs twice as fast.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of noise and acceptance.")] = 1,
    watch: Annotated[
        str, typer.Option(help="Running requests, comma-separated: /emulator/truth tells when the batch passed them.")
    ] = "",
    fault: Annotated[str, typer.Option(help=FAULTS_HELP)] = "",
) -> None:
    """Start a stand-in inference server with the real wire formats and traps, and no GPU.

    The variable EMULATE_FLAGS may hold more of these options (a pod template can only set variables). Faults can be
    switched while it runs: POST /emulator/faults {"faults": ["html"]}; what is really going on: GET /emulator/truth.

    Example: crossover emulate sglang --address 127.0.0.1 -- python3 -m sglang.launch_server --model-path m --enable-metrics
    """
    given = {name: value for name, value in locals().items() if name not in ("command", "engine")}
    if engine not in SERVERS:
        raise typer.BadParameter(f"{engine!r}: one of {', '.join(SERVERS)}", param_hint="ENGINE")
    try:
        options = options_of({"engine": engine, **given}, os.environ.get("EMULATE_FLAGS", ""))
    except BadOptionError as bad:
        raise typer.BadParameter(str(bad)) from None
    raise SystemExit(serve(options, command or [], os.environ))
