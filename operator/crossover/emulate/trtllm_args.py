"""The launch arguments of TensorRT-LLM's servers, their YAML, and what speculation does with it.

trtllm-serve (`--config` or `--extra_llm_api_options`, flags, `--set`), a Dynamo worker (`--extra-engine-args` and overrides),
Triton with the LLM API (model.yaml named by a variable). NIM and classic Triton have no such file: speculation is in profile
or engine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from crossover.emulate.commands import LaunchError, inside, shell_words, words_after
from crossover.emulate.drafts import Drafts, Fixed, Gated, Off, Scheduled, UpTo

SCHEDULE_SINCE = (1, 2)
UPPER_BOUNDS_SINCE = (1, 3)
ALIASES = {
    "speculative_model_dir": "speculative_model",
    "num_nextn_predict_layers": "max_draft_len",
    "acceptance_rate_window_size": "acceptance_window",
}
KEYS = frozenset(
    (
        *("decoding_type", "max_draft_len", "max_total_draft_tokens", "speculative_model", "max_concurrency"),
        *("draft_len_schedule", "acceptance_window", "acceptance_length_threshold", "acceptance_rate_threshold"),
        *("load_format", "use_rejection_sampling", "eagle3_one_model", "eagle3_layers_to_capture", "eagle_choices"),
        *("use_dynamic_tree", "dynamic_tree_max_topK", "max_matching_ngram_size", "is_keep_all", "is_use_oldest"),
        *("is_public_pool", "use_relaxed_acceptance_for_thinking", "relaxed_topk", "relaxed_delta"),
        *("use_mtp_vanilla", "mtp_eagle_one_model", "greedy_sampling", "allow_advanced_sampling"),
    )
)
"""Of speculative_config; any other ends the start."""
TYPES = (
    *("EAGLE3", "EAGLE", "MTP", "MTP_EAGLE", "NGRAM", "DRAFT_TARGET", "PARD", "DFLASH", "DSPARK", "SA", "SAVESTATE"),
    *("USER_PROVIDED", "AUTO"),
)
FREE_TYPES = ("NGRAM", "SA")
ZERO_SAFE = ("EAGLE3", "EAGLE", "MTP_EAGLE", "NGRAM")
"""Where 1.3 keeps the drafter warm (or has none): elsewhere a 0 in the schedule becomes 1."""
AUTO = ((1, 5), (5, 3), (33, 0))
"""The n-gram heuristic: 5 up to 4 requests, 3 up to 32, off above."""
MAX_BATCH, MAX_TOKENS = 2048, 8192


class Form(StrEnum):
    SERVE = "serve"
    DYNAMO = "dynamo"
    NIM = "nim"
    TRITON = "triton"
    TRITON_LLMAPI = "triton-llmapi"


@dataclass
class Launch:
    """Resolved start-up arguments. ``document``: the LLM arguments after every override."""

    form: Form
    args: argparse.Namespace
    version: tuple[int, ...]
    document: dict[str, Any]
    config: dict[str, Any] | None
    publishes: bool
    """Dynamo: engine series are published."""

    def flag(self, name: str) -> bool:
        return bool(self.document.get(name))

    @property
    def kind(self) -> str | None:
        return str(self.config["decoding_type"]).upper() if self.config is not None else None

    @property
    def max_draft(self) -> int:
        return int((self.config or {}).get("max_draft_len", 0))

    @property
    def max_batch(self) -> int:
        return int(self.document.get("max_batch_size") or MAX_BATCH)

    @property
    def max_tokens(self) -> int:
        return int(self.document.get("max_num_tokens") or MAX_TOKENS)

    @property
    def running_limit(self) -> int:
        """Draft tokens take their part of max_num_tokens."""
        return max(1, min(self.max_batch, self.max_tokens // (1 + self.max_draft)))

    @property
    def tensor_parallel(self) -> int:
        return int(self.document.get("tensor_parallel_size") or 1)

    @property
    def ranks(self) -> int:
        """Schedulers: one, or one per rank under attention data parallelism."""
        return self.tensor_parallel if self.flag("enable_attention_dp") else 1

    @property
    def block_tokens(self) -> int:
        default = 64 if self.form is Form.TRITON else 32
        return int((self.document.get("kv_cache_config") or {}).get("tokens_per_block") or default)

    @property
    def reserves_output(self) -> bool:
        policy = (self.document.get("scheduler_config") or {}).get("capacity_scheduler_policy")
        return policy != "MAX_UTILIZATION"

    @property
    def two_model(self) -> bool:
        """A Drafter object exists."""
        config = self.config or {}
        return self.kind in ("NGRAM", "DRAFT_TARGET") or config.get("eagle3_one_model") is False

    def drafts(self) -> Drafts:
        """The control of one scheduler."""
        if self.config is None:
            return Off()
        free = self.kind in (*FREE_TYPES, "AUTO")
        inner = self._inner(free)
        window = self.config.get("acceptance_window")
        if not window:
            return inner
        rate = self.config.get("acceptance_rate_threshold")
        threshold = rate if rate is not None else self.config.get("acceptance_length_threshold", 0.0)
        return Gated(inner, int(window), float(threshold), longest=self.max_draft, by_rate=rate is not None)

    def _inner(self, free: bool) -> Drafts:
        """Before 1.3 only a drafter object follows the batch; one-model Eagle3 and MTP accept a schedule and ignore it."""
        config = self.config or {}
        if self.kind == "AUTO":
            return Scheduled(AUTO, drafts_free=True)
        tree = config.get("max_total_draft_tokens")
        fixed = Fixed(self.max_draft, tree=tree + 1 if tree and tree > self.max_draft else None, drafts_free=free)
        table: dict[int, int] = config.get("draft_len_schedule") or {}
        most = config.get("max_concurrency")
        if self.version < UPPER_BOUNDS_SINCE:
            if not self.two_model:
                return fixed
            if table:
                return Scheduled(sorted(table.items()), drafts_free=free)
            return UpTo([(int(most), self.max_draft)], drafts_free=free) if most else fixed
        if most:
            table = {int(most): self.max_draft}
        if not table:
            return fixed
        floor = 0 if self.kind in ZERO_SAFE else 1
        return UpTo(sorted(table.items()), floor=floor, drafts_free=free)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trtllm-serve", allow_abbrev=False)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--model", "--model_path", dest="model_option")
    parser.add_argument("--served_model_name")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int)
    parser.add_argument("--backend", default="pytorch")
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--tp_size", "--tensor_parallel_size", type=int, dest="tensor_parallel_size")
    parser.add_argument("--config", "--extra_llm_api_options", "--extra_engine_args", dest="config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--override_engine_args")
    parser.add_argument("--publish_metrics", "--publish_events_and_metrics", action="store_true")
    return parser


ENTRY_POINTS = (
    *("trtllm-serve serve", "trtllm-serve", "tensorrt_llm.commands.serve"),
    *("dynamo.trtllm", "tritonserver", "launch_triton_server.py"),
)
FLAGS = ("max_batch_size", "max_num_tokens", "max_seq_len", "tensor_parallel_size")


def parse(
    command: Sequence[str], environ: Mapping[str, str], version: tuple[int, ...], root: Path, form: str = ""
) -> Launch:
    """Raises SystemExit(2) as the argument parser does, or LaunchError for a YAML that the strict classes refuse."""
    made = Form(form) if form else _form(shell_words(command, environ), environ)
    words = [_plain(word) for word in words_after(command, ENTRY_POINTS, environ)]
    args, _ = _parser().parse_known_args(words)
    path = args.config or environ.get("DYN_TRTLLM_EXTRA_ENGINE_ARGS")
    if made is Form.TRITON_LLMAPI:
        path = environ.get("LLM_CONFIG_PATH")
    document = _document(path, root)
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    # The file won over the flags before 1.3.
    document = {**document, **flags} if version >= UPPER_BOUNDS_SINCE else {**flags, **document}
    for assignment in args.set:
        _assign(document, assignment)
    dotted = _dotted(words) if made is Form.DYNAMO else []
    for assignment in dotted:
        _assign(document, assignment)
    override = args.override_engine_args or environ.get("DYN_TRTLLM_OVERRIDE_ENGINE_ARGS")
    if made is Form.DYNAMO and override:
        if dotted:
            raise LaunchError("--trtllm.* and --override-engine-args exclude each other")
        try:
            document = _merged(document, json.loads(override))
        except ValueError:
            raise LaunchError("--override-engine-args: invalid JSON") from None
    publishes = args.publish_metrics or environ.get("DYN_TRTLLM_PUBLISH_METRICS", "").lower() in ("1", "true")
    return Launch(made, args, version, document, _speculation(document, version), publishes)


def _form(words: Sequence[str], environ: Mapping[str, str]) -> Form:
    if "dynamo.trtllm" in words:
        return Form.DYNAMO
    if any(word.endswith(("tritonserver", "launch_triton_server.py")) for word in words):
        return Form.TRITON_LLMAPI if environ.get("LLM_CONFIG_PATH") else Form.TRITON
    if any(name.startswith("NIM_") for name in environ):
        return Form.NIM
    return Form.SERVE


def _plain(word: str) -> str:
    """`--max-batch-size` is `--max_batch_size`."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return "--" + flag.removeprefix("--").replace("-", "_") + equals + value


