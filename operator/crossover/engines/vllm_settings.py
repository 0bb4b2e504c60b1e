"""vLLM: what it accepts. The speculative configuration read, rendered and edited; where it stands is `vllm_place`'s.

From 0.24.0 the engine follows a batch schedule, `num_speculative_tokens_per_batch_size`, read once at start-up and validated only
after the weights are loaded: what it would refuse then is refused here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import CommandLine, Flag, positional
from crossover.engines.contract import ConfigFile, ContainerEdit, Models, Refusal, Schedule, WantedSpeculation
from crossover.engines.vllm_place import (
    CONFIG,
    CONFIG_FILE,
    FILE_KEYS,
    KSERVE_VARIABLE,
    TOKENS_KEY,
    Found,
    find,
)

Version = tuple[int, ...]

SYNTHETIC_SINCE: Version = (0, 21)
"""Merged in April 2026, after 0.20.0 was cut."""
SCHEDULE_SINCE: Version = (0, 24)
DP_GUARD_SINCE: Version = (0, 27)
"""Seen there and not in 0.25.1; 0.26 is treated as without it."""
V2_RUNNER_SINCE: Version = (0, 25)
DISABLE_BY_BATCH, DISABLE_BY_BATCH_FATAL = "disable_by_batch_size", (0, 17)
V0_ENDS: Version = (0, 10)
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
FILE = "/etc/crossover/speculation/vllm.yaml"
SCHEDULE_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Others drop the schedule with a warning (V1 runner) or run only there."""
SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"

DATA_PARALLEL = Flag(("--data-parallel-size", "-dp"))
MODEL = Flag(("--model",))
MAX_SEQS = Flag(("--max-num-seqs",))
MAX_ACTIVE = Flag(("--max-num-active-seqs",))

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


def _text(version: Version | None) -> str | None:
    return ".".join(str(part) for part in version) if version else None


# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    found = find(container, files)
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


def _method(config: Mapping[str, Any]) -> str | None:
    """The method, inferred from the draft's name where vLLM infers it."""
    method = config.get("method")
    if isinstance(method, str):
        return "mtp" if method.lower().endswith("_mtp") else method.lower()
    model = str(config.get("model", "")).lower()
    for name in ("eagle3", "eagle-", "dflash", "dspark"):
        if name in model:
            return name.rstrip("-")
    return "draft_model" if model else None


def _schedule(config: Mapping[str, Any]) -> Schedule:
    """Ranges [start, end, K], inclusive; gaps and the tail carry the previous K on; a K above the maximum is the maximum."""
    ranges, most = config.get(SCHEDULE_KEY), config.get(TOKENS_KEY)
    if not isinstance(ranges, list):
        return ()
    try:
        rows = [(int(start), int(draft)) for start, _, draft in ranges]
        return tuple((start, min(draft, most) if isinstance(most, int) else draft) for start, draft in rows)
    except (TypeError, ValueError):
        return ()


# -- what this server can do -------------------------------------------------------------------------------------------


def capability(
    version_text: object, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
) -> Capability | None:
    """The version from the server, all else from the pod's arguments: no endpoint tells the configuration."""
    version = version_of(version_text)
    if container is None and version is None:
        return None
    found = None
    refusal: str | None = "the pod template is not known"
    if container is not None:
        try:
            found = find(container, files or {})
            refusal = _schedule_refusal(version, found, _variable(container, RUNNER_VARIABLE))
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
        adapts_by_itself=_adapts_by_itself(version, config),
        zero_is_safe=True,
        max_running_requests=_limit(found) if found is not None else None,
        schedule=_schedule(config) if config else (),
    )


def _adapts_by_itself(version: Version | None, config: Mapping[str, Any] | None) -> bool:
    """Adaptive verification; the threshold of V0. From 0.10 to 0.16 that key was read by nothing."""
    if not config:
        return False
    old = version is not None and version < V0_ENDS and DISABLE_BY_BATCH in config
    return bool(config.get("enable_adaptive_verification")) or old


def _limit(found: Found) -> int | None:
    """--max-num-seqs and --max-num-active-seqs; the default depends on the GPU, so it stays unknown."""
    values = [found.option(flag) for flag in (MAX_SEQS, MAX_ACTIVE)]
    numbers = [int(value) for value in values if value is not None and value.isdigit()]
    return min(numbers) if numbers else None


