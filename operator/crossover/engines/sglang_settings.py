"""SGLang: what it accepts. Speculation in a pod template, read, rendered and edited.

An EAGLE chain (top-k 1) can follow a batch schedule from a file read once at start-up (`--speculative-adaptive-config`);
every other algorithm needs a restart with other arguments. "Off" is leaving the speculative arguments out: `NONE` as
an algorithm crashes the server in warm-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import CommandLine, Flag, parse
from crossover.engines.contract import ConfigFile, ContainerEdit, Refusal, Schedule, WantedSpeculation

Version = tuple[int, ...]

KEYED_ADAPTIVE: Version = (0, 5, 13)
"""Integer-string batch-size keys; a flat file fails start-up from here on, and the other way round before."""
ZERO_STEPS: Version = (0, 5, 14)
"""candidate_steps may hold 0."""

ALGORITHM = Flag(("--speculative-algorithm", "--speculative-algorit", "--speculative-algo", "--speculative-alg"))
STEPS = Flag(("--speculative-num-steps",))
TOP_K = Flag(("--speculative-eagle-topk",))
DRAFT_TOKENS = Flag(("--speculative-num-draft-tokens",))
ADAPTIVE = Flag(("--speculative-adaptive",), takes_value=False)
ADAPTIVE_CONFIG = Flag(("--speculative-adaptive-config",))
DP_ATTENTION = Flag(("--enable-dp-attention",), takes_value=False)
MULTI_LAYER = Flag(("--enable-multi-layer-eagle",), takes_value=False)
CONFIG_FILE = Flag(("--config",))
MAX_RUNNING = Flag(("--max-running-requests",))

SPECULATIVE = (
    ALGORITHM,
    Flag(("--speculative-draft-model-path", "--speculative-draft-model")),
    Flag(("--speculative-draft-model-revision",)),
    Flag(("--speculative-draft-model-quantization",)),
    Flag(("--speculative-draft-load-format",)),
    STEPS,
    TOP_K,
    DRAFT_TOKENS,
    ADAPTIVE,
    ADAPTIVE_CONFIG,
    Flag(("--speculative-dflash-block-size",)),
    Flag(("--speculative-dspark-block-size",)),
    Flag(("--speculative-dspark-sps-table-path",)),
    Flag(("--speculative-dspark-confidence-sts-path",)),
    *(
        Flag((f"--speculative-ngram-{name}",))
        for name in (
            "min-bfs-breadth",
            "max-bfs-breadth",
            "match-type",
            "max-trie-depth",
            "capacity",
            "external-corpus-path",
            "external-sam-budget",
            "external-corpus-max-tokens",
        )
    ),
    Flag(("--speculative-accept-threshold-single",)),
    Flag(("--speculative-accept-threshold-acc",)),
    Flag(("--speculative-use-rejection-sampling",), takes_value=False),
    Flag(("--speculative-use-block-verification",), takes_value=False),
    Flag(("--speculative-attention-mode",)),
    Flag(("--speculative-draft-attention-backend",)),
    Flag(("--speculative-draft-kv-cache-dtype",)),
    Flag(("--speculative-draft-window-size",)),
    Flag(("--speculative-token-map",)),
    MULTI_LAYER,
)
"""Everything that is left out to start without speculation."""

SCHEDULE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")
DEFAULT_NGRAM_DRAFT_TOKENS = 12
SCHEDULE_FILE = "/etc/crossover/speculation/adaptive.json"

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


def version_text(version: Version | None) -> str | None:
    return ".".join(str(part) for part in version) if version else None


def schedule_refusal(
    version: Version | None, algorithm: str | None, *, topk: object, dp_attention: bool, multi_layer: bool
) -> str | None:
    """Why this server cannot follow a schedule, in the engine's own rules; None = it can."""
    if algorithm is None:
        return "the server runs without speculation"
    if algorithm.upper() not in SCHEDULE_ALGORITHMS:
        return f"SGLang's adaptive steps support EAGLE and EAGLE3, not {algorithm.upper()}"
    if version is not None and version < KEYED_ADAPTIVE:
        return f"batch-size keys in the adaptive file need SGLang 0.5.13, this is {version_text(version)}"
    if topk not in (None, 1, "1"):
        return "SGLang's adaptive steps need --speculative-eagle-topk 1"
    if dp_attention:
        return "SGLang's adaptive steps do not work with DP attention"
    if multi_layer:
        return "SGLang's adaptive steps do not work with multi-layer EAGLE"
    return None


