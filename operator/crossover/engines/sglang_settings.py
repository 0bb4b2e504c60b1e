"""SGLang: what it accepts. Speculation in a pod template, read, rendered and edited.

An EAGLE chain (top-k 1) can follow a batch schedule from a file read once at start-up (`--speculative-adaptive-config`);
every other algorithm needs a restart with other arguments. "Off" is leaving the speculative arguments out: `NONE` as
an algorithm crashes the server in warm-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from crossover.api.fleet import Capability, EngineType, ScheduleDialect, SpeculationSettings
from crossover.engines.arguments import CommandLine
from crossover.engines.contract import ConfigFile, ContainerEdit, Models, Refusal, Schedule, WantedSpeculation
from crossover.engines.sglang_place import (
    ADAPTIVE,
    ADAPTIVE_CONFIG,
    ALGORITHM,
    CONFIG_FILE,
    DP_ATTENTION,
    DP_SIZE,
    DRAFT_MODEL,
    DRAFT_TOKENS,
    MAX_RUNNING,
    MODEL,
    MULTI_LAYER,
    PDMUX,
    SPECULATIVE,
    STEPS,
    TOP_K,
    TWO_BATCH_OVERLAP,
    Options,
    is_speculative,
    options_of,
    with_file,
)

Version = tuple[int, ...]

KEYED_ADAPTIVE: Version = (0, 5, 13)
"""Integer-string batch-size keys; a flat file fails start-up from here on, and the other way round before."""
ZERO_STEPS: Version = (0, 5, 14)
"""candidate_steps may hold 0."""


SCHEDULE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")
DEFAULT_NGRAM_DRAFT_TOKENS = 12
BLOCK_ALGORITHMS = ("DFLASH", "DSPARK")
"""The draft length is the block that the draft was trained for."""
SCHEDULE_FILE = "/etc/crossover/speculation/adaptive.json"
OPTIONS_FILE = "/etc/crossover/speculation/sglang.yaml"

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


def version_text(version: Version | None) -> str | None:
    return ".".join(str(part) for part in version) if version else None


def schedule_refusal(
    version: Version | None,
    algorithm: str | None,
    *,
    topk: object,
    dp_attention: bool,
    multi_layer: bool,
    two_batch_overlap: bool = False,
    pdmux: bool = False,
) -> str | None:
    """Why this server cannot follow a schedule, in the engine's own rules; None = it can."""
    if algorithm is None:
        return "the server runs without speculation"
    if algorithm.upper() not in SCHEDULE_ALGORITHMS:
        return f"SGLang's adaptive steps support EAGLE and EAGLE3, not {algorithm.upper()}"
    if version is None:
        return "the server has not told its version, and before 0.5.13 batch-size keys in the adaptive file stop it"
    if version < KEYED_ADAPTIVE:
        return f"batch-size keys in the adaptive file need SGLang 0.5.13, this is {version_text(version)}"
    if topk not in (None, 1, "1"):
        return "SGLang's adaptive steps need --speculative-eagle-topk 1"
    if dp_attention:
        return "SGLang's adaptive steps do not work with DP attention"
    if multi_layer:
        return "SGLang's adaptive steps do not work with multi-layer EAGLE"
    if two_batch_overlap:
        return "SGLang's adaptive steps do not work with two-batch overlap"
    if pdmux:
        return "SGLang's adaptive steps do not work with PD multiplexing"
    return None


