"""TensorRT-LLM: where a container keeps its speculative configuration, and what stands there.

The YAML of `--config` / `--extra_llm_api_options` from a mounted ConfigMap; `--set PATH=VALUE` of the newest servers; Dynamo's
YAML, override (`DYN_TRTLLM_OVERRIDE_ENGINE_ARGS`, `--override-engine-args`; null removes) or `--trtllm.PATH VALUE` flags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from crossover.engines.arguments import CommandLine, Flag, parse
from crossover.engines.contract import Refusal
from crossover.engines.values import yaml_object

CONFIG = Flag(("--config", "--extra_llm_api_options", "--extra-engine-args"))
CONFIG_VARIABLE = "DYN_TRTLLM_EXTRA_ENGINE_ARGS"
OVERRIDE = Flag(("--override-engine-args",))
OVERRIDE_VARIABLE = "DYN_TRTLLM_OVERRIDE_ENGINE_ARGS"
SPECULATIVE = "speculative_config"
SET, DYNAMO_FLAG = "--set", "--trtllm."


class Form(StrEnum):
    YAML = "YAML"
    SET = "Set"
    """`--set`, over a YAML or alone."""
    DYNAMO = "Dynamo"
    """The override, over a YAML or alone."""
    DYNAMO_FLAGS = "DynamoFlags"
    """`--trtllm.a.b`; excludes the override."""
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One ``a.b=VALUE`` on the command line."""

    path: str
    value: str

    @property
    def is_speculative(self) -> bool:
        return self.path == SPECULATIVE or self.path.startswith(f"{SPECULATIVE}.")


@dataclass(frozen=True, slots=True)
class Found:
    """The speculative configuration in force. ``config`` None = started without speculation."""

    form: Form
    config: dict[str, Any] | None
    line: CommandLine
    base: dict[str, Any]
    """The YAML alone."""
    document: dict[str, Any]
    """Everything together."""
    path: str | None = None
    override: dict[str, Any] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()


def find(container: Mapping[str, Any], files: Mapping[str, str]) -> Found:
    """Raises Refusal for a form that cannot be read safely."""
    _refuse_other_servers(container)
    line = parse(container)
    if line.shell_index is not None:
        raise Refusal(
            "ShellCommand",
            "the server is started by a shell script (often with its YAML in a here-document).",
            field=f"spec.template.spec.containers[].{line.field}[{line.shell_index}]",
            fix="Put the YAML into a ConfigMap, mount it, and write the command as a list.",
        )
    base, path = _yaml(container, line, files)
    override = _override(container, line)
    assignments = assignments_of(line.words)
    document = _merged(base, override or {})
    for assignment in assignments:
        document = assigned(document, assignment)
    return Found(
        _form(line, path, override, assignments),
        speculative(document),
        line,
        base,
        document,
        path,
        override or {},
        assignments,
    )


def _form(
    line: CommandLine, path: str | None, override: Mapping[str, Any] | None, assignments: Sequence[Assignment]
) -> Form:
    if any(word.startswith(DYNAMO_FLAG) for word in line.words):
        return Form.DYNAMO_FLAGS
    if override is not None or "dynamo.trtllm" in line.words:
        return Form.DYNAMO
    if assignments:
        return Form.SET
    return Form.YAML if path is not None else Form.NONE


def speculative(document: Mapping[str, Any]) -> dict[str, Any] | None:
    value = document.get(SPECULATIVE)
    return dict(value) if isinstance(value, dict) else None


def _refuse_other_servers(container: Mapping[str, Any]) -> None:
    words = " ".join(str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ())))
    names = {item["name"] for item in container.get("env") or ()}
    if any(name.startswith("NIM_") for name in names) or "/nim/" in str(container.get("image", "")):
        raise Refusal(
            "NIMProfile",
            "in NIM, speculation is part of the model profile.",
            field="spec.template.spec.containers[].env[NIM_MODEL_PROFILE]",
            fix="Choose the profile in the NIMService, and set spec.speculation.policy to Hold here.",
        )
    if "tritonserver" in words or "LLM_CONFIG_PATH" in names:
        raise Refusal(
            "TritonModelRepository",
            "in Triton, speculation stands in the model repository (model.yaml or the engine).",
            field="spec.template.spec.containers[]",
            fix="Change model.yaml and roll the pods, and set spec.speculation.policy to Hold here.",
        )


