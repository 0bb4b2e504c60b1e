"""TensorRT-LLM: what it accepts. Every change is a new process; the best of them is a schedule that the engine follows.

Where speculation stands: the YAML of `--config` / `--extra_llm_api_options` from a mounted ConfigMap, `--set PATH=VALUE`, or
Dynamo's override (`DYN_TRTLLM_OVERRIDE_ENGINE_ARGS`, `--override-engine-args`; null removes). `draft_len_schedule` changed
its meaning between 1.2 (keys are lower bounds) and 1.3 (keys are upper bounds): without the version nothing is rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import CommandLine, Flag, parse
from crossover.engines.contract import ConfigFile, ContainerEdit, Refusal, Schedule, WantedSpeculation

Version = tuple[int, ...]

UPPER_BOUNDS_SINCE: Version = (1, 3)
CONFIG = Flag(("--config", "--extra_llm_api_options", "--extra-engine-args"))
SET = Flag(("--set",))
OVERRIDE = Flag(("--override-engine-args",))
OVERRIDE_VARIABLE = "DYN_TRTLLM_OVERRIDE_ENGINE_ARGS"
MAX_BATCH = Flag(("--max_batch_size",))
FILE = "/etc/crossover/speculation/llm-api.yaml"
SPECULATIVE = "speculative_config"
LENGTH, SCHEDULE_KEY, CONCURRENCY = "max_draft_len", "draft_len_schedule", "max_concurrency"
OLD_LENGTH = "num_nextn_predict_layers"
TWO_MODEL = ("NGRAM", "DRAFT_TARGET")
"""Where a Drafter object exists in 1.2 and earlier; one-model Eagle3 and MTP accept a schedule and ignore it."""
ONE_MODEL_1_3 = ("EAGLE3", "EAGLE", "MTP", "MTP_EAGLE", "PARD", "DFLASH", "DRAFT_TARGET", "SA", "NGRAM")

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


class Form(StrEnum):
    YAML = "YAML"
    DYNAMO = "Dynamo"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class _Found:
    """The speculative configuration in force. ``config`` None = started without speculation."""

    form: Form
    config: dict[str, Any] | None
    line: CommandLine
    document: dict[str, Any]
    """The whole YAML, or the whole override."""
    path: str | None = None
    override: dict[str, Any] | None = None


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    found = _find(container, files)
    if found.config is None:
        return SpeculationSettings(EngineType.TENSORRT_LLM, enabled=False)
    return SpeculationSettings(
        EngineType.TENSORRT_LLM,
        enabled=True,
        algorithm=_method(found.config),
        draft_tokens=_length(found.config),
    )


def _find(container: Mapping[str, Any], files: Mapping[str, str]) -> _Found:
    _refuse_other_servers(container)
    line = parse(container)
    if line.shell_index is not None:
        raise Refusal(
            "ShellCommand",
            "the server is started by a shell script (often with its YAML in a here-document).",
            field=f"spec.template.spec.containers[].{line.field}[{line.shell_index}]",
            fix="Put the YAML into a ConfigMap, mount it, and write the command as a list.",
        )
    document, path = _document(line, files)
    for assignment in _assignments(line):
        _assign(document, *assignment)
    override = _override(container, line)
    if override is not None or "dynamo.trtllm" in line.words:
        merged = _merged(document, override or {})
        return _Found(Form.DYNAMO, _speculative(merged), line, document, path, override or {})
    form = Form.YAML if path is not None else Form.NONE
    return _Found(form, _speculative(document), line, document, path)


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


def _document(line: CommandLine, files: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    path = line.value(CONFIG)
    if path is None:
        return {}, None
    if path not in files:
        raise Refusal(
            "ConfigNotReadable",
            f"{path} is not from a ConfigMap that the pod mounts.",
            field="spec.template.spec.containers[].volumeMounts",
            fix="Mount the YAML from a ConfigMap in this namespace.",
        )
    try:
        document = yaml.safe_load(files[path]) or {}
    except yaml.YAMLError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(
            "InvalidConfig",
            f"{path} is no YAML object: the server would not start with it.",
            field="spec.template.spec.containers[].args",
            fix="Correct the ConfigMap.",
        )
    return document, path


def _assignments(line: CommandLine) -> list[tuple[str, str]]:
    words, found = line.words, []
    for position, word in enumerate(words):
        text = word.partition("=")[2] if word.startswith("--set=") else None
        if word == "--set" and position + 1 < len(words):
            text = words[position + 1]
        if text is not None:
            path, _, value = text.partition("=")
            found.append((path, value))
    return found


def _assign(document: dict[str, Any], path: str, value: str) -> None:
    """`--set a.b=VALUE` as the newest servers read it: it wins over the file; null removes."""
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            return
    node[last] = yaml.safe_load(value)


def _override(container: Mapping[str, Any], line: CommandLine) -> dict[str, Any] | None:
    text = line.value(OVERRIDE)
    if text is None:
        variable = next((item for item in container.get("env") or () if item["name"] == OVERRIDE_VARIABLE), None)
        text = variable.get("value") if variable is not None else None
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


def _speculative(document: Mapping[str, Any]) -> dict[str, Any] | None:
    value = document.get(SPECULATIVE)
    return dict(value) if isinstance(value, dict) else None


def _method(config: Mapping[str, Any]) -> str | None:
    method = config.get("decoding_type")
    return str(method).upper() if method else None


def _length(config: Mapping[str, Any]) -> int | None:
    value = config.get(LENGTH, config.get(OLD_LENGTH))
    return value if isinstance(value, int) else None


# -- what this server can do -------------------------------------------------------------------------------------------


def capability(
    version_text: object, container: Mapping[str, Any] | None, files: Mapping[str, str]
) -> Capability | None:
    version = version_of(version_text)
    if container is None and version is None:
        return None
    found, refusal = None, "the pod template is not known"
    if container is not None:
        try:
            found = _find(container, files)
        except Refusal as refused:
            refusal = str(refused)
    config = found.config if found is not None else None
    why = refusal if found is None else _schedule_refusal(version, config)
    upper = version is not None and version >= UPPER_BOUNDS_SINCE
    dialect = ScheduleDialect.TENSORRT_LLM_UPPER_BOUND if upper else ScheduleDialect.TENSORRT_LLM_LOWER_BOUND
    return Capability(
        EngineType.TENSORRT_LLM,
        ".".join(str(part) for part in version) if version else None,
        _method(config) if config else None,
        max_draft_tokens=_length(config) if config else None,
        schedule_dialect=dialect if why is None else None,
        schedule_refusal=why,
        follows_schedule=why is None and bool(config and config.get(SCHEDULE_KEY)),
        adapts_by_itself=bool(config) and (_method(config or {}) == "AUTO" or bool((config or {}).get(CONCURRENCY))),
        zero_is_safe=False,
        max_running_requests=_limit(found),
    )


def _limit(found: _Found | None) -> int | None:
    """max_batch_size from YAML or arguments, less what draft tokens take of max_num_tokens."""
    if found is None:
        return None
    text = found.line.value(MAX_BATCH)
    value = int(text) if text and text.isdigit() else found.document.get("max_batch_size")
    tokens = found.document.get("max_num_tokens")
    if isinstance(tokens, int) and isinstance(value, int) and found.config is not None:
        return int(min(value, tokens // (1 + (_length(found.config) or 0))))
    return value if isinstance(value, int) else None


def _schedule_refusal(version: Version | None, config: Mapping[str, Any] | None) -> str | None:
    if config is None:
        return "the server runs without speculation"
    if version is None:
        return "the server has not told its version, and draft_len_schedule means the opposite before 1.3"
    method = _method(config)
    if config.get("acceptance_window") or config.get("acceptance_rate_window_size"):
        return "the acceptance gate switches speculation off for good until a restart: take it out first"
    if version < UPPER_BOUNDS_SINCE and method not in TWO_MODEL:
        return f"TensorRT-LLM {'.'.join(map(str, version))} accepts draft_len_schedule for {method} and ignores it"
    if version >= UPPER_BOUNDS_SINCE and method not in ONE_MODEL_1_3:
        return f"draft_len_schedule does not work with {method}"
    return None


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(schedule: Schedule, able: Capability) -> str:
    """`draft_len_schedule` as YAML."""
    return yaml.safe_dump({SCHEDULE_KEY: _table(schedule, able)}, sort_keys=False)


def _table(schedule: Schedule, able: Capability) -> dict[int, int]:
    """Keys and values in the dialect of this version, with the engine's own rules applied."""
    keys = [key for key, _ in schedule]
    if not schedule or keys[0] != 1 or keys != sorted(set(keys)) or any(draft < 0 for _, draft in schedule):
        raise Refusal(
            "InvalidSchedule",
            "keys must be 1 or more and ascend from 1, and lengths must be 0 or more.",
            field="schedule",
            fix="Write it as 1:3,33:1.",
        )
    if able.schedule_dialect is None:
        raise Refusal(
            "ScheduleUnsupported",
            f"{able.schedule_refusal or 'this server cannot follow a schedule'}.",
            field="spec.speculation.lever",
            fix="Use lever Restart or Auto.",
        )
    if max(draft for _, draft in schedule) != schedule[0][1]:
        raise Refusal(
            "InvalidSchedule",
            "the value of the smallest key must be max_draft_len, the longest of all.",
            field="schedule",
            fix="Let lengths fall with the batch.",
        )
    if able.zero_is_safe is not True:
        schedule = tuple((key, max(1, draft)) for key, draft in schedule)
    if able.schedule_dialect is ScheduleDialect.TENSORRT_LLM_LOWER_BOUND:
        return dict(schedule)
    return _upper_bounds(schedule, able)