def _variable(container: Mapping[str, Any], name: str) -> str | None:
    return next((str(i["value"]) for i in container.get("env") or () if i["name"] == name and "value" in i), None)


def _schedule_refusal(version: Version | None, found: Found, runner: str | None) -> str | None:
    """Why this server cannot follow a schedule, in its own rules; None = it can."""
    if found.config is None:
        return "the server runs without speculation"
    if version is None:
        return "the server has not told its version"
    if version < SCHEDULE_SINCE:
        return f"{SCHEDULE_KEY} needs vLLM 0.24.0, this is {_text(version)}"
    if version < V2_RUNNER_SINCE and runner != "0":
        return f"in vLLM {_text(version)} the V2 model runner, on for some models, has no schedule: set {RUNNER_VARIABLE}=0"
    if DISABLE_BY_BATCH in found.config:
        return f"{DISABLE_BY_BATCH} was removed in 0.17.0 and stops the server at start: take it out"
    if found.config.get("enable_adaptive_verification"):
        return "adaptive verification chooses the draft length by itself"
    ranks = found.option(DATA_PARALLEL)
    if ranks is not None and ranks.isdigit() and int(ranks) > 1:
        if version < DP_GUARD_SINCE:
            return f"with data_parallel_size {ranks} vLLM {_text(version)} may deadlock: ranks choose different lengths"
        return f"vLLM drops the schedule with a warning when data_parallel_size is {ranks}"
    method = _method(found.config)
    if method not in SCHEDULE_METHODS:
        return f"vLLM drops the schedule for method {method}"
    return None