def capability_of_container(container: Mapping[str, Any]) -> Capability | None:
    """From the pod spec alone: the version is unknown, so a schedule is possible only as far as the arguments tell."""
    try:
        line = parse(container)
    except Refusal:
        return None
    algorithm = line.value(ALGORITHM)
    tokens = line.value(DRAFT_TOKENS)
    refusal = schedule_refusal(
        None,
        algorithm,
        topk=line.value(TOP_K),
        dp_attention=line.has(DP_ATTENTION),
        multi_layer=line.has(MULTI_LAYER),
    )
    limit = line.value(MAX_RUNNING)
    own_file = line.has(ADAPTIVE_CONFIG)
    return Capability(
        EngineType.SGLANG,
        None,
        algorithm.upper() if algorithm else None,
        max_draft_tokens=int(tokens) - 1 if tokens and tokens.isdigit() else None,
        schedule_dialect=ScheduleDialect.SGLANG_ADAPTIVE if refusal is None else None,
        schedule_refusal=refusal,
        follows_schedule=line.has(ADAPTIVE) and own_file,
        adapts_by_itself=line.has(ADAPTIVE) and not own_file,
        max_running_requests=int(limit) if limit and limit.isdigit() else None,
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    line = _line(container)
    algorithm = line.value(ALGORITHM)
    if algorithm is None:
        return SpeculationSettings(EngineType.SGLANG, enabled=False)
    return SpeculationSettings(
        EngineType.SGLANG,
        enabled=True,
        algorithm=algorithm.upper(),
        draft_tokens=_draft_tokens(line, algorithm),
        schedule=_schedule(line, files),
    )


def _line(container: Mapping[str, Any]) -> CommandLine:
    line = parse(container)
    config = line.value(CONFIG_FILE)
    if config is not None and not line.has(ALGORITHM):
        raise Refusal(
            "ConfigFile",
            "the server reads its options from a --config file, so the speculation settings may stand there.",
            field="spec.template.spec.containers[].args",
            fix="Write the --speculative-* options into args; the command line wins over the file.",
        )
    return line


def _draft_tokens(line: CommandLine, algorithm: str) -> int | None:
    """K asked for: verified tokens less one; steps for a chain without them."""
    tokens, steps = line.value(DRAFT_TOKENS), line.value(STEPS)
    if line.value(TOP_K) in (None, "1") and steps and steps.isdigit():
        return int(steps)
    if tokens and tokens.isdigit():
        return int(tokens) - 1
    return DEFAULT_NGRAM_DRAFT_TOKENS - 1 if algorithm.upper() == "NGRAM" else None


def _schedule(line: CommandLine, files: Mapping[str, str]) -> Schedule:
    """The schedule in force, where it has one fixed length per batch size; () when the file lists several."""
    path = line.value(ADAPTIVE_CONFIG)
    if not line.has(ADAPTIVE) or path is None or path not in files:
        return ()
    try:
        table = json.loads(files[path])
    except ValueError:
        return ()
    entries = []
    for key, value in table.items() if isinstance(table, dict) else ():
        steps = value.get("candidate_steps") if isinstance(value, dict) else None
        if not str(key).isdigit():
            continue
        if not isinstance(steps, list) or len(steps) != 1:
            return ()
        entries.append((int(key), int(steps[0])))
    return tuple(sorted(entries))


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(schedule: Schedule, capability: Capability) -> ConfigFile:
    """The adaptive file: one fixed length per batch size, so the engine never probes and never oscillates.

    The engine pads the batch up to the next captured CUDA-graph size before it looks up the largest key that is not
    above it: a key acts from the batch after the previous graph size. A key is moved up to the next graph size, so that
    it never acts earlier than asked.
    """
    _check(schedule, capability)
    padded: dict[int, int] = {}
    for from_running, draft in schedule:
        padded[_next_graph_size(from_running, capability.batch_padding)] = draft
    table = {str(key): {"candidate_steps": [draft]} for key, draft in sorted(padded.items())}
    return ConfigFile("adaptive.json", json.dumps(table, indent=2) + "\n", SCHEDULE_FILE)


def _next_graph_size(from_running: int, sizes: Sequence[int]) -> int:
    """The key with which the first affected batch is ``from_running`` or the first one after it.

    With graphs at 80, 88, 96 a key 96 acts from batch 89 (padded to 96). Asked for "from 89", 96 is right; asked for
    "from 92", 104 would be the first key that never acts early.
    """
    if from_running <= 1 or not sizes or from_running > max(sizes):
        return from_running
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        first_padded = ordered[position - 1] + 1 if position else 1
        if first_padded >= from_running:
            return size
    return ordered[-1] + 1


def _check(schedule: Schedule, capability: Capability) -> None:
    """What the engine would refuse after loading the model, refused now."""
    keys = [key for key, _ in schedule]
    if not schedule or keys[0] != 1 or keys != sorted(set(keys)):
        raise Refusal(
            "InvalidSchedule",
            "a schedule starts at 1 running request and its keys ascend.",
            field="schedule",
            fix="Write it as 1:3,32:0.",
        )
    if capability.schedule_dialect is not ScheduleDialect.SGLANG_ADAPTIVE:
        raise Refusal(
            "ScheduleUnsupported",
            f"{capability.schedule_refusal or 'this server cannot follow a schedule'}.",
            field="spec.speculation.lever",
            fix="Use lever Restart or Auto.",
        )
    version = version_of(capability.version)
    zero = any(draft == 0 for _, draft in schedule)
    if zero and version is not None and version < ZERO_STEPS:
        raise Refusal(
            "ZeroUnsupported",
            f"candidate_steps may hold 0 from SGLang 0.5.14 on, this is {capability.version}.",
            field="schedule",
            fix="End the schedule at 1, or update the server.",
        )
    if any(draft < 0 for _, draft in schedule):
        raise Refusal("InvalidSchedule", "a draft length is negative.", field="schedule", fix="Use 0 for off.")


# -- editing -----------------------------------------------------------------------------------------------------------


def edit(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    wanted: WantedSpeculation,
    capability: Capability,
    removed: Mapping[str, Any],
) -> ContainerEdit:
    line = _line(container)
    name = str(container["name"])
    if not wanted.enabled:
        if not line.has(ALGORITHM):
            return ContainerEdit(name)
        position, tokens = line.taken(*SPECULATIVE)
        return _edit(name, line, line.without(*SPECULATIVE), removed={"position": position, "tokens": list(tokens)})
    line_on = line if line.has(ALGORITHM) else _put_back(line, removed)
    if wanted.schedule:
        file = render(wanted.schedule, capability)
        union = sorted({draft for _, draft in wanted.schedule})
        steps = line_on.value(STEPS)
        if steps is None or not steps.isdigit() or int(steps) not in union:
            line_on = _with_steps(line_on, union[-1])
        line_on = line_on.with_value(ADAPTIVE, None).with_value(ADAPTIVE_CONFIG, file.mount_path)
        new_file = None if files.get(file.mount_path) == file.content else file
        return _edit(name, line, line_on, file=new_file)
    if wanted.draft_tokens is not None:
        line_on = _with_draft_tokens(line_on.without(ADAPTIVE, ADAPTIVE_CONFIG), wanted.draft_tokens)
    return _edit(name, line, line_on)


def _edit(
    container: str,
    before: CommandLine,
    after: CommandLine,
    *,
    file: ConfigFile | None = None,
    removed: Mapping[str, Any] | None = None,
) -> ContainerEdit:
    changed = after.tokens if after.tokens != before.tokens else None
    return ContainerEdit(
        container,
        command=changed if after.field == "command" else None,
        args=changed if after.field == "args" else None,
        file=file,
        removed=removed or {},
    )


def _put_back(line: CommandLine, removed: Mapping[str, Any]) -> CommandLine:
    tokens = removed.get("tokens")
    if not tokens:
        raise Refusal(
            "NothingToPutBack",
            "the template has no speculative arguments and none were taken out by Crossover.",
            field="spec.template.spec.containers[].args",
            fix="Add the --speculative-* options for this model to args.",
        )
    return line.inserted(int(removed.get("position", len(line.words))), [str(token) for token in tokens])


def _with_steps(line: CommandLine, steps: int) -> CommandLine:
    """Steps of a chain: draft tokens must be steps + 1, and top-k must be given when anything else is."""
    line = line.with_value(STEPS, str(steps)).with_value(DRAFT_TOKENS, str(steps + 1))
    return line if line.has(TOP_K) else line.with_value(TOP_K, "1")


def _with_draft_tokens(line: CommandLine, draft_tokens: int) -> CommandLine:
    algorithm = (line.value(ALGORITHM) or "").upper()
    if algorithm in SCHEDULE_ALGORITHMS or algorithm == "STANDALONE":
        if line.value(TOP_K) not in (None, "1"):
            raise Refusal(
                "TreeDraft",
                "the draft is a tree (top-k above 1): its length and width cannot be changed separately.",
                field="spec.template.spec.containers[].args",
                fix="Leave spec.speculation.maxDraftTokens out, or use --speculative-eagle-topk 1.",
            )
        return _with_steps(line, draft_tokens)
    return line.with_value(DRAFT_TOKENS, str(draft_tokens + 1))
