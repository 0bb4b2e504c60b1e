"""The launch arguments of a vLLM server and what its speculation does with them.

One dictionary of speculation in many spellings: JSON, dotted keys, `--spec-*`, a YAML file. Checked when vLLM checks it: unknown
keys before anything is loaded, the batch schedule only after the weights are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from crossover.emulate.commands import LaunchError, inside, words_after
from crossover.emulate.drafts import BestLength, Drafts, Fixed, Off, Scheduled
from crossover.emulate.truth import Truth

ENTRY_POINTS = (
    "vllm serve",
    "vllm.entrypoints.cli.main serve",
    "vllm.entrypoints.openai.api_server",
    "api_server.py",
)
METHODS = (
    *("ngram", "ngram_gpu", "draft_model", "suffix", "custom_class", "eagle", "eagle3", "mtp", "dflash", "dspark"),
    "extract_hidden_states",
)
FREE_METHODS = ("ngram", "ngram_gpu", "suffix")
"""Drafts without a model."""
SCHEDULE_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
SCHEDULE_SINCE = (0, 24)
DP_GUARD_SINCE = (0, 26)
KEYS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "prompt_lookup_min"),
            *("prompt_lookup_max", "quantization", "revision", "max_model_len", "disable_padded_drafter_batch"),
            *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "parallel_drafting"),
            *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "attention_backend", "moe_backend"),
            *("kv_cache_dtype", "draft_sample_method", "use_local_argmax_reduction", "draft_lm_head_quantization"),
            *("rejection_sample_method", "synthetic_acceptance_length", "synthetic_acceptance_rates"),
        ),
        (0,),
    ),
    SCHEDULE_KEY: SCHEDULE_SINCE,
    "enable_adaptive_verification": (0, 29),
}
"""Keys of the speculative configuration and the version that has them first; any other ends the start."""
DISABLE_KEY, DISABLE_UNTIL = "disable_by_batch_size", (0, 17)
"""Accepted and read by nothing, then gone."""
LARGE_GPU_SEQS, SEQS = 1024, 256


@dataclass
class Launch:
    """Resolved start-up arguments."""

    args: argparse.Namespace
    version: tuple[int, ...]
    config: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    deadlocks: bool = False
    """Ranks that choose different draft lengths wait for each other for ever."""
    late_error: LaunchError | None = None
    """What the engine refuses only after its weights are loaded."""
    schedule: list[tuple[int, int]] = field(default_factory=list)

    @property
    def method(self) -> str | None:
        return _method(self.config) if self.config is not None else None

    @property
    def max_draft(self) -> int:
        return int(self.config["num_speculative_tokens"]) if self.config is not None else 0

    @property
    def forced_acceptance_length(self) -> float | None:
        config = self.config or {}
        if config.get("rejection_sample_method") != "synthetic":
            return None
        return float(config["synthetic_acceptance_length"])

    @property
    def ranks(self) -> list[int]:
        """Global data-parallel ranks of this process."""
        args = self.args
        if args.data_parallel_rank is not None:
            return [args.data_parallel_rank]
        first = args.data_parallel_start_rank or 0
        return list(range(first, first + (args.data_parallel_size_local or args.data_parallel_size)))

    @property
    def api_servers(self) -> int:
        """Front-end processes; from 0.16.0 one per data-parallel rank unless told otherwise."""
        args = self.args
        if args.api_server_count is not None:
            return int(args.api_server_count)
        external = args.data_parallel_external_lb or args.data_parallel_rank is not None
        return 1 if external or self.version < (0, 16) else len(self.ranks)

    def max_running_requests(self, large_gpu: bool) -> int:
        args = self.args
        most = args.max_num_seqs or (LARGE_GPU_SEQS if large_gpu else SEQS)
        return int(min(most, args.max_num_active_seqs or most))

    def drafts(self, truth: Truth) -> Drafts:
        """The control of one scheduler."""
        if self.config is None:
            return Off()
        free = self.method in FREE_METHODS
        if self.schedule:
            return Scheduled(self.schedule, drafts_free=free)
        if self.config.get("enable_adaptive_verification"):
            return BestLength(truth, self.max_draft, drafts_free=free)
        return Fixed(self.max_draft, drafts_free=free)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--config")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", nargs="+")
    for name in ("max-num-seqs", "max-num-active-seqs", "max-num-batched-tokens", "max-num-queued-reqs"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--num-gpu-blocks-override", type=int)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--data-parallel-size", "-dp", type=int, default=1)
    for name in ("size-local", "rank", "start-rank"):
        parser.add_argument("--data-parallel-" + name, type=int)
    parser.add_argument("--data-parallel-external-lb", action="store_true")
    parser.add_argument("--api-server-count", "-asc", type=int)
    parser.add_argument("--disable-log-stats", action="store_true")
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--speculative-config", "-sc")
    parser.add_argument("--spec-method")
    parser.add_argument("--spec-model")
    parser.add_argument("--spec-tokens", type=int)
    return parser


def parse(command: Sequence[str], environ: Mapping[str, str], version: tuple[int, ...], root: Path) -> Launch:
    """Arguments as far as they are checked before loading. Raises SystemExit(2) as argparse does, or LaunchError."""
    words = words_after(command, ENTRY_POINTS, environ)
    words, dotted = _dotted(_with_file([_dashed(word) for word in words], root))
    args, _ = _parser().parse_known_args(words)
    launch = Launch(args, version)
    launch.config = _config(args, dotted)
    if launch.config is not None:
        _check(launch)
        try:
            _resolve_schedule(launch)
        except LaunchError as error:
            launch.late_error = error
    return launch


def _dashed(word: str) -> str:
    """`--max_num_seqs` is `--max-num-seqs`; keys after a dot stay as they are."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    name, dot, key = flag.partition(".")
    return name.replace("_", "-") + dot + key + equals + value