def _upper_bounds(schedule: Schedule, able: Capability) -> dict[int, int]:
    """{32: 3, 256: 1}: 3 up to 32, 1 up to 256, off above the largest key; a last band of 0 needs no key."""
    table = {schedule[position + 1][0] - 1: draft for position, (_, draft) in enumerate(schedule[:-1])}
    last = schedule[-1][1]
    if last > 0:
        if able.max_running_requests is None:
            raise Refusal(
                "LimitUnknown",
                "the last band needs an upper bound: above the largest key the engine drafts nothing.",
                field="spec.template.spec.containers[].args",
                fix="Set max_batch_size in the YAML.",
            )
        table[max(able.max_running_requests, schedule[-1][0])] = last
    return table


# -- editing -----------------------------------------------------------------------------------------------------------


def edit(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    wanted: WantedSpeculation,
    able: Capability,
    removed: Mapping[str, Any],
) -> ContainerEdit:
    found = _find(container, files)
    name = str(container["name"])
    config = _wanted_config(found.config, wanted, able, removed)
    if config == found.config:
        return ContainerEdit(name)
    kept = {SPECULATIVE: found.config} if config is None else {}
    if found.form is Form.DYNAMO:
        return _edit_override(name, container, found, config, kept)
    if found.form is Form.YAML:
        return _edit_yaml(
            name, found, config, {**kept, "path": removed.get("path", found.path)} if config is None else {}
        )
    raise Refusal(
        "NoConfigFile",
        "the server has no YAML from a ConfigMap, and no flag carries the speculative configuration.",
        field="spec.template.spec.containers[].args",
        fix="Put speculative_config into a YAML of a ConfigMap and name it with --config.",
    )


