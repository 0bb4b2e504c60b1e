"""vLLM: what it accepts. The speculative configuration in a pod template, read, rendered and edited.

One dictionary, written in many ways: `--speculative-config JSON`, dotted keys, `--spec-*` short forms, an environment
variable that a shell pastes in (KServe) or that `$(NAME)` refers to. From 0.24.0 the engine follows a batch schedule,
`num_speculative_tokens_per_batch_size`, read once at start-up and validated only after the weights are loaded: what it
would refuse then is refused here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import CommandLine, Flag, parse
from crossover.engines.contract import ContainerEdit, Refusal, Schedule, WantedSpeculation

Version = tuple[int, ...]

SCHEDULE_SINCE: Version = (0, 24)
DP_GUARD_SINCE: Version = (0, 26)
DISABLE_BY_BATCH_FATAL: Version = (0, 17)
SCHEDULE_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Others drop the schedule with a warning (V1 runner) or run only there."""
SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
TOKENS_KEY = "num_speculative_tokens"
KSERVE_VARIABLE = "VLLM_ADDITIONAL_ARGS"

CONFIG = Flag(("--speculative-config", "-sc"))
SHORT = {
    "method": Flag(("--spec-method",)),
    "model": Flag(("--spec-model",)),
    TOKENS_KEY: Flag(("--spec-tokens",)),
}
DOTTED = "--speculative-config."
CONFIG_FILE = Flag(("--config",))
DATA_PARALLEL = Flag(("--data-parallel-size", "-dp"))
MAX_SEQS = Flag(("--max-num-seqs",))
MAX_ACTIVE = Flag(("--max-num-active-seqs",))

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")
_REFERENCE = re.compile(r"^\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)$")


@dataclass(frozen=True, slots=True)
class _Found:
    """The speculative configuration and where it stands. ``config`` None = started without speculation."""

    config: dict[str, Any] | None
    line: CommandLine
    variable: str | None = None
    """Environment variable that holds it (whole for ``$(NAME)``, as one word of it for KServe)."""
    flags: tuple[Flag, ...] = ()
    """The flags on the command line that make it up."""


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


def _text(version: Version | None) -> str | None:
    return ".".join(str(part) for part in version) if version else None


# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    found = _find(container)
    if found.config is None:
        return SpeculationSettings(EngineType.VLLM, enabled=False)
    tokens = found.config.get(TOKENS_KEY)
    return SpeculationSettings(
        EngineType.VLLM,
        enabled=True,
        algorithm=_method(found.config),
        draft_tokens=tokens if isinstance(tokens, int) else None,
        schedule=_schedule(found.config),
    )


def _find(container: Mapping[str, Any]) -> _Found:
    line = parse(container)
    if line.shell_index is not None:
        return _in_shell(container, line)
    value = line.value(CONFIG)
    if value is not None:
        return _in_flag(container, line, value)
    dotted = [word.partition("=")[0] for word in line.words if word.startswith(DOTTED)]
    short = {key: flag for key, flag in SHORT.items() if line.has(flag)}
    if dotted or short:
        flags = (*(Flag((name,)) for name in dict.fromkeys(dotted)), *short.values())
        config = {name.removeprefix(DOTTED).replace("-", "_"): _scalar(line.value(Flag((name,)))) for name in dotted}
        config |= {key: _scalar(line.value(flag)) for key, flag in short.items()}
        return _Found(config, line, flags=flags)
    if line.has(CONFIG_FILE):
        raise Refusal(
            "ConfigFile",
            "the server reads its options from a --config file, so the speculative configuration may stand there.",
            field="spec.template.spec.containers[].args",
            fix="Write --speculative-config into args; the command line wins over the file.",
        )
    return _Found(None, line)


def _in_flag(container: Mapping[str, Any], line: CommandLine, value: str) -> _Found:
    reference = _REFERENCE.match(value)
    if reference is None:
        return _Found(_config(value), line, flags=(CONFIG,))
    name = reference[1]
    variable = next((item for item in container.get("env") or () if item["name"] == name), None)
    if variable is None or "value" not in variable:
        raise Refusal(
            "VariableNotReadable",
            f"the speculative configuration comes from the variable {name}, whose value stands somewhere else.",
            field=f"spec.template.spec.containers[].env[{name}]",
            fix="Give the variable a plain value in the pod template.",
        )
    return _Found(_config(variable["value"]), line, variable=name, flags=(CONFIG,))


