"""CPU time to read one exposition: our scanner against prometheus_client on the same bytes in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.machine import save
from crossover.engines.exposition import scan
from crossover.engines.sglang import WANTED

METRICS = Path(__file__).parents[1] / "tests" / "fixtures" / "metrics"
VLLM = frozenset(
    f"vllm:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "generation_tokens_total",
        "iteration_tokens_total_count",
        "inter_token_latency_seconds_count",
        "request_time_per_output_token_seconds_sum",
        "request_time_per_output_token_seconds_count",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "cache_config_info",
    )
)
FILES = {"vllm-0.33.0-b64-spec": VLLM, "sglang-0.5.23-busy64-ngram-spec": WANTED}


def cpu_milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Best of five rounds, per call: the least disturbed one."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(repeats):
            work()
        rounds.append((time.process_time() - began) / repeats)
    return 1000 * min(rounds)


def main() -> None:
    result = {}
    for name, wanted in FILES.items():
        body = (METRICS / f"{name}.prom").read_bytes()
        text = body.decode()
        ours = cpu_milliseconds(lambda body=body, wanted=wanted: scan(body, wanted), 200)  # type: ignore[misc]
        theirs = cpu_milliseconds(lambda text=text: list(text_string_to_metric_families(text)), 5)  # type: ignore[misc]
        result[name] = {
            "bytes": len(body),
            "scanner_ms": round(ours, 3),
            "prometheus_client_ms": round(theirs, 2),
            "ratio": round(theirs / ours, 1),
        }
    save("exposition", {"expositions": result})


if __name__ == "__main__":
    main()