def _wanted_config(
    present: dict[str, Any] | None, wanted: WantedSpeculation, able: Capability, removed: Mapping[str, Any]
) -> dict[str, Any] | None:
    if not wanted.enabled:
        return None
    config = present if present is not None else removed.get(SPECULATIVE)
    if not isinstance(config, dict):
        raise Refusal(
            "NothingToPutBack",
            "the server has no speculative_config and none was taken out by Crossover.",
            field="spec.template.spec.containers[].args",
            fix="Add speculative_config for this model to its YAML.",
        )
    new = dict(config)
    key = OLD_LENGTH if OLD_LENGTH in new and LENGTH not in new else LENGTH
    if wanted.schedule:
        table = _table(wanted.schedule, able)
        new |= {key: wanted.schedule[0][1], SCHEDULE_KEY: table}
        new.pop(CONCURRENCY, None)  # the two exclude each other
    elif wanted.draft_tokens is not None:
        new[key] = wanted.draft_tokens
        new.pop(SCHEDULE_KEY, None)
    return new


def _edit_yaml(name: str, found: _Found, config: dict[str, Any] | None, kept: Mapping[str, Any]) -> ContainerEdit:
    """A copy of the YAML in a ConfigMap of ours: the user's own is not ours to write. Comments are not carried over."""
    document = {key: value for key, value in found.document.items() if key != SPECULATIVE}
    if config is not None:
        document[SPECULATIVE] = config
    line = found.line.without(*(SET,)) if _sets_speculation(found.line) else found.line
    for path, value in _assignments(found.line):
        if _sets_speculation(found.line) and not path.startswith(SPECULATIVE):
            line = line.inserted(len(line.tokens), ["--set", f"{path}={value}"])
    flag = next(spelling for spelling in CONFIG.names if found.line.has(Flag((spelling,))))
    line = line.with_value(Flag((flag,)), FILE)
    changed = line.tokens if line.tokens != found.line.tokens else None
    return ContainerEdit(
        name,
        command=changed if line.field == "command" else None,
        args=changed if line.field == "args" else None,
        file=ConfigFile("llm-api.yaml", yaml.safe_dump(document, sort_keys=False), FILE),
        removed=kept,
    )


def _sets_speculation(line: CommandLine) -> bool:
    return any(path.startswith(SPECULATIVE) for path, _ in _assignments(line))


def _edit_override(
    name: str, container: Mapping[str, Any], found: _Found, config: dict[str, Any] | None, kept: Mapping[str, Any]
) -> ContainerEdit:
    """Dynamo's override is the least intrusive place: null takes speculation out, a part of it changes that part."""
    override = {key: value for key, value in (found.override or {}).items() if key != SPECULATIVE}
    base = _speculative(found.document)
    if config is None:
        override[SPECULATIVE] = None
    elif base is None:
        override[SPECULATIVE] = config
    else:
        difference = {key: value for key, value in config.items() if base.get(key) != value}
        difference |= {key: None for key in base if key not in config}
        if difference:
            override[SPECULATIVE] = difference
    text = json.dumps(override, separators=(",", ":")) if override else None
    if found.line.has(OVERRIDE):
        line = found.line.with_value(OVERRIDE, text) if text is not None else found.line.without(OVERRIDE)
        return ContainerEdit(
            name,
            command=line.tokens if line.field == "command" else None,
            args=line.tokens if line.field == "args" else None,
            removed=kept,
        )
    return ContainerEdit(name, env={OVERRIDE_VARIABLE: text}, removed=kept)