def _in_shell(container: Mapping[str, Any], line: CommandLine) -> _Found:
    """A shell script is never edited; KServe's pastes a variable in, and that can be."""
    assert line.shell_index is not None
    script = line.tokens[line.shell_index]
    if f"${{{KSERVE_VARIABLE}}}" in script or f"${KSERVE_VARIABLE}" in script:
        text = next((i.get("value", "") for i in container.get("env") or () if i["name"] == KSERVE_VARIABLE), "")
        inner = parse({"name": "", "args": shlex.split(text) or ["vllm"]})
        value = inner.value(CONFIG)
        return _Found(_config(value) if value is not None else None, inner, variable=KSERVE_VARIABLE, flags=(CONFIG,))
    raise Refusal(
        "ShellCommand",
        "the server is started by a shell script that cannot be edited safely.",
        field=f"spec.template.spec.containers[].{line.field}[{line.shell_index}]",
        fix=f"Write the command as a list, or let the script read ${{{KSERVE_VARIABLE}}}.",
    )


def _config(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(
            "InvalidConfig",
            "--speculative-config is no JSON object: the server would not start with it.",
            field="spec.template.spec.containers[].args",
            fix='Write it as {"method": "eagle3", "num_speculative_tokens": 3}.',
        )
    return {str(key).replace("-", "_"): item for key, item in value.items()}


def _scalar(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def _method(config: Mapping[str, Any]) -> str | None:
    """The method, inferred from the draft's name where vLLM infers it."""
    method = config.get("method")
    if isinstance(method, str):
        return method.lower()
    model = str(config.get("model", "")).lower()
    for name in ("eagle3", "eagle-", "dflash", "dspark"):
        if name in model:
            return name.rstrip("-")
    return "draft_model" if model else None


def _schedule(config: Mapping[str, Any]) -> Schedule:
    """Ranges [start, end, K], inclusive; gaps and the tail carry the previous K on."""
    ranges = config.get(SCHEDULE_KEY)
    if not isinstance(ranges, list):
        return ()
    try:
        return tuple((int(start), int(draft)) for start, _, draft in ranges)
    except (TypeError, ValueError):
        return ()


# -- what this server can do -------------------------------------------------------------------------------------------


def capability(version_text: object, container: Mapping[str, Any] | None) -> Capability | None:
    """The version from the server, all else from the pod's arguments: no endpoint tells the configuration."""
    version = version_of(version_text)
    if container is None and version is None:
        return None
    found = None
    refusal: str | None = "the pod template is not known"
    if container is not None:
        try:
            found = _find(container)
            refusal = _schedule_refusal(version, found)
        except Refusal as refused:
            refusal = str(refused)
    config = found.config if found is not None else None
    tokens = config.get(TOKENS_KEY) if config else None
    return Capability(
        EngineType.VLLM,
        _text(version),
        _method(config) if config else None,
        max_draft_tokens=tokens if isinstance(tokens, int) else None,
        schedule_dialect=ScheduleDialect.VLLM_BATCH_SIZE_RANGES if refusal is None else None,
        schedule_refusal=refusal,
        follows_schedule=refusal is None and bool(config and _schedule(config)),
        adapts_by_itself=bool(config and config.get("enable_adaptive_verification")),
        zero_is_safe=True,
        max_running_requests=_limit(found.line) if found is not None else None,
        schedule=_schedule(config) if config else (),
    )


def _limit(line: CommandLine) -> int | None:
    """--max-num-seqs and --max-num-active-seqs; the default depends on the GPU, so it stays unknown."""
    values = [line.value(flag) for flag in (MAX_SEQS, MAX_ACTIVE)]
    numbers = [int(value) for value in values if value is not None and value.isdigit()]
    return min(numbers) if numbers else None


def _schedule_refusal(version: Version | None, found: _Found) -> str | None:
    if found.config is None:
        return "the server runs without speculation"
    if version is None:
        return "the server has not told its version"
    if version < SCHEDULE_SINCE:
        return f"{SCHEDULE_KEY} needs vLLM 0.24.0, this is {_text(version)}"
    if found.config.get("enable_adaptive_verification"):
        return "adaptive verification chooses the draft length by itself"
    ranks = found.line.value(DATA_PARALLEL)
    if ranks is not None and ranks.isdigit() and int(ranks) > 1:
        if version < DP_GUARD_SINCE:
            return f"with data_parallel_size {ranks} vLLM {_text(version)} may deadlock: ranks choose different lengths"
        return f"vLLM drops the schedule with a warning when data_parallel_size is {ranks}"
    method = _method(found.config)
    if method not in SCHEDULE_METHODS:
        return f"vLLM drops the schedule for method {method}"
    return None


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(schedule: Schedule, able: Capability) -> str:
    """The value of num_speculative_tokens_per_batch_size as JSON."""
    return json.dumps(_ranges(schedule, able), separators=(",", ":"))


def _ranges(schedule: Schedule, able: Capability) -> list[list[int]]:
    """vLLM's own rules: starts at 1, sorted, no overlap, K >= 0, at most num_speculative_tokens (clamped silently)."""
    keys = [key for key, _ in schedule]
    if not schedule or keys[0] != 1 or keys != sorted(set(keys)) or any(draft < 0 for _, draft in schedule):
        raise Refusal(
            "InvalidSchedule",
            "ranges must start at batch size 1, ascend without overlap, and have lengths of 0 or more.",
            field="schedule",
            fix="Write it as 1:3,33:0.",
        )
    if able.schedule_dialect is not ScheduleDialect.VLLM_BATCH_SIZE_RANGES:
        raise Refusal(
            "ScheduleUnsupported",
            f"{able.schedule_refusal or 'this server cannot follow a schedule'}.",
            field="spec.speculation.lever",
            fix="Use lever Restart or Auto.",
        )
    ends = [key - 1 for key in keys[1:]]
    last = max(keys[-1], able.max_running_requests or 0)
    return [[start, end, draft] for (start, draft), end in zip(schedule, [*ends, last], strict=True)]


# -- editing -----------------------------------------------------------------------------------------------------------


def edit(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    wanted: WantedSpeculation,
    able: Capability,
    removed: Mapping[str, Any],
) -> ContainerEdit:
    found = _find(container)
    name = str(container["name"])
    if not wanted.enabled:
        return ContainerEdit(name) if found.config is None else _off(name, found)
    if found.config is None:
        return _on(name, found, wanted, able, removed)
    config = _changed(found.config, wanted, able)
    return ContainerEdit(name) if config == found.config else _write(name, found, config)


def _changed(config: Mapping[str, Any], wanted: WantedSpeculation, able: Capability) -> dict[str, Any]:
    new = dict(config)
    if wanted.schedule:
        new[SCHEDULE_KEY] = _ranges(wanted.schedule, able)
        new[TOKENS_KEY] = max(draft for _, draft in wanted.schedule)
        if _schedule(config) == wanted.schedule and config.get(TOKENS_KEY) == new[TOKENS_KEY]:
            return dict(config)
    elif wanted.draft_tokens is not None:
        new[TOKENS_KEY] = wanted.draft_tokens
        new.pop(SCHEDULE_KEY, None)
    return new


def _write(name: str, found: _Found, config: Mapping[str, Any]) -> ContainerEdit:
    text = json.dumps(config, separators=(",", ":"))
    if found.variable == KSERVE_VARIABLE:
        return _kserve(name, found.line.with_value(CONFIG, text))
    if found.variable is not None:
        return ContainerEdit(name, env={found.variable: text})
    line = found.line
    if found.flags != (CONFIG,):
        line = line.without(*found.flags)
    return _edit(name, found.line, line.with_value(CONFIG, text))


def _off(name: str, found: _Found) -> ContainerEdit:
    """Leaving speculation out is the only way to be without its draft model and KV."""
    position, tokens = found.line.taken(*found.flags)
    kept = {"position": position, "tokens": list(tokens)}
    line = found.line.without(*found.flags)
    if found.variable == KSERVE_VARIABLE:
        edit_ = _kserve(name, line)
        return ContainerEdit(name, env=edit_.env, removed=kept)
    edit_ = _edit(name, found.line, line)
    return ContainerEdit(name, command=edit_.command, args=edit_.args, removed=kept)


def _on(
    name: str, found: _Found, wanted: WantedSpeculation, able: Capability, removed: Mapping[str, Any]
) -> ContainerEdit:
    tokens = removed.get("tokens")
    if not tokens:
        raise Refusal(
            "NothingToPutBack",
            "the template has no speculative configuration and none was taken out by Crossover.",
            field="spec.template.spec.containers[].args",
            fix="Add --speculative-config for this model to args.",
        )
    line = found.line.inserted(int(removed.get("position", len(found.line.tokens))), [str(token) for token in tokens])
    if found.variable == KSERVE_VARIABLE:
        return _kserve(name, line)
    value = line.value(CONFIG)
    if value is not None and _REFERENCE.match(value) is None:
        config = _changed(_config(value), wanted, able)
        if config != _config(value):
            line = line.with_value(CONFIG, json.dumps(config, separators=(",", ":")))
    return _edit(name, found.line, line)


def _kserve(name: str, line: CommandLine) -> ContainerEdit:
    """The shell reads the variable a second time: every word must be quoted."""
    words = [word for word in line.tokens if word != "vllm"]
    return ContainerEdit(name, env={KSERVE_VARIABLE: shlex.join(words)})


def _edit(name: str, before: CommandLine, after: CommandLine) -> ContainerEdit:
    changed = after.tokens if after.tokens != before.tokens else None
    return ContainerEdit(
        name,
        command=changed if after.field == "command" else None,
        args=changed if after.field == "args" else None,
    )