def _document(path: str | None, root: Path) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = yaml.safe_load(inside(root, path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise LaunchError(f"{type(error).__name__}: {path}") from None
    if not isinstance(document, dict | None):
        raise LaunchError(f"{path} is no mapping")
    return document or {}


def _dotted(words: Sequence[str]) -> list[str]:
    """Dynamo's `--trtllm.a.b VALUE` as assignments; none is null."""
    found = []
    for place, word in enumerate(words):
        if not word.startswith("--trtllm."):
            continue
        path, equals, value = word.removeprefix("--trtllm.").partition("=")
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else ""
        found.append(f"{path}={'null' if value.lower() == 'none' else value}")
    return found


def _assign(document: dict[str, Any], assignment: str) -> None:
    """`--set a.b=VALUE`; null removes a mapping."""
    path, _, value = assignment.partition("=")
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node[name] = dict(node.get(name) or {})
        node = node[name]
    node[last] = yaml.safe_load(value)


def _merged(document: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Deep; null removes."""
    merged = dict(document)
    for key, value in override.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def _speculation(document: Mapping[str, Any], version: tuple[int, ...]) -> dict[str, Any] | None:
    """Checked as the strict classes do."""
    given = document.get("speculative_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise LaunchError("ValidationError: speculative_config is no mapping")
    config = {ALIASES.get(str(key), str(key)): value for key, value in given.items()}
    unknown = sorted(set(config) - (KEYS if version >= SCHEDULE_SINCE else KEYS - {"draft_len_schedule"}))
    if unknown:
        raise LaunchError(f"ValidationError: speculative_config.{unknown[0]}: extra inputs are not permitted")
    kind = str(config.get("decoding_type", "")).upper()
    if kind not in TYPES:
        raise LaunchError(f"ValidationError: speculative_config.decoding_type: {config.get('decoding_type')!r}")
    length = config.get("max_draft_len", max(draft for _, draft in AUTO) if kind == "AUTO" else None)
    if not isinstance(length, int) or length < 1:
        raise LaunchError("ValidationError: speculative_config.max_draft_len must be greater than 0")
    config["max_draft_len"] = length
    if config.get("draft_len_schedule"):
        config["draft_len_schedule"] = _schedule(config, length, version)
    return config


def _schedule(config: Mapping[str, Any], length: int, version: tuple[int, ...]) -> dict[int, int]:
    """Numbers may be written as text, as keys in JSON have to be."""
    if config.get("max_concurrency"):
        raise LaunchError("ValidationError: max_concurrency and draft_len_schedule exclude each other")
    try:
        table = {int(key): int(value) for key, value in config["draft_len_schedule"].items()}
    except (AttributeError, TypeError, ValueError):
        raise LaunchError("ValidationError: draft_len_schedule maps batch sizes to draft lengths") from None
    first = min(table)
    if first < 1 or not all(0 <= draft <= length for draft in table.values()):
        raise LaunchError(f"ValidationError: draft_len_schedule: keys from 1, lengths from 0 to {length}")
    if table[first] != length:
        raise LaunchError(f"ValidationError: draft_len_schedule: the smallest key must have {length}, max_draft_len")
    if version < UPPER_BOUNDS_SINCE and first != 1:
        raise LaunchError("ValidationError: draft_len_schedule: key 1 is required")
    return table
