"""Telling: status (only when it says something new), Events, metrics, log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from crossover.api.decision import Memory
from crossover.api.faults import ClusterError, NotFound
from crossover.api.managed_fields import MANAGER
from crossover.api.resources import GROUP, VERSION
from crossover.cluster.client import APPLY_PATCH, Client
from crossover.cluster.events import Recorder, Regarding
from crossover.controller.fleets import Fleet
from crossover.controller.ticker import FleetKey
from crossover.decide.memory import to_json
from crossover.report.events import of_tick
from crossover.report.facts import TickFacts
from crossover.report.metrics import OperatorMetrics
from crossover.report.status import build, worth_writing


class Reporter:
    """Everything a user sees of a tick."""

    def __init__(self, client: Client, recorder: Recorder, metrics: OperatorMetrics) -> None:
        self._client, self._recorder, self._metrics = client, recorder, metrics
        self._log = structlog.get_logger("crossover.fleet")

    async def remember(self, key: FleetKey, fleet: Fleet, memory: Memory, facts: TickFacts) -> bool:
        """Write the memory of a change *before* it is made: a crash in between can only delay the next change.

        False = it could not be written, so the change must not be made.
        """
        return await self._write(key, fleet, build(facts, to_json(memory)), facts.at_seconds)

    async def report(self, key: FleetKey, fleet: Fleet, facts: TickFacts) -> None:
        """Never raises: a status that could not be written is written by the next tick."""
        status = build(facts, to_json(fleet.memory))
        since = None if fleet.written_at_seconds is None else facts.at_seconds - fleet.written_at_seconds
        self._metrics.record(*key, facts)
        self._metrics.conditions(*key, status["conditions"])
        self._log_decision(key, facts)
        if since is None and fleet.status:
            since = float("inf")
        told = of_tick(facts, status["conditions"])
        if not worth_writing(fleet.status, status, since):
            return
        if await self._write(key, fleet, status, facts.at_seconds):
            regarding = Regarding(f"{GROUP}/{VERSION}", "ModelAutoscaler", key[0], key[1], fleet.uid)
            for event in told:
                self._metrics.api_writes.labels("event").inc()
                await self._recorder.record(regarding, event)

    async def _write(self, key: FleetKey, fleet: Fleet, status: Mapping[str, Any], now_seconds: float) -> bool:
        namespace, name = key
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/modelautoscalers/{name}/status"
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ModelAutoscaler",
            "metadata": {"name": name, "namespace": namespace, "uid": fleet.uid},
            "status": status,
        }
        try:
            self._metrics.api_writes.labels("status").inc()
            await self._client.request(
                "PATCH", path, body, params={"fieldManager": MANAGER, "force": "true"}, content_type=APPLY_PATCH
            )
        except NotFound:
            return False
        except ClusterError as error:
            self._log.warning("status not written", namespace=namespace, name=name, fault=error.code)
            return False
        fleet.status, fleet.written_at_seconds = status, now_seconds
        return True

    def _log_decision(self, key: FleetKey, facts: TickFacts) -> None:
        """What was done at info; every tick at debug."""
        namespace, name = key
        for done in facts.done:
            self._log.info(
                "done",
                namespace=namespace,
                name=name,
                kind=done.kind,
                what=done.summary,
                why=done.message,
                decided_at=facts.at_seconds,
            )
        if facts.decision is not None:
            self._log.debug(
                "decided",
                namespace=namespace,
                name=name,
                replicas=str(facts.decision.replicas.reason),
                draft=str(facts.decision.draft.reason),
                **{key: value for key, value in facts.decision.numbers.items() if value is not None},
            )
