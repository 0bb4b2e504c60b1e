"""SGLang: where a container keeps its options: the command line in any form, over the YAML of `--config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crossover.engines.arguments import CommandLine, Flag, parse, with_prefixes
from crossover.engines.contract import Refusal
from crossover.engines.values import yaml_object

STEM = "--speculative-"

_VALUES = (
    "algorithm",
    "num-steps",
    "eagle-topk",
    "num-draft-tokens",
    "adaptive-config",
    "draft-model-revision",
    "draft-model-quantization",
    "draft-load-format",
    "dflash-block-size",
    "dspark-block-size",
    "dspark-sps-table-path",
    "dspark-confidence-sts-path",
    "ngram-min-bfs-breadth",
    "ngram-max-bfs-breadth",
    "ngram-match-type",
    "ngram-max-trie-depth",
    "ngram-capacity",
    "ngram-external-corpus-path",
    "ngram-external-sam-budget",
    "ngram-external-corpus-max-tokens",
    "accept-threshold-single",
    "accept-threshold-acc",
    "attention-mode",
    "draft-attention-backend",
    "draft-kv-cache-dtype",
    "draft-window-size",
    "token-map",
)

_SWITCHES = ("adaptive", "use-rejection-sampling", "use-block-verification")

_OTHERS = (
    "dspark-align-verify-tokens-to-graph-tier",
    "dsa-topk-backend",
    "moe-runner-backend",
    "moe-a2a-backend",
    "enable-w4a4-mxfp4-megamoe",
    "domino-candidate-pool-size",
    "boundary-reduction",
    "draft-sink-size",
)
"""Options that are left where they stand: without an algorithm they are silently ignored."""

DRAFT_MODEL = Flag((STEM + "draft-model-path", STEM + "draft-model"))
SPECULATIVE = (
    *with_prefixes(
        [
            *(Flag((STEM + name,)) for name in _VALUES),
            *(Flag((STEM + name,), takes_value=False) for name in _SWITCHES),
            DRAFT_MODEL,
        ],
        STEM,
        [STEM + name for name in _OTHERS],
    ),
    Flag(("--enable-multi-layer-eagle",), takes_value=False),
)
"""Everything that is left out to start without speculation, in every abbreviation that argparse takes."""

_BY_NAME = {flag.names[0]: flag for flag in SPECULATIVE}

ALGORITHM, STEPS = _BY_NAME[STEM + "algorithm"], _BY_NAME[STEM + "num-steps"]

TOP_K, DRAFT_TOKENS = _BY_NAME[STEM + "eagle-topk"], _BY_NAME[STEM + "num-draft-tokens"]

ADAPTIVE, ADAPTIVE_CONFIG = _BY_NAME[STEM + "adaptive"], _BY_NAME[STEM + "adaptive-config"]

MULTI_LAYER = _BY_NAME["--enable-multi-layer-eagle"]

DP_ATTENTION = Flag(("--enable-dp-attention",), takes_value=False)

TWO_BATCH_OVERLAP = Flag(("--enable-two-batch-overlap",), takes_value=False)

PDMUX = Flag(("--enable-pdmux",), takes_value=False)

MODEL = Flag(("--model-path", "--model"))
CONFIG_FILE = Flag(("--config",))

MAX_RUNNING = Flag(("--max-running-requests",))

DP_SIZE = Flag(("--dp-size", "--data-parallel-size", "--dp"))


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, and the YAML of `--config` under it: keys are option names, the command line wins."""

    line: CommandLine
    file: tuple[str, ...] = ()
    """The YAML as words."""
    path: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all(self) -> CommandLine:
        return CommandLine("args", (*self.file, *self.line.words))

    @property
    def speculates_in_file(self) -> bool:
        return CommandLine("args", self.file).has(ALGORITHM)

    def put(self, flag: Flag, value: str | None) -> Options:
        """The option set on the command line, unless it is in force already."""
        if self.all.value(flag) == ("" if value is None else value):
            return self
        return replace(self, line=self.line.with_value(flag, value))


def options_of(container: Mapping[str, Any], files: Mapping[str, str]) -> Options:
    line = parse(container)
    path = line.value(CONFIG_FILE)
    options = Options(line) if path is None else with_file(line, path, files)
    if (options.all.value(ALGORITHM) or "").upper() == "NONE":
        raise Refusal(
            "AlgorithmNone",
            "--speculative-algorithm NONE is no off switch: the server crashes in warm-up.",
            field="spec.template.spec.containers[].args",
            fix="Leave the option out.",
        )
    return options


def with_file(line: CommandLine, path: str, files: Mapping[str, str]) -> Options:
    if path not in files:
        raise Refusal(
            "ConfigFile",
            "the server reads its options from a --config file, so the speculation settings may stand there.",
            field="spec.template.spec.containers[].args",
            fix="Mount it from a ConfigMap in this namespace.",
        )
    document = yaml_object(files[path])
    if document is None:
        raise Refusal(
            "InvalidConfig",
            f"{path} is no YAML object: the server would not start with it.",
            field="spec.template.spec.containers[].args",
            fix="Correct the ConfigMap.",
        )
    words = [
        word
        for key, value in document.items()
        if value is not None and value is not False
        for word in ([f"--{key}"] if value is True else [f"--{key}={value}"])
    ]
    return Options(line, tuple(words), path, document)


def is_speculative(option: str) -> bool:
    return any(CommandLine("args", (f"{option}=x",)).has(flag) for flag in SPECULATIVE)
