"""The two fleets of the demo: what a user would write, as plain manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMESPACE = "demo"
PORT = 30000
REPLICAS = 3
THRESHOLD = 32
ENABLE_BELOW = 20


@dataclass(frozen=True)
class Fleet:
    """One model deployment of the demo."""

    name: str
    speculation: tuple[str, ...]
    """The server's own arguments."""
    draft_tokens: int
    target_running_requests: int
    """Per replica. The second fleet has room, so that its rollout is not held back by pods that start."""


FOLLOWS_SCHEDULE = Fleet(
    "chat-eagle",
    (
        "--speculative-algorithm=EAGLE",
        "--speculative-draft-model-path=/models/llama-3.1-8b-eagle",
        "--speculative-num-steps=3",
        "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=4",
    ),
    3,
    40,
)
NEEDS_RESTART = Fleet(
    "code-ngram",
    ("--speculative-algorithm=NGRAM", "--speculative-num-draft-tokens=8"),
    7,
    64,
)
FLEETS = (FOLLOWS_SCHEDULE, NEEDS_RESTART)


def deployment(fleet: Fleet, emulate_flags: str) -> dict[str, Any]:
    """A Deployment as SGLang users write them: command list, arguments, health on /ready."""
    labels = {"app": fleet.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": fleet.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "containers": [
                        {
                            "name": "server",
                            "image": "crossover.dev/emulated-sglang:0.5.23",
                            "command": ["python3", "-m", "sglang.launch_server"],
                            "args": [
                                "--model-path=/models/llama-3.1-8b",
                                "--host=0.0.0.0",
                                f"--port={PORT}",
                                "--enable-metrics",
                                "--max-running-requests=128",
                                *fleet.speculation,
                            ],
                            "env": [{"name": "EMULATE_FLAGS", "value": emulate_flags}],
                            "ports": [{"name": "http", "containerPort": PORT}],
                            "readinessProbe": {
                                "httpGet": {"path": "/ready", "port": PORT},
                                "periodSeconds": 1,
                                "timeoutSeconds": 2,
                            },
                        }
                    ],
                },
            },
        },
    }


def model_autoscaler(fleet: Fleet) -> dict[str, Any]:
    """Simple mode with the demo's short windows: a real fleet would keep the defaults (minutes)."""
    return {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "ModelAutoscaler",
        "metadata": {"name": fleet.name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": fleet.name},
            "engine": {"type": "SGLang", "container": "server", "port": PORT},
            "metrics": {"intervalSeconds": 2, "staleAfterSeconds": 10},
            "replicas": {
                "min": REPLICAS,
                "max": 6,
                "targetRunningRequests": fleet.target_running_requests,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20}},
            },
            "speculation": {
                "maxDraftTokens": fleet.draft_tokens,
                "threshold": {
                    "disableAboveRunningRequests": THRESHOLD,
                    "enableBelowRunningRequests": ENABLE_BELOW,
                    "stabilizationWindowSeconds": 6,
                },
                "restart": {"minDwellSeconds": 30, "maxSurge": 1, "drainSeconds": 30},
            },
        },
    }