# -- YAML --------------------------------------------------------------------------------------------------------------


def _yaml(
    container: Mapping[str, Any], line: CommandLine, files: Mapping[str, str]
) -> tuple[dict[str, Any], str | None]:
    path = line.value(CONFIG)
    if path is None:
        path = _variable(container, CONFIG_VARIABLE)
    if path is None:
        return {}, None
    if path not in files:
        raise Refusal(
            "ConfigNotReadable",
            f"{path} is not from a ConfigMap that the pod mounts.",
            field="spec.template.spec.containers[].volumeMounts",
            fix="Mount the YAML from a ConfigMap in this namespace.",
        )
    document = yaml_object(files[path])
    if document is None:
        raise Refusal(
            "InvalidConfig",
            f"{path} is no YAML object: the server would not start with it.",
            field="spec.template.spec.containers[].args",
            fix="Correct the ConfigMap.",
        )
    return document, path


def _variable(container: Mapping[str, Any], name: str) -> str | None:
    item = next((item for item in container.get("env") or () if item["name"] == name), None)
    if item is None:
        return None
    if "value" not in item:
        raise Refusal(
            "VariableNotReadable",
            f"the value of the variable {name} stands somewhere else.",
            field=f"spec.template.spec.containers[].env[{name}]",
            fix="Give the variable a plain value in the pod template.",
        )
    return str(item["value"])


# -- Dynamo's override -------------------------------------------------------------------------------------------------


def _override(container: Mapping[str, Any], line: CommandLine) -> dict[str, Any] | None:
    text = line.value(OVERRIDE)
    if text is None:
        text = _variable(container, OVERRIDE_VARIABLE)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(
            "InvalidConfig",
            "the engine override is no JSON object: the worker would not start with it.",
            field=f"spec.template.spec.containers[].env[{OVERRIDE_VARIABLE}]",
            fix='Write it as {"speculative_config": {"max_draft_len": 3}}.',
        )
    return value


def _merged(document: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge; null removes."""
    merged = dict(document)
    for key, value in override.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


# -- assignments -------------------------------------------------------------------------------------------------------


def assignments_of(words: Sequence[str]) -> tuple[Assignment, ...]:
    return tuple(assignment for _, assignment in _assignments(words))


def without_speculative(tokens: Sequence[str]) -> list[str]:
    """The tokens without the assignments that concern speculation."""
    gone: set[int] = set()
    for places, assignment in _assignments(tokens):
        if assignment.is_speculative:
            gone |= set(places)
    return [token for position, token in enumerate(tokens) if position not in gone]


def tokens_of(form: Form, assignment: Assignment) -> list[str]:
    if form is Form.DYNAMO_FLAGS:
        value = "none" if assignment.value == "null" else assignment.value
        return [f"{DYNAMO_FLAG}{assignment.path}", value]
    return [SET, f"{assignment.path}={assignment.value}"]


def _assignments(words: Sequence[str]) -> list[tuple[range, Assignment]]:
    """(positions of its tokens, assignment), in order: a later one wins."""
    found = []
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else None
        text, length = (value, 1) if equals else (following, 2)
        if text is None:
            continue
        if name == SET:
            path, _, assigned_value = text.partition("=")
            found.append((range(position, position + length), Assignment(path, assigned_value)))
        elif name.startswith(DYNAMO_FLAG):
            value = "null" if text == "none" else text
            found.append((range(position, position + length), Assignment(name.removeprefix(DYNAMO_FLAG), value)))
    return found


def assigned(document: Mapping[str, Any], assignment: Assignment) -> dict[str, Any]:
    """The document with one value set; it wins over the file, null removes."""
    head, _, rest = assignment.path.partition(".")
    new = dict(document)
    if rest:
        inner = new.get(head)
        new[head] = assigned(inner if isinstance(inner, dict) else {}, Assignment(rest, assignment.value))
        return new
    value = _scalar(assignment.value)
    if value is None:
        new.pop(head, None)
    else:
        new[head] = value
    return new


def _scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
