"""Requests and answers on each route. Pure: bytes and dictionaries, no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from crossover.api.fleet import EngineType
from crossover.calibrate.contract import Route

_PATHS = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions", Route.GENERATE: "/generate"}
DATA, END = b"data:", b"[DONE]"


def path(route: Route, model: str, *, stream: bool) -> str:
    """Where a request goes; only Triton has the model's name and the manner of answering in it."""
    if route is Route.TRITON:
        return f"/v2/models/{quote(model, safe='')}/generate{'_stream' if stream else ''}"
    return _PATHS[route]


def resolved(route: Route, engine: EngineType) -> Route:
    """SGLang's own route tells verification steps; the native route of vLLM and trtllm-serve is the completions route."""
    if route is not Route.AUTO:
        return route
    return Route.GENERATE if engine is EngineType.SGLANG else Route.COMPLETIONS


def body(route: Route, model: str, prompt: str, output_tokens: int, *, stream: bool) -> dict[str, Any]:
    """Exactly ``output_tokens`` tokens are asked for: all three engines take ignore_eos beside the OpenAI fields, the
    classic ensemble of Triton min_tokens. Its LLM API backend takes neither."""
    if route is Route.TRITON:
        return _triton(prompt, output_tokens, stream=stream)
    if route is Route.GENERATE:
        sampling = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
        return {"text": prompt, "sampling_params": sampling, "stream": stream}
    document: dict[str, Any] = {
        "model": model,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    if route is Route.CHAT:
        document["messages"] = [{"role": "user", "content": prompt}]
    else:
        document["prompt"] = prompt
    if stream:
        document["stream_options"] = {"include_usage": True}
    return document


def _triton(prompt: str, output_tokens: int, *, stream: bool) -> dict[str, Any]:
    """In the words of the classic ensemble and in those of the LLM API backend: what is not an input of the model is a
    parameter to it, which it ignores (Triton's generate extension)."""
    return {
        "text_input": prompt,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "top_k": 1,
        "stream": stream,
        "exclude_input_in_output": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_perf_metrics": True,
        "streaming": stream,
        "sampling_param_max_tokens": output_tokens,
        "sampling_param_top_k": 1,
        "sampling_param_exclude_input_from_output": True,
        "sampling_param_return_perf_metrics": True,
        "return_finish_reason": True,
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer says of itself. None = not told."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    verify_steps: int | None = None
    """Decode steps of this request (SGLang's own route)."""
    accepted_tokens: int | None = None
    """Draft tokens accepted in this request (Triton)."""
    is_cut_short: bool = False
    """It ended by itself, after nobody knows how many tokens (Triton's LLM API backend)."""
    failed: bool = False
    """An error inside of a 200."""


def usage(documents: Sequence[bytes]) -> Usage:
    """From the whole answer, or from the last events of a stream; later ones win."""
    found = Usage()
    for raw in documents:
        document = _json(raw)
        if document is None:
            continue
        if "error" in document:
            return Usage(failed=True)
        meta, told = document.get("meta_info"), document.get("usage")
        if isinstance(meta, Mapping):
            found = Usage(
                _count(meta, "prompt_tokens"), _count(meta, "completion_tokens"), _count(meta, "spec_verify_ct")
            )
        elif isinstance(told, Mapping):
            found = Usage(_count(told, "prompt_tokens"), _count(told, "completion_tokens"))
        elif "text_output" in document:
            found = Usage(
                _number(document.get("num_input_tokens")),
                _number(document.get("num_output_tokens")),
                accepted_tokens=_number(document.get("total_accepted_draft_tokens")),
                is_cut_short=_ended_by_itself(document.get("finish_reason")),
            )
    return found


def event(line: bytes) -> bytes | None:
    """The data of a line of a stream; None for anything else and for the end mark."""
    if not line.startswith(DATA):
        return None
    data = line[len(DATA) :].strip()
    return None if data == END or not data else data


def _json(raw: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _ended_by_itself(reason: Any) -> bool:
    """Not told, or told while it goes on, is no end."""
    told = reason if isinstance(reason, list) else [reason]
    return any(one not in (None, "None", "length") for one in told)


def _number(value: Any) -> int | None:
    """The LLM API backend tells numbers as text, the classic ensemble in lists where a shape says so."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return _count({"value": value}, "value")


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
