"""Triton's generate extension before TensorRT-LLM, in two dialects: the classic ensemble and the LLM API backend.

What no input of the model is named like is a parameter and ignored, so a client may send both dialects at once. The LLM API
backend streams the text so far, takes nothing that keeps an answer from ending early, and tells numbers as strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from crossover.emulate import openai
from crossover.emulate.requests import Request
from crossover.emulate.server import EmulatedServer

DEFAULT_TOKENS = 32
"""SamplingParams' own, where the LLM API backend is told none."""
NAMES = {False: ("ensemble", "tensorrt_llm_bls", "tensorrt_llm"), True: ("tensorrt_llm",)}
"""Models of the repository, by whether the LLM API backend serves them."""


class Generate:
    """Handlers of one server."""

    def __init__(self, server: EmulatedServer, *, llm_api: bool) -> None:
        self._server, self._llm_api = server, llm_api

    def routes(self) -> list[web.RouteDef]:
        made = [web.post(f"/v2/models/{{name}}/{kind}", self._generate) for kind in ("generate", "generate_stream")]
        return [*made, web.get("/v2/models/{name}/ready", self._ready)]

    async def _ready(self, http: web.Request) -> web.Response:
        return web.Response(status=200 if http.match_info["name"] in NAMES[self._llm_api] else 400)

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body, name = await http.json(), http.match_info["name"]
        if name not in NAMES[self._llm_api]:
            return _error(f"Request for unknown model: '{name}' is not found", 404)
        wanted = body.get("sampling_param_max_tokens", DEFAULT_TOKENS) if self._llm_api else body.get("max_tokens")
        if wanted is None or "text_input" not in body:
            return _error("expected 2 inputs but got 1 inputs for model")
        stream, to_stream = http.path.endswith("_stream"), body.get("streaming" if self._llm_api else "stream", False)
        if to_stream and not stream:
            return _error("generate expects model to produce exactly 1 response, use generate stream")
        words = str(body["text_input"]).split()
        generation = self._server.submit(max(1, len(words)), int(wanted), streams=bool(to_stream))
        head = {"model_name": name, "model_version": "1"}
        if not to_stream:
            request = await self._server.finish(generation)
            document = {**head, **self._told(body, request), "text_output": openai.WORD * request.emitted_tokens}
            return self._one(document) if stream else web.json_response(document)
        request = generation.request

        def event(count: int, last: bool) -> bytes | None:
            if last:
                return None
            text = openai.WORD * (request.emitted_tokens if self._llm_api else count)
            ends = request.emitted_tokens >= request.output_tokens
            return openai.event({**head, **(self._told(body, request) if ends else {}), "text_output": text})

        return await self._server.stream(http, generation, event, done=b"")

    def _told(self, body: Mapping[str, Any], request: Request) -> dict[str, Any]:
        """What was asked for beside the text."""
        perf = {"total_accepted_draft_tokens": request.accepted_tokens}
        if self._llm_api:
            reason = {"finish_reason": "length"} if body.get("return_finish_reason") else {}
            asked = body.get("sampling_param_return_perf_metrics")
            return {**reason, **({key: str(value) for key, value in perf.items()} if asked else {})}
        counts = {"num_input_tokens": request.input_tokens, "num_output_tokens": request.emitted_tokens}
        told: dict[str, Any] = {key: value for key, value in counts.items() if body.get(f"return_{key}")}
        return {**told, **(perf if body.get("return_perf_metrics") else {})}

    @staticmethod
    def _one(document: Mapping[str, Any]) -> web.Response:
        """A stream of one response: the model was not asked to stream."""
        return web.Response(body=openai.event(document), content_type="text/event-stream")


def _error(text: str, status: int = 400) -> web.Response:
    return web.json_response({"error": text}, status=status)
