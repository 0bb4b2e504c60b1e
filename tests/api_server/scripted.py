"""Engines whose every answer the test dictates: one in-process server that listens on each pod's address.

Bodies are the real SGLang 0.5.23 answers of tests/fixtures/metrics with the numbers replaced, so that controller tests
need no process per pod and can set the load exactly. The full emulator is `crossover emulate sglang`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.api_server.containers import Container, Launch, Pod, emulated

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
IMAGE = "crossover.dev/scripted-sglang:0.5.23"
PORT = 30000


@dataclass
class Script:
    """What the pods of one app answer now. Change it at any time, from any thread."""

    running: int = 0
    waiting: int = 0
    draft_tokens: int = 3
    """Draft length in force, where the pod was started with speculation."""
    fault: str | None = None
    """hang, html, huge, nan, redirect, status-503, metrics-off, close: what /v1/loads and /metrics do instead."""
    planted: str = "SECRET-BODY-TEXT"
    """Stands in every faulty body: must never be seen again in status, Events or logs."""
    ready: bool = True
    asked: list[str] = field(default_factory=list)
    caps: dict[str, int] = field(default_factory=dict)
    """Pod address -> live cap on its batch, once one was set."""


class ScriptedEngines:
    """A kubelet launcher: pods with image `IMAGE` are served here, by their label ``app``; others are emulated."""

    def __init__(self) -> None:
        self.scripts: dict[tuple[str, str], Script] = {}
        self.refuse_without_speculation: set[tuple[str, str]] = set()
        """Apps whose servers crash at start when they are started without speculation."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-engines", daemon=True)
        self._thread.start()
        self._runners: dict[str, web.AppRunner] = {}

    def close(self) -> None:
        async def stop() -> None:
            for runner in self._runners.values():
                await runner.cleanup()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def script(self, namespace: str, app: str) -> Script:
        return self.scripts.setdefault((namespace, app), Script())

    def __call__(self, pod: Pod, container: Container, address: str, root: Path) -> Launch:
        if container["image"] != IMAGE:
            return emulated(pod, container, address, root)
        script = self.script(pod["metadata"]["namespace"], pod["metadata"]["labels"]["app"])
        command = [*container.get("command", ()), *container.get("args", ())]
        key = (pod["metadata"]["namespace"], pod["metadata"]["labels"]["app"])
        if key in self.refuse_without_speculation and not any("speculative" in word for word in command):
            return Launch([sys.executable, "-c", "raise SystemExit(1)"], {})
        asyncio.run_coroutine_threadsafe(self._serve(address, script, command), self._loop).result(10)
        return Launch(None, {})

    async def _serve(self, address: str, script: Script, command: list[str]) -> None:
        app = web.Application()
        engine = _Engine(script, command, address)
        script.caps.pop(address, None)  # a new process has none
        for path in ("/v1/loads", "/metrics", "/server_info", "/get_server_info", "/ready", "/health"):
            app.router.add_get(path, engine.answer)
        app.router.add_post("/set_internal_state", engine.set_internal_state)
        before = self._runners.pop(address, None)
        if before is not None:  # a later kubelet may hand out an address again
            await before.cleanup()
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, PORT).start()
        self._runners[address] = runner


class _Engine:
    """One pod. Its command line decides whether it speculates."""

    def __init__(self, script: Script, command: list[str], address: str) -> None:
        self._script, self._command, self._address = script, command, address

    async def set_internal_state(self, request: web.Request) -> web.Response:
        self._script.caps[self._address] = (await request.json())["server_args"]["pp_max_micro_batch_size"]
        return web.json_response([True])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self._script.asked.append(request.path)
        if request.path in ("/ready", "/health"):
            return web.Response(status=200 if self._script.ready else 503)
        if self._script.fault and request.path in ("/v1/loads", "/metrics"):
            return await self._faulty(request)
        if request.path == "/v1/loads":
            return web.json_response(self._loads())
        if request.path == "/metrics":
            return web.Response(text=self._metrics(), content_type="text/plain")
        return web.json_response(self._server_info())

    async def _faulty(self, request: web.Request) -> web.StreamResponse:
        fault, planted = self._script.fault, self._script.planted
        if fault == "hang":
            await asyncio.sleep(30)
        if fault == "html":
            return web.Response(text=f"<!doctype html><html><body>{planted}</body></html>", content_type="text/html")
        if fault == "redirect":
            raise web.HTTPFound(f"http://127.0.0.1:1/{planted}")
        if fault == "status-503":
            return web.Response(status=503, text=planted)
        if fault == "metrics-off":
            return web.Response(status=404, text=planted)
        if fault == "nan":
            return self._not_a_number(request.path)
        if fault == "huge":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            for _ in range(50):
                await response.write((planted * 70000)[:1_000_000].encode())
            return response
        if fault == "close" and request.transport is not None:
            request.transport.close()
        return web.Response(status=500, text=planted)

    def _not_a_number(self, path: str) -> web.Response:
        if path == "/v1/loads":
            body = json.dumps(self._loads()).replace(
                f'"num_running_reqs": {self._script.running}', '"num_running_reqs": NaN'
            )
            return web.Response(text=body, content_type="application/json")
        return web.Response(text='sglang:num_running_reqs{tp_rank="0"} NaN\n', content_type="text/plain")

    @property
    def _speculates(self) -> bool:
        return any(word.startswith("--speculative-algorithm") for word in self._command)

    @property
    def _draft(self) -> int:
        return self._script.draft_tokens if self._speculates else 0

    def _flag(self, name: str) -> str | None:
        for position, word in enumerate(self._command):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
            if word == name and position + 1 < len(self._command):
                return self._command[position + 1]
        return None

    def _loads(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((FIXTURES / "sglang-0.5.23-v1_loads-busy64-ngram.json").read_text())
        (load,) = body["loads"]
        load["num_running_reqs"] = self._script.running
        load["num_waiting_reqs"] = self._script.waiting
        load["max_running_requests"] = 128
        load["speculative"] = (
            {"accept_length": 1.0 + 0.5 * self._draft, "accept_rate": 0.5} if self._speculates else None
        )
        return body

    def _metrics(self) -> str:
        labels = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        values: Mapping[str, float] = {
            "num_running_reqs": self._script.running,
            "num_queue_reqs": self._script.waiting,
            "token_usage": 0.2,
            "gen_throughput": 20.0 * self._script.running,
            "spec_accept_length": 1.0 + 0.5 * self._draft if self._speculates else 0.0,
            "spec_accept_rate": 0.5 if self._draft else 0.0,
            "spec_num_steps": self._draft,
            "spec_num_draft_tokens": self._draft + 1 if self._speculates else 0,
        }
        lines = [f"# TYPE sglang:{name} gauge\nsglang:{name}{{{labels}}} {value}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def _server_info(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(
            (FIXTURES / "sglang-0.5.23-server_info-eagle-adaptive.subset.json").read_text()
        )
        adaptive = "--speculative-adaptive" in self._command
        algorithm = self._flag("--speculative-algorithm")
        own = {
            "speculative_algorithm": algorithm,
            "speculative_adaptive": adaptive,
            "speculative_adaptive_config": self._flag("--speculative-adaptive-config"),
            "speculative_num_steps": self._draft if algorithm else None,
            "speculative_num_draft_tokens": self._draft + 1 if algorithm else None,
            "max_running_requests": 128,
            "api_key": self._script.planted,
        }
        body.update(own)
        (state,) = body["internal_states"]
        state.update(own, pp_max_micro_batch_size=self._script.caps.get(self._address, 128))
        return body