def capability_of_container(container: Mapping[str, Any], files: Mapping[str, str]) -> Capability | None:
    """From the pod spec alone, before the server has said anything: the version is unknown, so no schedule is promised."""
    try:
        options = options_of(container, files).all
    except Refusal:
        return None
    algorithm = options.value(ALGORITHM)
    tokens = options.value(DRAFT_TOKENS)
    refusal = schedule_refusal(
        None,
        algorithm,
        topk=options.value(TOP_K),
        dp_attention=options.has(DP_ATTENTION),
        multi_layer=options.has(MULTI_LAYER),
        two_batch_overlap=options.has(TWO_BATCH_OVERLAP),
        pdmux=options.has(PDMUX),
    )
    own_file = options.has(ADAPTIVE_CONFIG)
    return Capability(
        EngineType.SGLANG,
        None,
        algorithm.upper() if algorithm else None,
        max_draft_tokens=int(tokens) - 1 if tokens and tokens.isdigit() else None,
        schedule_refusal=refusal,
        follows_schedule=options.has(ADAPTIVE) and own_file,
        adapts_by_itself=options.has(ADAPTIVE) and not own_file,
        max_running_requests=_limit(options),
    )


def _limit(options: CommandLine) -> int | None:
    """Per scheduler. The value is shared out over attention-DP ranks; plain data-parallel replicas get it whole. Left out with
    an algorithm it becomes 48, unless a model's own default comes first: unknown."""
    limit, ranks = options.value(MAX_RUNNING), options.value(DP_SIZE)
    if limit is None or not limit.isdigit():
        return None
    shared = int(ranks) if options.has(DP_ATTENTION) and ranks and ranks.isdigit() else 1
    return max(1, int(limit) // max(1, shared))


# -- reading -----------------------------------------------------------------------------------------------------------


def read(container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
    options = options_of(container, files).all
    algorithm = options.value(ALGORITHM)
    if algorithm is None:
        return SpeculationSettings(EngineType.SGLANG, enabled=False)
    return SpeculationSettings(
        EngineType.SGLANG,
        enabled=True,
        algorithm=algorithm.upper(),
        draft_tokens=_draft_tokens(options, algorithm),
        schedule=_schedule(options, files),
    )


def models(container: Mapping[str, Any], files: Mapping[str, str]) -> Models:
    try:
        options = options_of(container, files).all
    except Refusal:
        return Models()
    return Models(options.value(MODEL), options.value(DRAFT_MODEL))


def _draft_tokens(options: CommandLine, algorithm: str) -> int | None:
    """K asked for: verified tokens less one; steps for a chain without them."""
    tokens, steps = options.value(DRAFT_TOKENS), options.value(STEPS)
    if options.value(TOP_K) in (None, "1") and steps and steps.isdigit():
        return int(steps)
    if tokens and tokens.isdigit():
        return int(tokens) - 1
    return DEFAULT_NGRAM_DRAFT_TOKENS - 1 if algorithm.upper() == "NGRAM" else None


def _schedule(options: CommandLine, files: Mapping[str, str]) -> Schedule:
    """The schedule in force, where it has one fixed length per batch size; () when the file lists several."""
    path = options.value(ADAPTIVE_CONFIG)
    if not options.has(ADAPTIVE) or path is None or path not in files:
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
        if not isinstance(steps, list) or len(steps) != 1 or not isinstance(steps[0], int):
            return ()
        entries.append((int(key), steps[0]))
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
    if all(draft == 0 for _, draft in schedule):
        raise Refusal(
            "InvalidSchedule",
            "a schedule of 0 at every batch keeps the draft model for nothing.",
            field="schedule",
            fix="Leave speculation out instead.",
        )
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
    options = options_of(container, files)
    name, line = str(container["name"]), options.line
    if not wanted.enabled:
        return _off(name, options)
    on = options if options.all.has(ALGORITHM) else _put_back(options, files, removed)
    if wanted.schedule:
        if _schedule(on.all, files) == wanted.schedule:
            return _edit(name, line, on.line)
        file = render(wanted.schedule, capability)
        union = sorted({draft for _, draft in wanted.schedule})
        steps = on.all.value(STEPS)
        if steps is None or not steps.isdigit() or int(steps) not in union:
            on = _with_steps(on, union[-1])
        on = on.put(ADAPTIVE, None).put(ADAPTIVE_CONFIG, file.mount_path)
        new_file = None if files.get(file.mount_path) == file.content else file
        return _edit(name, line, on.line, file=new_file)
    if wanted.draft_tokens is not None:
        on = _with_draft_tokens(_without_schedule(on), wanted.draft_tokens)
    return _edit(name, line, on.line)


def _off(name: str, options: Options) -> ContainerEdit:
    """No speculative argument is left, on the command line or in the file (then a copy of it takes its place)."""
    line = options.line
    if not options.all.has(ALGORITHM):
        return ContainerEdit(name)
    position, tokens = line.taken(*SPECULATIVE)
    kept: dict[str, Any] = {"position": position, "tokens": list(tokens)}
    after = line.without(*SPECULATIVE) if tokens else line
    if not options.speculates_in_file:
        return _edit(name, line, after, removed=kept)
    rest = {key: value for key, value in options.document.items() if not is_speculative(f"--{key}")}
    file = ConfigFile("sglang.yaml", yaml.safe_dump(rest, sort_keys=False), OPTIONS_FILE)
    after = after.with_value(CONFIG_FILE, OPTIONS_FILE)
    return _edit(name, line, after, file=file, removed={**kept, "path": options.path})


def _without_schedule(options: Options) -> Options:
    line = options.line
    if line.has(ADAPTIVE) or line.has(ADAPTIVE_CONFIG):
        options = replace(options, line=line.without(ADAPTIVE, ADAPTIVE_CONFIG))
    if options.all.has(ADAPTIVE):
        raise Refusal(
            "ConfigFile",
            "the --config file asks for adaptive steps, and no argument takes that back.",
            field="spec.template.spec.containers[].args",
            fix="Move the speculative options from the file into args.",
        )
    return options


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


def _put_back(options: Options, files: Mapping[str, str], removed: Mapping[str, Any]) -> Options:
    tokens, path = removed.get("tokens"), removed.get("path")
    if not tokens and path is None:
        raise Refusal(
            "NothingToPutBack",
            "the template has no speculative arguments and none were taken out by Crossover.",
            field="spec.template.spec.containers[].args",
            fix="Add the --speculative-* options for this model to args.",
        )
    line = options.line
    if path is not None:
        line = line.with_value(CONFIG_FILE, str(path))
    if tokens:
        line = line.inserted(int(removed.get("position", len(line.words))), [str(token) for token in tokens])
    return Options(line) if path is None else with_file(line, str(path), files)


def _with_steps(options: Options, steps: int) -> Options:
    """Steps of a chain: draft tokens must be steps + 1, and top-k must be given when anything else is."""
    options = options.put(STEPS, str(steps)).put(DRAFT_TOKENS, str(steps + 1))
    return options if options.all.has(TOP_K) else options.put(TOP_K, "1")


def _with_draft_tokens(options: Options, draft_tokens: int) -> Options:
    """Another fixed length. Nothing changes where it is in force already."""
    algorithm = (options.all.value(ALGORITHM) or "").upper()
    if _draft_tokens(options.all, algorithm) == draft_tokens:
        return options
    if draft_tokens < 1:
        raise Refusal(
            "InvalidDraftLength",
            "a draft has at least one token.",
            field="spec.speculation.maxDraftTokens",
            fix="Switch speculation off instead.",
        )
    if algorithm in BLOCK_ALGORITHMS:
        raise Refusal(
            "BlockDraft",
            f"the draft length of {algorithm} is the block that its draft was trained for.",
            field="spec.template.spec.containers[].args",
            fix="Leave spec.speculation.maxDraftTokens out.",
        )
    if algorithm in SCHEDULE_ALGORITHMS or algorithm == "STANDALONE":
        if options.all.value(TOP_K) not in (None, "1"):
            raise Refusal(
                "TreeDraft",
                "the draft is a tree (top-k above 1): its length and width cannot be changed separately.",
                field="spec.template.spec.containers[].args",
                fix="Leave spec.speculation.maxDraftTokens out, or use --speculative-eagle-topk 1.",
            )
        return _with_steps(options, draft_tokens)
    return options.put(DRAFT_TOKENS, str(draft_tokens + 1))