def models(container: Mapping[str, Any], files: Mapping[str, str]) -> Models:
    try:
        found = find(container, files)
    except Refusal:
        return Models()
    draft = (found.config or {}).get("model")
    model = found.option(MODEL) or positional(found.line.words, "serve")
    return Models(model, draft if isinstance(draft, str) else None)


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
    if not any(draft for _, draft in schedule):
        raise Refusal(
            "InvalidSchedule",
            "num_speculative_tokens must be greater than 0.",
            field="schedule",
            fix="Leave speculation out instead of scheduling 0 everywhere.",
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
    found = find(container, files)
    name = str(container["name"])
    if not wanted.enabled:
        return ContainerEdit(name) if found.config is None else _off(name, found)
    if found.config is None:
        return _on(container, files, found, wanted, able, removed)
    config = _forced(_changed(found.config, wanted, able), wanted, able)
    return ContainerEdit(name) if config == found.config else _write(name, found, config)


def _changed(config: Mapping[str, Any], wanted: WantedSpeculation, able: Capability) -> dict[str, Any]:
    new = dict(config)
    if wanted.schedule:
        if _schedule(config) == wanted.schedule:
            return new
        new[SCHEDULE_KEY] = _ranges(wanted.schedule, able)
        new[TOKENS_KEY] = max(draft for _, draft in wanted.schedule)
    elif wanted.draft_tokens is not None:
        if wanted.draft_tokens < 1:
            raise Refusal(
                "InvalidDraftLength",
                "num_speculative_tokens must be greater than 0.",
                field="spec.speculation.maxDraftTokens",
                fix="Switch speculation off instead.",
            )
        new[TOKENS_KEY] = wanted.draft_tokens
        new.pop(SCHEDULE_KEY, None)
    return new


def _forced(config: dict[str, Any], wanted: WantedSpeculation, able: Capability) -> dict[str, Any]:
    """Synthetic rejection sampling (vLLM PR 40662): of length L it accepts floor(L) - 1 tokens and one more with what is
    left of L."""
    if wanted.forced_acceptance_length is None:
        return config
    version = version_of(able.version)
    if version is not None and version < SYNTHETIC_SINCE:
        raise Refusal(
            "ForcedAcceptanceUnsupported",
            f"synthetic_acceptance_length needs vLLM 0.21.0, this is {_text(version)}, which would not start with it.",
            field="spec.forcedAcceptance",
            fix="Leave it out, or update the server.",
        )
    others = {key: value for key, value in config.items() if key != "synthetic_acceptance_rates"}
    return {
        **others,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": wanted.forced_acceptance_length,
    }


def _write(name: str, found: Found, config: Mapping[str, Any]) -> ContainerEdit:
    """Into the place where it stands, and nothing else."""
    text = json.dumps(config, separators=(",", ":"))
    if found.variable == KSERVE_VARIABLE:
        return _kserve(name, found.line.with_value(CONFIG, text))
    if found.variable is not None and found.flags == (CONFIG,):
        return ContainerEdit(name, env={found.variable: text})
    if not found.flags:
        return _write_file(name, found, config)
    line = found.line
    if found.keys is not None and set(config) == set(found.keys):
        for key, flag in found.keys.items():
            if config[key] != (found.config or {})[key]:
                line = line.with_value(flag, str(config[key]))
        return _edit(name, found.line, line)
    if line.shell_index is not None:
        raise Refusal(
            "ShellCommand",
            "a shell string cannot carry JSON safely.",
            field=f"spec.template.spec.containers[].{line.field}[{line.shell_index}]",
            fix="Write the command as a list (command: [...], args: [...]).",
        )
    if found.flags != (CONFIG,):
        line = line.without(*found.flags)
    return _edit(name, found.line, line.with_value(CONFIG, text))


def _write_file(name: str, found: Found, config: Mapping[str, Any] | None, **more: Any) -> ContainerEdit:
    """A copy of the YAML in a ConfigMap of ours: the user's own is not ours to write. Comments are not carried over."""
    document: dict[str, Any] = {}
    for key, value in found.document.items():
        if key not in FILE_KEYS:
            document[key] = value
        elif config is not None:
            document[key] = json.dumps(config) if isinstance(value, str) else dict(config)
    line = found.line.without(*found.flags) if found.flags else found.line
    made = _edit(name, found.line, line.with_value(CONFIG_FILE, FILE))
    file = ConfigFile("vllm.yaml", yaml.safe_dump(document, sort_keys=False), FILE)
    return ContainerEdit(name, command=made.command, args=made.args, file=file, **more)


def _off(name: str, found: Found) -> ContainerEdit:
    """Leaving speculation out is the only way to be without its draft model and KV."""
    if found.hidden is not None:
        raise found.hidden
    position, tokens = found.line.taken(*found.flags)
    kept: dict[str, Any] = {"position": position, "tokens": list(tokens)}
    if found.path is not None:
        return _write_file(name, found, None, removed={**kept, "path": found.path})
    line = found.line.without(*found.flags)
    if found.variable == KSERVE_VARIABLE:
        return ContainerEdit(name, env=_kserve(name, line).env, removed=kept)
    made = _edit(name, found.line, line)
    return ContainerEdit(name, command=made.command, args=made.args, removed=kept)


def _on(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    found: Found,
    wanted: WantedSpeculation,
    able: Capability,
    removed: Mapping[str, Any],
) -> ContainerEdit:
    """What was taken out is put back where it stood, and then changed to what is wanted."""
    name = str(container["name"])
    tokens, path = removed.get("tokens"), removed.get("path")
    if not tokens and path is None:
        raise Refusal(
            "NothingToPutBack",
            "the template has no speculative configuration and none was taken out by Crossover.",
            field="spec.template.spec.containers[].args",
            fix="Add --speculative-config for this model to args.",
        )
    line = found.line
    if path is not None:
        line = line.with_value(CONFIG_FILE, str(path))
    if tokens:
        line = line.inserted(int(removed.get("position", len(line.tokens))), [str(token) for token in tokens])
    back = _kserve(name, line) if found.variable == KSERVE_VARIABLE else _edit(name, found.line, line)
    after = edit(_applied(container, back), files, wanted, able, {})
    return ContainerEdit(
        name,
        command=after.command or back.command,
        args=after.args or back.args,
        env={**back.env, **after.env},
        file=after.file,
    )


def _applied(container: Mapping[str, Any], change: ContainerEdit) -> dict[str, Any]:
    """The container as it will be."""
    new = dict(container)
    for key, value in (("command", change.command), ("args", change.args)):
        if value is not None:
            new[key] = list(value)
    if change.env:
        kept = [item for item in container.get("env") or () if item["name"] not in change.env]
        new["env"] = kept + [{"name": key, "value": value} for key, value in change.env.items()]
    return new


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
