"""How a rollout of ours replaces pods: never below what is ready now, or not at all.

Rules of the Deployment controller: https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#strategy
(maxSurge rounds up, maxUnavailable rounds down, both 0 counts as maxUnavailable 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.api.workload import Workload
from crossover.engines.contract import Refusal

DEPLOYMENT, STATEFUL_SET = "Deployment", "StatefulSet"


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """`spec.speculation.restart` and `spec.replicas.min`.

    max_surge: extra pods while rolling; 0 = there is no room for one, pods are replaced in place.
    ready_minimum: replicas that must stay ready.
    """

    max_surge: int = 1
    drain_seconds: float = 120.0
    ready_minimum: int = 1


def rolling_strategy(workload: Workload, rules: RolloutRules) -> dict[str, Any] | None:
    """The `spec.strategy` to set with our edit; None = the present one already does what the rules ask.

    Raises `Refusal` where the kind or its strategy cannot replace pods within the rules.
    """
    kind, replicas = workload.ref.kind, workload.desired_replicas or 0
    if workload.ref.api_version != "apps/v1" or kind not in (DEPLOYMENT, STATEFUL_SET):
        raise Refusal(
            "KindNotSupported",
            f"the rollout of a {kind} is not understood.",
            field="spec.scaleTargetRef.kind",
            fix="Speculation is managed for Deployments and StatefulSets; set spec.speculation.policy to Hold here.",
        )
    if kind == STATEFUL_SET:
        _check_stateful_set(workload, replicas, rules)
        return None
    _check_deployment(workload)
    if rules.max_surge == 0:
        _check_minimum(workload, replicas, rules)
    wanted = (rules.max_surge, 0) if rules.max_surge else (0, 1)
    if effective_fences(workload.strategy, replicas) == wanted:
        return None
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": wanted[0], "maxUnavailable": wanted[1]}}


def effective_fences(strategy: Mapping[str, Any], replicas: int) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods."""
    rolling = strategy.get("rollingUpdate") or {}
    surge = _pods(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _pods(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _pods(value: int | str, replicas: int, rounded: Any) -> int:
    if isinstance(value, int):
        return value
    # Integers only: 29 % of 100 is 29, and 0.29 * 100 is not.
    share = int(value.removesuffix("%")) * replicas
    return int(rounded(share / 100)) if share % 100 else share // 100


def _check_deployment(workload: Workload) -> None:
    if workload.strategy.get("type") == "Recreate":
        raise Refusal(
            "RecreateStrategy",
            "strategy Recreate stops every pod before a new one starts.",
            field="spec.strategy.type",
            fix="Set RollingUpdate, or spec.speculation.policy to Hold.",
        )
    if workload.paused:
        raise Refusal(
            "RolloutPaused",
            "the Deployment is paused, so no change would reach a pod.",
            field="spec.paused",
            fix=f"Run kubectl rollout resume deployment/{workload.ref.name}.",
        )


def _check_stateful_set(workload: Workload, replicas: int, rules: RolloutRules) -> None:
    if workload.strategy.get("type") == "OnDelete":
        raise Refusal(
            "OnDeleteStrategy",
            "updateStrategy OnDelete brings no change to a pod until somebody deletes it.",
            field="spec.updateStrategy.type",
            fix="Set RollingUpdate, or spec.speculation.policy to Hold.",
        )
    if (workload.strategy.get("rollingUpdate") or {}).get("partition", 0) > 0:
        raise Refusal(
            "PartitionedRollout",
            "updateStrategy.rollingUpdate.partition keeps some pods on their old template.",
            field="spec.updateStrategy.rollingUpdate.partition",
            fix="Set it to 0, or spec.speculation.policy to Hold.",
        )
    _check_minimum(workload, replicas, rules)


def _check_minimum(workload: Workload, replicas: int, rules: RolloutRules) -> None:
    """A rollout that replaces in place always takes one ready pod away."""
    if replicas - 1 < rules.ready_minimum:
        how = "a StatefulSet" if workload.ref.kind == STATEFUL_SET else "spec.speculation.restart.maxSurge 0"
        raise Refusal(
            "RolloutBreaksMinimum",
            f"{how} replaces pods in place: {replicas - 1} of {replicas} would stay ready, "
            f"spec.replicas.min is {rules.ready_minimum}.",
            field="spec.replicas.min",
            fix=f"Run at least {rules.ready_minimum + 1} replicas, lower spec.replicas.min, or use a Deployment that may "
            "surge.",
        )
