"""The inference servers, one module each, behind `engines.contract.Engine`."""

from __future__ import annotations

from collections.abc import Sequence

from crossover.api.fleet import EngineType
from crossover.engines.contract import Answer, Engine
from crossover.engines.sglang import ENGINE as SGLANG
from crossover.engines.tensorrt_llm import ENGINE as TENSORRT_LLM
from crossover.engines.vllm import ENGINE as VLLM

ENGINES: dict[EngineType, Engine] = {
    EngineType.TENSORRT_LLM: TENSORRT_LLM,
    EngineType.SGLANG: SGLANG,
    EngineType.VLLM: VLLM,
}
"""Every engine that can be measured and changed, in the order of detection: the paths of TensorRT-LLM come first, for the
others' `/metrics` is a list there that each GET takes away."""


def detect(answers: Sequence[Answer]) -> Engine | None:
    """The engine that recognises one of the answers as its own; None = nobody does."""
    for engine in ENGINES.values():
        if any(engine.recognises(answer) for answer in answers):
            return engine
    return None
