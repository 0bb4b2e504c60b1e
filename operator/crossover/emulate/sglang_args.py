"""The launch arguments of an SGLang server and what its speculation does with them.

Parsed with argparse as the server does (prefixes, the last repetition wins), not with Crossover's own reader, so that
the two check each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossover.emulate.commands import LaunchError, inside, words_after
from crossover.emulate.drafts import Drafts, Fixed, Off
from crossover.emulate.requests import Step

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "NONE")
DEFAULT_TABLE = {"1": [1, 3, 5, 7], "8": [0, 1, 3], "32": [0, 1], "64": [0]}
"""Adaptive steps without a file, as in 0.5.23."""
SPECULATIVE_MAX_RUNNING = 48
PLAIN_MAX_RUNNING = 256
PROBE_BATCHES = 5
"""A list that mixes 0 with other lengths probes the next length after this many batches."""
ENTRY_POINTS = ("sglang.launch_server", "launch_server.py", "sglang serve")


@dataclass
class Launch:
    """Resolved start-up arguments."""

    args: argparse.Namespace
    command: tuple[str, ...]
    version: tuple[int, ...]
    algorithm: str | None = None
    steps: int = 0
    draft_tokens: int = 0
    """Verified per request, as the argument counts: one more than the draft of a chain."""
    topk: int = 1
    table: dict[int, list[int]] = field(default_factory=dict)
    """Adaptive steps by batch size; empty = a fixed length."""
    adaptive: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def max_running_requests(self) -> int:
        given: int | None = self.args.max_running_requests
        if given is not None:
            return given
        return SPECULATIVE_MAX_RUNNING if self.algorithm else PLAIN_MAX_RUNNING

    @property
    def graph_sizes(self) -> list[int]:
        """Captured CUDA-graph batch sizes."""
        return [1, 2, 4, 8, 12, 16, *range(24, self.max_running_requests + 1, 8)]

    def drafts(self) -> Drafts:
        """The control of one scheduler."""
        if self.algorithm is None:
            return Off()
        if self.adaptive:
            return AdaptiveSteps(self.table, self.graph_sizes)
        if self.algorithm == "NGRAM":
            return Fixed(self.draft_tokens - 1, drafts_free=True)
        return Fixed(self.steps, tree=self.draft_tokens if self.topk > 1 else None)


class AdaptiveSteps:
    """The engine's own table from batch sizes to candidate steps."""

    speculates = True
    drafts_free = False

    def __init__(self, table: Mapping[int, Sequence[int]], graph_sizes: Sequence[int]) -> None:
        self._table, self._sizes = table, sorted(graph_sizes)
        self._keys = sorted(table)
        self._batches = 0

    def choose(self, batch: int) -> int:
        """The batch is padded to the next captured size, then the largest key up to it counts."""
        padded = next((size for size in self._sizes if size >= batch), batch)
        key = max((key for key in self._keys if key <= padded), default=self._keys[0])
        steps = self._table[key]
        if len(steps) == 1:
            return steps[0]
        self._batches += 1
        if 0 in steps:
            return 0 if (self._batches // PROBE_BATCHES) % 2 == 0 else steps[1]
        return steps[len(steps) // 2]

    def verified(self, draft: int) -> int:
        return draft + 1

    def observe(self, step: Step) -> None:
        pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang.launch_server", exit_on_error=True)
    parser.add_argument("--model-path", "--model", default="/models/emulated")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--enable-metrics-for-all-schedulers", action="store_true")
    parser.add_argument("--enable-priority-scheduling", action="store_true")
    parser.add_argument("--extra-metric-labels", type=json.loads, default={})
    parser.add_argument("--max-running-requests", type=int)
    parser.add_argument("--max-total-tokens", type=int)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--dp-size", "--data-parallel-size", type=int, default=1)
    parser.add_argument("--pp-size", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--disaggregation-mode", choices=("null", "prefill", "decode"), default="null")
    parser.add_argument("--enable-dp-attention", action="store_true")
    parser.add_argument("--decode-log-interval", type=int, default=40)
    parser.add_argument("--context-length", type=int, default=8192)
    parser.add_argument("--speculative-algorithm", type=str.upper, choices=ALGORITHMS)
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
    parser.add_argument("--speculative-draft-model-revision")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--speculative-adaptive", action="store_true")
    parser.add_argument("--speculative-adaptive-config")
    parser.add_argument("--speculative-accept-threshold-single", type=float, default=1.0)
    parser.add_argument("--speculative-accept-threshold-acc", type=float, default=1.0)
    parser.add_argument("--speculative-ngram-min-bfs-breadth", type=int, default=1)
    parser.add_argument("--speculative-ngram-max-bfs-breadth", type=int, default=10)
    return parser


def parse(command: Sequence[str], version: tuple[int, ...], root: Path) -> Launch:
    """Arguments as far as they are checked before loading. Raises SystemExit(2) as argparse does, or LaunchError."""
    args, _ = _parser().parse_known_args(words_after(command, ENTRY_POINTS))
    launch = Launch(args, tuple(command), version)
    if args.speculative_algorithm is None:
        return launch
    launch.algorithm = "EAGLE" if args.speculative_algorithm == "NEXTN" else args.speculative_algorithm
    _resolve_lengths(launch)
    if args.speculative_adaptive:
        _resolve_adaptive(launch, root)
    return launch


def _resolve_lengths(launch: Launch) -> None:
    args = launch.args
    given = (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens)
    if launch.algorithm == "NGRAM":
        launch.draft_tokens = args.speculative_num_draft_tokens or 12
        launch.topk = args.speculative_ngram_max_bfs_breadth
        launch.steps = launch.draft_tokens
        return
    if given == (None, None, None):
        launch.steps, launch.topk, launch.draft_tokens = 5, 4, 8
        return
    if args.speculative_num_steps is None:
        raise LaunchError("AssertionError: speculative_num_steps must be set with topk or draft tokens")
    launch.steps = args.speculative_num_steps
    launch.topk = args.speculative_eagle_topk or 1
    launch.draft_tokens = args.speculative_num_draft_tokens or launch.steps + 1
    if launch.topk == 1:
        launch.draft_tokens = launch.steps + 1


def _resolve_adaptive(launch: Launch, root: Path) -> None:
    """The engine's own conditions: otherwise a warning and a fixed length."""
    args = launch.args
    refused = None
    if launch.algorithm not in ("EAGLE", "EAGLE3"):
        refused = f"adaptive steps do not support {launch.algorithm}"
    elif launch.topk != 1:
        refused = "adaptive steps need topk 1"
    elif args.enable_dp_attention:
        refused = "adaptive steps do not support DP attention"
    if refused is not None:
        launch.warnings.append(f"{refused}: falling back to static steps")
        return
    table: Mapping[str, Any] = {key: {"candidate_steps": steps} for key, steps in DEFAULT_TABLE.items()}
    path = args.speculative_adaptive_config
    if path is not None:
        try:
            table = json.loads(inside(root, path).read_text())
        except (OSError, ValueError) as error:
            raise LaunchError(f"{type(error).__name__}: speculative_adaptive_config") from None
    launch.table = _checked(table, launch)
    launch.adaptive = True
    if path is None:
        launch.steps = min((s for s in launch.table[min(launch.table)] if s), default=1)


def _checked(table: Mapping[str, Any], launch: Launch) -> dict[int, list[int]]:
    if launch.version >= (0, 5, 13) and not all(str(key).isdigit() for key in table if key not in _SHARED_KEYS):
        raise LaunchError("ValueError: adaptive config needs integer batch-size keys")
    lists: dict[int, list[int]] = {}
    for key, value in table.items():
        if str(key).isdigit():
            lists[int(key)] = sorted(int(step) for step in value["candidate_steps"])
    union = {step for steps in lists.values() for step in steps}
    if launch.version < (0, 5, 14) and 0 in union:
        raise LaunchError("ValueError: candidate_steps must be positive")
    if launch.args.speculative_adaptive_config and launch.args.speculative_num_steps not in union:
        raise LaunchError("ValueError: speculative_num_steps is not among the candidate steps")
    return lists


_SHARED_KEYS = ("ema_alpha", "update_interval", "warmup_batches", "up_hysteresis", "down_hysteresis", "ceiling_coeff")
