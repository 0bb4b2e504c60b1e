"""The emulator's own options: the hidden truth, the pace, the faults. They come from the command line and, since a pod
template can only set variables, from EMULATE_FLAGS; both are checked here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from crossover.emulate.truth import MODELS, Truth

ENGINES = ("sglang", "trtllm", "vllm")
NEWEST = {"sglang": "0.5.23", "trtllm": "1.3.0", "vllm": "0.33.0"}
FORMS = ("serve", "dynamo", "nim", "triton", "triton-llmapi")
"""What serves TensorRT-LLM, where the command line does not tell."""
COMMON_FAULTS = (
    "stale-gauges",
    "metrics-off",
    "html",
    "nan",
    "huge",
    "truncated",
    "http-503",
    "hang",
    "close",
    "hang-engine",
    "ignore-sigterm",
    "refuse-429",
    "refuse-503",
)
ENGINE_FAULTS = {
    "sglang": ("stuck-queue",),
    "trtllm": ("whole-queue", "no-batch-gauge"),
    "vllm": ("reset-counters", "scaling"),
}


def faults_of(engine: str) -> tuple[str, ...]:
    return (*COMMON_FAULTS, *ENGINE_FAULTS[engine])


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in value.split(",") if part)
    return (value,) if isinstance(value, int | float) else value


Integers = Annotated[tuple[int, ...], BeforeValidator(_listed)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Options(BaseModel):
    """See the help of `crossover emulate`. Strings are converted, so that all of it can be said in a variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = "sglang"
    address: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    root: Path = Path("/")
    form: str = ""
    server_version: str = Field(default="", pattern=r"^(\d+(\.\d+){1,2}(rc\d+|\.post\d+)?)?$")
    model: str = "8b-h100"
    draft_kv: bool = False
    padding: int = Field(default=1, ge=1)
    cliff: Annotated[tuple[float, ...], BeforeValidator(_listed)] = ()
    acceptance: Annotated[tuple[Probability, ...], BeforeValidator(_listed), Field(min_length=1)] = (0.67,)
    acceptance_spread: float = Field(default=0.1, ge=0, le=1)
    step_noise: float = Field(default=0.0, ge=0, le=1)
    zero_costs_as: int | None = Field(default=None, ge=0)
    zero_gap_acceptance: float = Field(default=1.0, ge=0, le=1)
    kv_tokens: int | None = Field(default=None, ge=64)
    startup_seconds: float = Field(default=2.0, ge=0)
    drain_poll_seconds: float = Field(default=5.0, gt=0)
    time_scale: float = Field(default=1.0, gt=0)
    seed: int = 1
    watch: Integers = ()
    fault: Names = ()

    @field_validator("form")
    @classmethod
    def _known_form(cls, value: str) -> str:
        if value and value not in FORMS:
            raise ValueError(f"one of {', '.join(FORMS)}")
        return value

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        if value not in MODELS:
            raise ValueError(f"one of {', '.join(MODELS)}")
        return value

    @field_validator("cliff")
    @classmethod
    def _pair(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and (len(value) != 2 or value[1] <= 0):
            raise ValueError("REQUESTS,FACTOR, for example 256,3")
        return value

    @field_validator("fault")
    @classmethod
    def _known_fault(cls, value: tuple[str, ...], info: Any) -> tuple[str, ...]:
        known = faults_of(info.data.get("engine", "sglang"))
        for name in value:
            if name not in known:
                raise ValueError(f"{name!r} is none of {', '.join(known)}")
        return value

    @property
    def version(self) -> tuple[int, ...]:
        """Numbers only: a release candidate counts as its release."""
        text = self.server_version or NEWEST[self.engine]
        return tuple(int(part.split("rc")[0]) for part in text.split(".")[:3])

    @property
    def version_text(self) -> str:
        return self.server_version or NEWEST[self.engine]

    def truth(self) -> Truth:
        preset = MODELS[self.model]
        model = replace(
            preset,
            model=preset.model.with_draft_kv() if self.draft_kv else preset.model,
            padding_tokens=self.padding,
            cliff_above_running_requests=int(self.cliff[0]) if self.cliff else None,
            cliff_factor=self.cliff[1] if self.cliff else 1.0,
        )
        return Truth(
            model,
            self.acceptance,
            self.acceptance_spread,
            step_noise=self.step_noise,
            zero_costs_as=self.zero_costs_as,
            zero_gap_acceptance=self.zero_gap_acceptance,
        )


class BadOptionError(ValueError):
    """An option that cannot be used: names it, its value and what would do."""


def options_of(given: Mapping[str, Any], flags: str = "") -> Options:
    """Options from keywords, changed by the words of ``flags`` (`--name value`, `--name=value`). Raises `BadOptionError`."""
    try:
        return Options.model_validate({**given, **_words(flags)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise BadOptionError(f"--{name} {first['input']!r}: {first['msg']}") from None


def _words(flags: str) -> dict[str, Any]:
    words, found = shlex.split(flags), dict[str, Any]()
    while words:
        name, equals, value = words.pop(0).partition("=")
        key = name.removeprefix("--").replace("-", "_")
        field = Options.model_fields.get(key)
        if not name.startswith("--") or field is None:
            raise BadOptionError(f"EMULATE_FLAGS: {name!r} is no option of crossover emulate")
        if equals:
            found[key] = value
        elif field.annotation is bool and not (words and words[0] in ("true", "false")):
            found[key] = True
        elif words:
            found[key] = words.pop(0)
        else:
            raise BadOptionError(f"EMULATE_FLAGS: {name} needs a value")
    return found
