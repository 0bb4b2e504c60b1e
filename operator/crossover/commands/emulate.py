"""`crossover emulate`: a stand-in inference server."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from crossover.decide.step_model import PRESETS
from crossover.emulate.sglang import FAULTS, Options, serve

app = typer.Typer()

ENGINES = ("sglang",)


@app.command()
def emulate(
    engine: Annotated[str, typer.Argument(help=f"Which server: {', '.join(ENGINES)}.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: the container's command line, exactly as in a pod template.")
    ] = None,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; left out, the command line's own --port.")] = None,
    root: Annotated[Path, typer.Option(help="Folder below which absolute paths of the command line are found.")] = Path(
        "/"
    ),
    server_version: Annotated[str, typer.Option(help="SGLang version to imitate, 0.4.6 to 0.5.23.")] = "0.5.23",
    model: Annotated[str, typer.Option(help=f"Hidden truth, step times: {', '.join(PRESETS)}.")] = "8b-h100",
    acceptance: Annotated[float, typer.Option(min=0, max=0.99, help="Hidden truth, per-position acceptance.")] = 0.67,
    startup_seconds: Annotated[float, typer.Option(min=0, help="Load and warm-up time.")] = 2.0,
    drain_poll_seconds: Annotated[
        float, typer.Option(min=0.01, help="How often a draining server looks for work.")
    ] = 5.0,
    time_scale: Annotated[float, typer.Option(min=0.01, help="2 = everything runs twice as fast.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the acceptance draws.")] = 1,
    fault: Annotated[str | None, typer.Option(help=f"Start with a fault: {', '.join(FAULTS)}.")] = None,
) -> None:
    """Start a stand-in inference server with the real wire formats and traps, and no GPU.

    The variable EMULATE_FLAGS may hold more of these options (a pod template can only set variables). Faults can be
    switched while it runs: POST /emulator/faults {"fault": "html"}; what is really going on: GET /emulator/truth.

    Example: crossover emulate sglang --address 127.0.0.1 -- python3 -m sglang.launch_server --model-path m --enable-metrics
    """
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r}: one of {', '.join(ENGINES)}", param_hint="ENGINE")
    if model not in PRESETS:
        raise typer.BadParameter(f"{model!r}: one of {', '.join(PRESETS)}", param_hint="--model")
    if fault is not None and fault not in FAULTS:
        raise typer.BadParameter(f"{fault!r}: one of {', '.join(FAULTS)}", param_hint="--fault")
    options = Options(
        address=address,
        port=port,
        root=root,
        server_version=server_version,
        model=model,
        acceptance=acceptance,
        startup_seconds=startup_seconds,
        drain_poll_seconds=drain_poll_seconds,
        time_scale=time_scale,
        seed=seed,
        fault=fault,
    )
    raise SystemExit(serve(with_flags(options, os.environ.get("EMULATE_FLAGS", "")), command or []))


def with_flags(options: Options, flags: str) -> Options:
    """Options changed by `EMULATE_FLAGS`: words as on the command line. Raises typer.BadParameter."""
    words = shlex.split(flags)
    types = {field.name: type(getattr(options, field.name)) for field in fields(options)}
    changed: dict[str, Any] = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        key = name.removeprefix("--").replace("-", "_")
        if key not in types:
            raise typer.BadParameter(f"{name!r} is no option", param_hint="EMULATE_FLAGS")
        convert = types[key] if types[key] in (int, float, str) else (int if key == "port" else str)
        try:
            changed[key] = convert(value)
        except ValueError:
            raise typer.BadParameter(f"{name} {value!r}: not a number", param_hint="EMULATE_FLAGS") from None
    return replace(options, **changed)
