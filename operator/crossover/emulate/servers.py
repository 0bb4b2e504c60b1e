"""The emulated servers by engine, and the process that runs one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence

from crossover.emulate.commands import LaunchError
from crossover.emulate.options import Options
from crossover.emulate.server import EmulatedServer
from crossover.emulate.sglang import SGLangServer
from crossover.emulate.trtllm import TensorRTLLMServer
from crossover.emulate.vllm import VLLMServer

Factory = Callable[[Options, Sequence[str], Mapping[str, str]], EmulatedServer]
SERVERS: dict[str, Factory] = {"sglang": SGLangServer, "trtllm": TensorRTLLMServer, "vllm": VLLMServer}


def serve(options: Options, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one server in this process; its exit status."""

    async def run() -> None:
        await SERVERS[options.engine](options, command, environ).run()

    try:
        asyncio.run(run())
    except LaunchError as error:
        print(f"Traceback (most recent call last):\n{error}", file=sys.stderr, flush=True)
        return 1
    return 0
