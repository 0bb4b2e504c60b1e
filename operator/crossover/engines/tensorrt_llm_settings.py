"""TensorRT-LLM: what it accepts. Every change is a new process; the best of them is a schedule that the engine follows.

Where the configuration stands is `tensorrt_llm_place`'s, what a schedule looks like in each version `tensorrt_llm_schedule`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import Flag, positional
from crossover.engines.contract import ConfigFile, ContainerEdit, Models, Refusal, Schedule, WantedSpeculation
from crossover.engines.tensorrt_llm_place import (
    CONFIG,
    OVERRIDE,
    OVERRIDE_VARIABLE,
    SPECULATIVE,
    Assignment,
    Form,
    Found,
    find,
    speculative,
    tokens_of,
    without_speculative,
)
from crossover.engines.tensorrt_llm_schedule import (
    CONCURRENCY,
    FIRST_1_3,
    LENGTH,
    SCHEDULE_KEY,
    Version,
    honours,
    method_of,
    schedule_of,
    schedule_refusal,
    table_of,
    version_of,
    version_text,
)

MAX_BATCH, MAX_TOKENS = Flag(("--max_batch_size",)), Flag(("--max_num_tokens",))
DEFAULT_MAX_TOKENS = 8192
FILE = "/etc/crossover/speculation/llm-api.yaml"
OLD_LENGTH = "num_nextn_predict_layers"


MODEL = Flag(("--model", "--model-path"))

# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    found = find(container, files)
    if found.config is None:
        return SpeculationSettings(EngineType.TENSORRT_LLM, enabled=False)
    return SpeculationSettings(
        EngineType.TENSORRT_LLM,
        enabled=True,
        algorithm=method_of(found.config),
        draft_tokens=_length(found.config),
        schedule=schedule_of(found.config, _batch(found)),
    )


def _length(config: Mapping[str, Any]) -> int | None:
    value = config.get(LENGTH, config.get(OLD_LENGTH))
    return value if isinstance(value, int) else None


# -- what this server can do -------------------------------------------------------------------------------------------


def capability(
    told_version: object, container: Mapping[str, Any] | None, files: Mapping[str, str]
) -> Capability | None:
    version = version_of(told_version)
    if container is None and version is None:
        return None
    found, refusal = None, "the pod template is not known"
    if container is not None:
        try:
            found = find(container, files)
        except Refusal as refused:
            refusal = str(refused)
    config = found.config if found is not None else None
    why = refusal if found is None else schedule_refusal(version, config)
    upper = version is not None and version >= FIRST_1_3
    dialect = ScheduleDialect.TENSORRT_LLM_UPPER_BOUND if upper else ScheduleDialect.TENSORRT_LLM_LOWER_BOUND
    return Capability(
        EngineType.TENSORRT_LLM,
        version_text(version),
        method_of(config) if config else None,
        max_draft_tokens=_length(config) if config else None,
        schedule_dialect=dialect if why is None else None,
        schedule_refusal=why,
        follows_schedule=why is None and bool(config and config.get(SCHEDULE_KEY)),
        adapts_by_itself=_adapts_by_itself(version, config),
        zero_is_safe=False,
        max_running_requests=limit_of(found) if found is not None else None,
        schedule=schedule_of(config, _batch(found), version) if found is not None and why is None else (),
    )


def _adapts_by_itself(version: Version | None, config: Mapping[str, Any] | None) -> bool:
    """AUTO is NGram by batch size; max_concurrency ends drafting above it, where it is honoured."""
    if config is None:
        return False
    honoured = version is None or honours(version, config)
    return method_of(config) == "AUTO" or (bool(config.get(CONCURRENCY)) and honoured)


def limit_of(found: Found) -> int | None:
    """max_batch_size, less what draft tokens take of max_num_tokens; None where it is not told."""
    batch = _batch(found)
    if batch is None:
        return None
    if found.config is None:
        return batch
    tokens = _one_of(found, MAX_TOKENS, "max_num_tokens")
    unsure = tokens is None and (found.line.has(MAX_TOKENS) or "max_num_tokens" in found.document)
    budget = batch if unsure else (tokens or DEFAULT_MAX_TOKENS) // (1 + (_length(found.config) or 0))
    return min(batch, budget)


def _batch(found: Found) -> int | None:
    return _one_of(found, MAX_BATCH, "max_batch_size")


def _one_of(found: Found, flag: Flag, key: str) -> int | None:
    """A number from the YAML or its own flag. Which of the two wins changed between versions: where they differ it is
    unknown."""
    text, value = found.line.value(flag), found.document.get(key)
    told = {int(text)} if text is not None and text.isdigit() else set()
    if isinstance(value, int):
        told.add(value)
    return told.pop() if len(told) == 1 else None


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(schedule: Schedule, able: Capability) -> str:
    """`draft_len_schedule` as YAML."""
    return yaml.safe_dump({SCHEDULE_KEY: table_of(schedule, able, able.max_running_requests)}, sort_keys=False)


def models(container: Mapping[str, Any], files: Mapping[str, str]) -> Models:
    try:
        found = find(container, files)
    except Refusal:
        return Models()
    config = found.config or {}
    draft = config.get("speculative_model") or config.get("speculative_model_dir")
    words = found.line.words
    model = found.line.value(MODEL) or positional(words, "serve") or positional(words, "trtllm-serve")
    return Models(model, draft if isinstance(draft, str) else None)


# -- editing -----------------------------------------------------------------------------------------------------------


def edit(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    wanted: WantedSpeculation,
    able: Capability,
    removed: Mapping[str, Any],
) -> ContainerEdit:
    found = find(container, files)
    name = str(container["name"])
    config = _wanted_config(found, wanted, able, removed)
    if config == found.config:
        return ContainerEdit(name)
    kept = {SPECULATIVE: found.config} if config is None else {}
    if found.form is Form.DYNAMO:
        return _edit_override(name, found, config, kept)
    if found.form is Form.DYNAMO_FLAGS or (found.form is Form.SET and not _needs_table(found.config, config)):
        return _edit_assignments(name, found, config, kept)
    if found.path is not None:
        path = {"path": removed.get("path", found.path)} if config is None else {}
        return _edit_yaml(name, found, config, {**kept, **path})
    raise Refusal(
        "NoConfigFile",
        "the server has no YAML from a ConfigMap, and no flag carries the speculative configuration.",
        field="spec.template.spec.containers[].args",
        fix="Put speculative_config into a YAML of a ConfigMap and name it with --config.",
    )


def _needs_table(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether a table would have to be written on the command line: it stands better in the YAML."""
    return (
        after is not None
        and after.get(SCHEDULE_KEY) is not None
        and after.get(SCHEDULE_KEY) != (before or {}).get(SCHEDULE_KEY)
    )


