"""Fleets for controller tests."""

from tests.api_server.scripted import IMAGE, PORT

EAGLE = (
    "--speculative-algorithm=EAGLE",
    "--speculative-draft-model-path=/models/eagle",
    "--speculative-num-steps=3",
    "--speculative-eagle-topk=1",
    "--speculative-num-draft-tokens=4",
)
NGRAM = ("--speculative-algorithm=NGRAM", "--speculative-num-draft-tokens=8")


def deployment(namespace, name, *, speculation=EAGLE, replicas=2, **template):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [
                        {
                            "name": "server",
                            "image": IMAGE,
                            "command": ["python3", "-m", "sglang.launch_server"],
                            "args": ["--model-path=/models/m", f"--port={PORT}", "--enable-metrics", *speculation],
                            "ports": [{"containerPort": PORT}],
                            "readinessProbe": {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1},
                        }
                    ],
                    **template,
                },
            },
        },
    }


def autoscaler(namespace, name, *, target=None, spec=None, speculation=True, **replicas):
    wanted = {
        "scaleTargetRef": {"kind": "Deployment", "name": target or name},
        "engine": {"type": "SGLang", "port": PORT},
        "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 4},
        "replicas": {
            "min": 1,
            "max": 6,
            "targetRunningRequests": 40,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3}},
            **replicas,
        },
        **(spec or {}),
    }
    if speculation:
        wanted["speculation"] = {
            "maxDraftTokens": 3,
            "threshold": {
                "disableAboveRunningRequests": 32,
                "enableBelowRunningRequests": 20,
                "stabilizationWindowSeconds": 2,
            },
            "restart": {"minDwellSeconds": 5, "drainSeconds": 5},
        }
    return {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "ModelAutoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": wanted,
    }


def calibrated_autoscaler(namespace):
    """Of "llama", by the Calibration "cal" alone: neither a threshold nor a target is typed by hand."""
    fleet = autoscaler(namespace, "llama")
    fleet["spec"]["speculation"]["calibrationRef"] = {"name": "cal"}
    del fleet["spec"]["speculation"]["threshold"]
    del fleet["spec"]["replicas"]["targetRunningRequests"]
    fleet["spec"]["objectives"] = {"timePerOutputTokenMilliseconds": 40}
    return fleet


def calibration(namespace, name="cal", **spec):
    wanted = {
        "targetRef": {"name": "llama"},
        "engine": {"type": "SGLang"},
        "workload": {"inputTokens": 32, "outputTokens": 24},
        "runningRequests": [2, 16],
        **spec,
    }
    return {
        "apiVersion": "crossover.dev/v1alpha1",
        "kind": "Calibration",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {key: value for key, value in wanted.items() if value is not None},
    }
