"""CPU time to read one exposition: our scanner against prometheus_client on the same bytes in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.machine import save
from crossover.engines import sglang, tensorrt_llm, vllm
from crossover.engines.exposition import scan

METRICS = Path(__file__).parents[1] / "tests" / "fixtures" / "metrics"
FILES = {
    "vllm-0.33.0-b64-spec": vllm.WANTED,
    "vllm-0.33.0-dp2": vllm.WANTED,
    "sglang-0.5.23-busy64-ngram-spec": sglang.WANTED,
    "trtllm-1.3-serve-b64-spec": tensorrt_llm.WANTED,
}


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