def _with_file(words: list[str], root: Path) -> list[str]:
    """The options of `--config FILE.yaml` come first, so the command line wins."""
    path = None
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            path = words[place + 1]
        elif word.startswith("--config="):
            path = word.partition("=")[2]
    if path is None:
        return words
    try:
        options = yaml.safe_load(inside(root, path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise LaunchError(f"{type(error).__name__}: --config") from None
    found: list[str] = []
    for key, value in options.items():
        flag = "--" + str(key).replace("_", "-")
        if isinstance(value, bool):
            found += [flag] if value else []
        else:
            found += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*found, *words]


def _dotted(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes `--speculative-config.KEY VALUE` out."""
    rest, found = list[str](), dict[str, Any]()
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--speculative-config."):
            rest.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not equals:
            value = words[place] if place < len(words) else ""
            place += 1
        try:
            found[flag.partition(".")[2]] = json.loads(value)
        except ValueError:
            found[flag.partition(".")[2]] = value
    return rest, found


def _config(args: argparse.Namespace, dotted: Mapping[str, Any]) -> dict[str, Any] | None:
    given = {"method": args.spec_method, "model": args.spec_model, "num_speculative_tokens": args.spec_tokens}
    short = {key: value for key, value in given.items() if value is not None}
    if args.speculative_config is None:
        config = {**dotted, **short}
        return {key.replace("-", "_"): value for key, value in config.items()} or None
    try:
        config = json.loads(args.speculative_config)
    except ValueError:
        raise LaunchError("argument --speculative-config: invalid JSON") from None
    if not isinstance(config, dict):
        raise LaunchError("argument --speculative-config: not an object")
    both = sorted(set(config) & set(short))
    if both:
        raise LaunchError(f"ValueError: {both[0]} stands in --speculative-config and in a --spec-* argument")
    return {key.replace("-", "_"): value for key, value in {**config, **dotted, **short}.items()}


def _method(config: Mapping[str, Any]) -> str:
    method = config.get("method")
    if method is not None:
        return "mtp" if str(method).endswith("_mtp") else str(method)
    model = str(config.get("model", "")).lower()
    found = next((name for name in ("eagle3", "eagle-", "dflash", "dspark") if name in model), "draft_model")
    return found.rstrip("-")


def _check(launch: Launch) -> None:
    """What pydantic checks before anything is loaded."""
    config, version = launch.config or {}, launch.version
    for key in config:
        gone = key == DISABLE_KEY and version >= DISABLE_UNTIL
        known = key in KEYS and version >= KEYS[key]
        if gone or not (known or key == DISABLE_KEY):
            raise LaunchError(f"ValidationError: SpeculativeConfig.{key}: extra inputs are not permitted")
    method, tokens = launch.method, config.get("num_speculative_tokens")
    old = version < (0, 33) and method in ("medusa", "mlp_speculator")
    if method not in METHODS and not old:
        raise LaunchError(f"ValidationError: SpeculativeConfig.method: {method!r} is not a known method")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise LaunchError("ValidationError: SpeculativeConfig.num_speculative_tokens: must be greater than 0")
    if config.get("rejection_sample_method") == "synthetic" and "synthetic_acceptance_length" not in config:
        raise LaunchError("synthetic_acceptance_length is missing (synthetic_acceptance_rates is not emulated)")


def _resolve_schedule(launch: Launch) -> None:
    """What the scheduler checks after loading: ranges [start, end, K], inclusive; gaps and the tail go on with the last."""
    ranges = (launch.config or {}).get(SCHEDULE_KEY)
    if ranges is None:
        return
    if not isinstance(ranges, list) or not ranges:
        raise LaunchError(f"ValueError: {SCHEDULE_KEY} must be a list of [start, end, K]")
    try:
        rows = [(int(start), int(end), int(draft)) for start, end, draft in ranges]
    except (TypeError, ValueError):
        raise LaunchError(f"ValueError: {SCHEDULE_KEY}: each entry is [start, end, K]") from None
    last = 0
    for start, end, draft in rows:
        if (last == 0 and start != 1) or start <= last or end < start or draft < 0:
            raise LaunchError(f"ValueError: {SCHEDULE_KEY} must start at 1, ascend, not overlap, and have K >= 0")
        last = end
    size = launch.args.data_parallel_size
    if size > 1 and launch.version >= DP_GUARD_SINCE:
        launch.warnings.append(f"{SCHEDULE_KEY} is ignored: data_parallel_size is {size}")
        return
    if launch.method not in SCHEDULE_METHODS:
        launch.warnings.append(f"{SCHEDULE_KEY} is ignored for method {launch.method}")
        return
    launch.deadlocks = size > 1
    launch.schedule = [(start, min(draft, launch.max_draft)) for start, _, draft in rows]
