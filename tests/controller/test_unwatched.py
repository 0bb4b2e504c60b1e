"""A namespace whose pods cannot be watched is told, not waited for in silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from crossover.api.faults import Forbidden
from crossover.api.resources import ModelAutoscalerSpec
from crossover.cluster.watch import WatchState
from crossover.controller.fleets import Fleets
from crossover.controller.reconcile import SYNC_SECONDS, Parts, Reconciler
from crossover.report.conditions import compute
from crossover.report.facts import TickFacts

KEY = ("demo", "llama")


class Reporter:
    def __init__(self) -> None:
        self.facts: list[TickFacts] = []

    async def report(self, key: object, fleet: object, facts: TickFacts) -> None:
        self.facts.append(facts)


async def ticked(state: WatchState) -> tuple[float | None, list[TickFacts]]:
    fleets, reporter = Fleets(), Reporter()
    spec = ModelAutoscalerSpec.model_validate(
        {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}, "replicas": {"max": 3}}
    )
    body = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    fleets.put({"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "1", "generation": 1}, "spec": body})
    parts = SimpleNamespace(
        fleets=fleets,
        pods=SimpleNamespace(use=lambda *_: state),
        reporter=reporter,
        clock=SimpleNamespace(now=lambda: 1000.0),
    )
    again = await Reconciler(cast("Parts", parts), lambda: True).tick(KEY)
    return again, reporter.facts


async def test_a_watch_that_just_has_not_answered_yet_is_waited_for() -> None:
    assert await ticked(WatchState()) == (SYNC_SECONDS, [])


async def test_a_right_that_is_missing_becomes_a_condition_with_the_fix() -> None:
    fault = Forbidden("GET", "/api/v1/namespaces/demo/pods", status=403, reason="Forbidden")
    again, (facts,) = await ticked(WatchState(fault=fault))
    assert again is not None
    assert again > SYNC_SECONDS
    conditions: dict[str, Any] = {item["type"]: item for item in compute(facts, [])}
    told = conditions["MetricsAvailable"]
    assert (told["status"], told["reason"]) == ("Unknown", "ClusterUnreachable")
    assert "namespace demo" in told["message"]
    assert "list and watch on pods" in told["message"]
