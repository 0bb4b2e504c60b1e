"""vLLM: where a container keeps its speculative configuration, and what stands there.

One dictionary, written in many ways: `--speculative-config JSON` (pair, `=`, `-sc`, underscores), dotted keys, the `--spec-*`
short forms, a key of the `--config` YAML, an environment variable that `$(NAME)` refers to or that a shell pastes in (KServe).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crossover.engines.arguments import CommandLine, Flag, parse
from crossover.engines.contract import Refusal
from crossover.engines.values import yaml_object

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
FILE_KEYS = ("speculative-config", "speculative_config")

_REFERENCE = re.compile(r"^\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)$")


@dataclass(frozen=True, slots=True)
class Found:
    """The speculative configuration and where it stands. ``config`` None = started without speculation."""

    config: dict[str, Any] | None
    line: CommandLine
    variable: str | None = None
    """Environment variable that holds it (whole for ``$(NAME)``, as one word of it for KServe)."""
    flags: tuple[Flag, ...] = ()
    """The flags on the command line that make it up."""
    keys: Mapping[str, Flag] | None = None
    """Key of the configuration -> the flag that holds it, where each has its own."""
    path: str | None = None
    """The `--config` file, where it holds a configuration too (the command line wins)."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """All of the `--config` file."""
    hidden: Refusal | None = None
    """The `--config` file cannot be read; the command line wins over what stands in it."""

    def option(self, flag: Flag) -> str | None:
        """An option from the command line, else from the file."""
        value = self.line.value(flag)
        if value is not None:
            return value
        name = flag.names[0].removeprefix("--")
        told = self.document.get(name, self.document.get(name.replace("-", "_")))
        return None if told is None else str(told)


def find(container: Mapping[str, Any], files: Mapping[str, str]) -> Found:
    """Raises Refusal for a form that cannot be read safely."""
    line = parse(container)
    if line.shell_index is not None:
        kserve = _kserve(container, line)
        if kserve is not None:
            return kserve
        line.without(CONFIG)  # refuses scripts that cannot be edited
    value = line.value(CONFIG)
    dotted = list(dict.fromkeys(word.partition("=")[0] for word in line.words if word.startswith(DOTTED)))
    short = {key: flag for key, flag in SHORT.items() if line.has(flag)}
    if value is not None:
        found = _with_short(_in_flag(container, line, value), dotted, short)
    elif dotted or short:
        keys = {name.removeprefix(DOTTED).replace("-", "_"): Flag((name,)) for name in dotted} | short
        config = {key: _scalar(line.value(flag)) for key, flag in keys.items()}
        found = Found(config, line, flags=tuple(keys.values()), keys=keys)
    else:
        return _in_file(line, files)
    try:
        file = _in_file(line, files)
    except Refusal as refusal:
        return replace(found, hidden=refusal)
    return replace(found, path=file.path, document=file.document)


def _in_file(line: CommandLine, files: Mapping[str, str]) -> Found:
    """A YAML whose keys are flag names; the command line wins over it."""
    path = line.value(CONFIG_FILE)
    if path is None:
        return Found(None, line)
    if path not in files:
        raise Refusal(
            "ConfigFile",
            "the server reads its options from a --config file, so the speculative configuration may stand there.",
            field="spec.template.spec.containers[].args",
            fix="Mount it from a ConfigMap in this namespace, or write --speculative-config into args.",
        )
    document = yaml_object(files[path])
    if document is None:
        raise _invalid(f"{path} is no YAML object", "Correct the ConfigMap.")
    value = next((document[key] for key in FILE_KEYS if key in document), None)
    if value is None:
        return Found(None, line, document=document)
    config = normal(value) if isinstance(value, dict) else config_of(str(value))
    return Found(config, line, path=path, document=document)


def _with_short(found: Found, dotted: list[str], short: Mapping[str, Flag]) -> Found:
    """`--spec-*` beside the JSON is merged into it; the same key in both stops the server."""
    if dotted:
        raise _invalid("--speculative-config stands beside dotted keys of it", "Write it in one of the two forms.")
    if not short:
        return found
    config = dict(found.config or {})
    for key, flag in short.items():
        if key in config:
            raise _invalid(f"{key} stands both in --speculative-config and as {flag.names[0]}", "Take one out.")
        config[key] = _scalar(found.line.value(flag))
    return Found(config, found.line, found.variable, (*found.flags, *short.values()))


def _in_flag(container: Mapping[str, Any], line: CommandLine, value: str) -> Found:
    reference = _REFERENCE.match(value)
    if reference is None:
        return Found(config_of(value), line, flags=(CONFIG,))
    name = reference[1]
    variable = next((item for item in container.get("env") or () if item["name"] == name), None)
    if variable is None or "value" not in variable:
        raise Refusal(
            "VariableNotReadable",
            f"the speculative configuration comes from the variable {name}, whose value stands somewhere else.",
            field=f"spec.template.spec.containers[].env[{name}]",
            fix="Give the variable a plain value in the pod template.",
        )
    return Found(config_of(variable["value"]), line, variable=name, flags=(CONFIG,))


def _kserve(container: Mapping[str, Any], line: CommandLine) -> Found | None:
    """KServe's script pastes a variable in, and that can be edited; None = another script."""
    assert line.shell_index is not None
    script = line.tokens[line.shell_index]
    if f"${{{KSERVE_VARIABLE}}}" not in script and f"${KSERVE_VARIABLE}" not in script:
        return None
    words = [str(word) for word in container.get("args") or ()]
    if any(word.partition("=")[0] in CONFIG.names for word in words):
        raise Refusal(
            "KServeQuoting",
            "the script reads args a second time as shell words, which takes the quotes out of the JSON.",
            field="spec.template.spec.containers[].args",
            fix=f"Move --speculative-config into the variable {KSERVE_VARIABLE}, the JSON in single quotes.",
        )
    text = next((i.get("value", "") for i in container.get("env") or () if i["name"] == KSERVE_VARIABLE), "")
    inner = parse({"name": "", "args": shlex.split(text) or ["vllm"]})
    value = inner.value(CONFIG)
    config = config_of(value) if value is not None else None
    return Found(config, inner, variable=KSERVE_VARIABLE, flags=(CONFIG,))


def is_reference(text: str) -> bool:
    """Whether a value is ``$(NAME)``."""
    return _REFERENCE.match(text) is not None


def config_of(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _invalid(
            "--speculative-config is no JSON object", 'Write it as {"method": "eagle3", "num_speculative_tokens": 3}.'
        )
    return normal(value)


def normal(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dashes in keys are underscores."""
    return {str(key).replace("-", "_"): item for key, item in config.items()}


def _invalid(message: str, fix: str) -> Refusal:
    return Refusal(
        "InvalidConfig",
        f"{message}: the server would not start with it.",
        field="spec.template.spec.containers[].args",
        fix=fix,
    )


def _scalar(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return text
