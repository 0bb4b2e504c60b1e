"""What the pod watch costs: CPU and memory for a list of 10,000 pods, CPU for each watch event.

    python -m bench.pod_watch [--pods 10000] [--events 5000]

A stand-in API server in a process of its own serves realistic pods (about 4.6 kB of JSON) in chunks of 500, then a
stream of changes. Beside it, for a ratio within one run: the same bytes through `json.loads`, all dicts kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import socket
import time
from typing import Any

from aiohttp import web

from crossover.api.fleet import PodFacts
from crossover.cluster.client import Client
from crossover.cluster.login import Login
from crossover.cluster.pods import PodCache
from crossover.controller.clock import SystemClock

NAMESPACE = "bench"


def pod(number: int, version: int) -> dict[str, Any]:
    """A pod as an API server shows it, managedFields and all."""
    fields = {f"f:field{index}": {".": {}, f"f:nested{index}": {}} for index in range(40)}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"llama-{number}",
            "namespace": NAMESPACE,
            "uid": f"00000000-0000-0000-0000-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-12-01T10:00:00Z",
            "labels": {"app": f"fleet-{number % 100}", "pod-template-hash": "abc123"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "llama", "uid": "u", "controller": True}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": "server",
                    "image": "example.org/sglang:0.5.23",
                    "args": [f"--argument-{index}=value" for index in range(20)],
                    "env": [{"name": f"VARIABLE_{index}", "value": "value"} for index in range(20)],
                    "ports": [{"containerPort": 30000, "protocol": "TCP"}],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{number // 250 % 250}.{number % 250 + 1}",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-12-01T10:03:00Z"}
                for kind in ("Initialized", "ContainersReady", "PodScheduled", "Ready")
            ],
            "containerStatuses": [{"name": "server", "restartCount": version, "ready": True, "state": {}}],
        },
    }


def serve(port: int, pods: int, events: int, go: Any) -> None:
    """The stand-in API server; runs in a process of its own."""
    bodies = [json.dumps(pod(number, 1)) for number in range(pods)]
    changes = [
        json.dumps({"type": "MODIFIED", "object": pod(index % pods, index + 2)}).encode() + b"\n"
        for index in range(events)
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
            rest = start + limit if start + limit < pods else ""
            meta = json.dumps({"resourceVersion": "1", "continue": str(rest)})
            text = f'{{"metadata": {meta}, "items": [{",".join(bodies[start : start + limit])}]}}'
            return web.Response(text=text, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        while not go.is_set():
            await asyncio.sleep(0.01)
        for change in changes:
            await response.write(change)
        await asyncio.sleep(3600)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=False)


def wait_for_port(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def cpu_seconds() -> float:
    return time.process_time()


def rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(port: int, pods: int, events: int, go: Any) -> dict[str, float]:
    async def nobody() -> str | None:
        return None

    async def nothing() -> None: ...

    client = Client(Login(f"http://127.0.0.1:{port}", None, None, None, nobody, nothing))
    seen = 0

    def changed(_: PodFacts) -> None:
        nonlocal seen
        seen += 1

    cache = PodCache(client, SystemClock(), changed)
    memory, began = rss_mb(), cpu_seconds()
    state = cache.use("bench", NAMESPACE)
    await state.ready.wait()
    listed, list_mb = cpu_seconds() - began, rss_mb() - memory
    for fleet in range(100):
        cache.select(NAMESPACE, f"app=fleet-{fleet}")
    began = cpu_seconds()
    for fleet in range(100):
        assert len(cache.select(NAMESPACE, f"app=fleet-{fleet}")) == pods // 100
    selected = (cpu_seconds() - began) / 100
    seen, began = 0, cpu_seconds()
    go.set()
    while seen < events:
        await asyncio.sleep(0.005)
    watched = (cpu_seconds() - began) / events
    await cache.close()
    await client.close()
    bodies = [json.dumps(pod(number, 1)) for number in range(min(pods, 2000))]
    began = cpu_seconds()
    kept = [json.loads(body) for body in bodies]
    plain = (cpu_seconds() - began) / len(kept)
    return {
        "pods": pods,
        "body_bytes": len(bodies[0]),
        "list_cpu_ms_per_pod": 1000 * listed / pods,
        "list_rss_mb": list_mb,
        "select_cpu_ms_100_pods": 1000 * selected,
        "watch_cpu_ms_per_event": 1000 * watched,
        "json_loads_cpu_ms_per_pod": 1000 * plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--port", type=int, default=18_473)
    options = parser.parse_args()
    go = multiprocessing.get_context("spawn").Event()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(options.port, options.pods, options.events, go), daemon=True
    )
    server.start()
    try:
        wait_for_port(options.port)
        numbers = asyncio.run(measure(options.port, options.pods, options.events, go))
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        print(json.dumps({**machine, **{name: round(value, 4) for name, value in numbers.items()}}, indent=2))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
