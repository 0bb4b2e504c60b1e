"""The OpenAI routes that all three servers share: chat completions and completions, streaming or not.

Text is filler; token counts are right. A prompt counts as many tokens as it has words (or ids). Every request runs to its
`max_tokens`, as with ignore_eos.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from crossover.emulate.requests import Request
from crossover.emulate.server import EmulatedServer

DEFAULT_OUTPUT_TOKENS = 128
WORD = " x"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What was asked for."""

    chat: bool
    model: str
    input_tokens: int
    output_tokens: int
    streams: bool
    usage_in_stream: bool


def prompt_of(path: str, body: dict[str, Any]) -> Prompt:
    chat = path.endswith("chat/completions")
    if chat:
        count = sum(_tokens(message.get("content")) for message in body.get("messages") or ())
    else:
        count = _tokens(body.get("prompt"))
    return Prompt(
        chat,
        str(body.get("model") or ""),
        max(1, count),
        int(body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_OUTPUT_TOKENS),
        bool(body.get("stream")),
        bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _tokens(content: Any) -> int:
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        return sum(_tokens(part.get("text", "")) if isinstance(part, dict) else _tokens(part) for part in content)
    return 1 if isinstance(content, int) else 0


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def models(*names: str) -> web.Response:
    """`/v1/models`."""
    return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


def error(status: int, message: str, kind: str) -> web.Response:
    """An error as OpenAI servers write it."""
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )


def aborted(prompt: Prompt) -> web.Response:
    """A request that a server on its way out takes and gives back."""
    return web.json_response(_answer(prompt, Request(0, prompt.input_tokens, prompt.output_tokens, 0.0, aborted=True)))


async def complete(server: EmulatedServer, http: web.Request, prompt: Prompt) -> web.StreamResponse:
    """Serve one request."""
    generation = server.submit(prompt.input_tokens, prompt.output_tokens, streams=prompt.streams)
    request = generation.request
    if not prompt.streams:
        await server.finish(generation)
        return web.json_response(_answer(prompt, request))

    def chunk(tokens: int, last: bool) -> bytes:
        text = WORD * tokens
        content: dict[str, Any] = {"delta": {"content": text} if text else {}} if prompt.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": _reason(request) if last else None}
        document = {**_head(prompt, request, "chat.completion.chunk" if prompt.chat else "text_completion")}
        if not last:
            return event({**document, "choices": [choice]})
        usage = event({**document, "choices": [], "usage": usage_of(request)}) if prompt.usage_in_stream else b""
        return event({**document, "choices": [choice]}) + usage

    return await server.stream(http, generation, chunk)


def _head(prompt: Prompt, request: Request, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if prompt.chat else "cmpl"
    return {"id": f"{prefix}-{request.identity}", "object": kind, "created": int(time.time()), "model": prompt.model}


def _answer(prompt: Prompt, request: Request) -> dict[str, Any]:
    text = WORD * request.emitted_tokens
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if prompt.chat else {"text": text}
    return {
        **_head(prompt, request, "chat.completion" if prompt.chat else "text_completion"),
        "choices": [{"index": 0, **content, "finish_reason": _reason(request)}],
        "usage": usage_of(request),
    }


def _reason(request: Request) -> str:
    return "abort" if request.aborted else "length"


def usage_of(request: Request) -> dict[str, int]:
    return {
        "prompt_tokens": request.input_tokens,
        "completion_tokens": request.emitted_tokens,
        "total_tokens": request.input_tokens + request.emitted_tokens,
    }
