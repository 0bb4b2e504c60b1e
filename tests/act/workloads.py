"""Workloads as facts, without a cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossover.api.workload import TargetRef, Workload, WorkloadCondition
from crossover.cluster.workload import workload_facts
from tests.cluster.edge import deployment, ref

NOW = 1_000_000.0


def workload(manifest: Mapping[str, Any] | None = None, **facts: Any) -> Workload:
    """A settled Deployment of 3 pods; ``facts`` replace fields of `Workload`."""
    body = copy.deepcopy(dict(manifest or deployment("demo")))
    body["metadata"] |= {"uid": "uid-1", "resourceVersion": "42", "generation": 2}
    body["metadata"].setdefault("annotations", {})["deployment.kubernetes.io/revision"] = "2"
    count = body["spec"]["replicas"]
    body.setdefault(
        "status",
        {"observedGeneration": 2, "replicas": count, "readyReplicas": count, "updatedReplicas": count},
    )
    target = TargetRef(body["apiVersion"], body["kind"], body["metadata"]["name"])
    return replace(workload_facts(target, "demo", f"/apis/{target.api_version}/x", body), **facts)


def stateful_set(**spec: Any) -> dict[str, Any]:
    return {**deployment("demo", **spec), "kind": "StatefulSet"}


def progressing(reason: str) -> tuple[WorkloadCondition, ...]:
    return (WorkloadCondition("Progressing", "False", reason),)


__all__ = ["NOW", "progressing", "ref", "stateful_set", "workload"]