def _wanted_config(
    found: Found, wanted: WantedSpeculation, able: Capability, removed: Mapping[str, Any]
) -> dict[str, Any] | None:
    if not wanted.enabled:
        return None
    config = found.config if found.config is not None else removed.get(SPECULATIVE)
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
        if found.config is not None and _present(found, able) == wanted.schedule:
            return new
        table = table_of(wanted.schedule, able, _batch(found))
        new |= {key: wanted.schedule[0][1], SCHEDULE_KEY: table}
        new.pop(CONCURRENCY, None)  # the two exclude each other
    elif wanted.draft_tokens is not None:
        _refuse_length(config, wanted.draft_tokens)
        new[key] = wanted.draft_tokens
        new.pop(SCHEDULE_KEY, None)
    return new


def _present(found: Found, able: Capability) -> Schedule:
    return schedule_of(found.config, _batch(found), version_of(able.version))


def _refuse_length(config: Mapping[str, Any], draft_tokens: int) -> None:
    if draft_tokens < 1:
        raise Refusal(
            "InvalidDraftLength",
            "max_draft_len must be greater than 0.",
            field="spec.speculation.maxDraftTokens",
            fix="Switch speculation off instead.",
        )
    total = config.get("max_total_draft_tokens")
    if isinstance(total, int) and total != _length(config) and draft_tokens != _length(config):
        raise Refusal(
            "TreeDraft",
            "the draft is a tree (max_total_draft_tokens): its length and width cannot be changed separately.",
            field="spec.speculation.maxDraftTokens",
            fix="Leave it out, or draft a chain.",
        )


def _changed(name: str, found: Found, tokens: Sequence[str], **more: Any) -> ContainerEdit:
    """The token list in the field where it stands, if it differs."""
    changed = tuple(tokens) if tuple(tokens) != found.line.tokens else None
    return ContainerEdit(
        name,
        command=changed if found.line.field == "command" else None,
        args=changed if found.line.field == "args" else None,
        **more,
    )


def _edit_yaml(name: str, found: Found, config: dict[str, Any] | None, kept: Mapping[str, Any]) -> ContainerEdit:
    """A copy of the YAML in a ConfigMap of ours: the user's own is not ours to write. Comments are not carried over."""
    document = {key: value for key, value in found.base.items() if key != SPECULATIVE}
    if config is not None:
        document[SPECULATIVE] = config
    flag = next(spelling for spelling in CONFIG.names if found.line.has(Flag((spelling,))))
    tokens = without_speculative(found.line.with_value(Flag((flag,)), FILE).tokens)
    file = ConfigFile("llm-api.yaml", yaml.safe_dump(document, sort_keys=False), FILE)
    return _changed(name, found, tokens, file=file, removed=kept)


def _edit_assignments(name: str, found: Found, config: dict[str, Any] | None, kept: Mapping[str, Any]) -> ContainerEdit:
    """`--set` and `--trtllm.` win over the YAML: only what differs from it is written there, null takes out."""
    base = speculative(found.base)
    if config is None:
        wanted = [Assignment(SPECULATIVE, "null")] if base is not None else []
    else:
        different = {key: value for key, value in config.items() if base is None or base.get(key) != value}
        gone = [key for key in base or {} if key not in config]
        wanted = [Assignment(f"{SPECULATIVE}.{key}", _written(value)) for key, value in different.items()]
        wanted += [Assignment(f"{SPECULATIVE}.{key}", "null") for key in gone]
    tokens = without_speculative(found.line.tokens)
    for item in wanted:
        tokens += tokens_of(found.form, item)
    return _changed(name, found, tokens, removed=kept)


def _written(value: Any) -> str:
    """A plain value as YAML reads it back. A table has no sure form on a command line."""
    if isinstance(value, dict | list):
        raise Refusal(
            "NoConfigFile",
            "a schedule cannot be written as a flag.",
            field="spec.template.spec.containers[].args",
            fix="Put speculative_config into a YAML of a ConfigMap, or into Dynamo's override.",
        )
    return json.dumps(value) if not isinstance(value, str) else value


def _edit_override(name: str, found: Found, config: dict[str, Any] | None, kept: Mapping[str, Any]) -> ContainerEdit:
    """Dynamo's override is the least intrusive place: null takes speculation out, a part of it changes that part."""
    override = {key: value for key, value in found.override.items() if key != SPECULATIVE}
    base = speculative(found.base)
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
        return _changed(name, found, line.tokens, removed=kept)
    return ContainerEdit(name, env={OVERRIDE_VARIABLE: text}, removed=kept)
