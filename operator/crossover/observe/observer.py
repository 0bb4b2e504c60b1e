"""One look at a fleet's pods: scrape them side by side, remember what each said, turn counters into rates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossover.api.fleet import Capability, EngineType, PodFacts, PodObservation, PodPhase, PodReading, ScrapeFault
from crossover.engines import ENGINES
from crossover.engines.contract import Engine
from crossover.observe.rates import WINDOW_SECONDS, PodRates, pod_rates, was_reset
from crossover.observe.scraper import Scraper, Unusable

CAPABILITY_SECONDS = 300.0
"""How long a server's description of itself is believed; /server_info is a round trip through every scheduler."""
CAPABILITY_RETRY_SECONDS = 15.0
HISTORY = 64


@dataclass(slots=True)
class PodHistory:
    """What is remembered of one pod between scrapes."""

    readings: deque[PodReading] = field(default_factory=lambda: deque(maxlen=HISTORY))
    capability: Capability | None = None
    capability_due_seconds: float = 0.0
    restarts: int = 0
    fault: ScrapeFault | None = None
    fault_detail: str | None = None
    port: int | None = None

    def newest(self) -> PodReading | None:
        return self.readings[-1] if self.readings else None

    def forget_process(self) -> None:
        """The process was replaced: nothing it said holds any more."""
        self.readings.clear()
        self.capability = None
        self.capability_due_seconds = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """How the pods of one fleet are asked."""

    engine: EngineType | None
    """None = detect."""
    port: int | None
    """None = the engine's default, or the pod's only declared port."""
    container: Mapping[str, Any] | None = None
    """The container of the pod template: second source of the capability."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> content of the ConfigMap files it mounts."""


class Observer:
    """Scrapes and remembers. One for all fleets; histories are keyed by pod uid and dropped with the pod."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self._histories: dict[str, dict[str, PodHistory]] = {}

    async def look(
        self, fleet: str, target: Target, pods: Sequence[PodFacts], now_seconds: float
    ) -> tuple[PodObservation, ...]:
        """One scrape of every pod that may answer. Never raises for what a pod does or says.

        ``fleet``: a key; pods not given any more are forgotten. ``now_seconds``: the caller's clock.
        """
        before = self._histories.get(fleet, {})
        histories = {pod.uid: before.get(pod.uid) or PodHistory() for pod in pods}
        self._histories[fleet] = histories
        asked = [pod for pod in pods if pod.address and pod.phase in (PodPhase.READY, PodPhase.TERMINATING)]
        await asyncio.gather(*(self._ask(target, pod, histories[pod.uid], now_seconds) for pod in asked))
        return tuple(_observation(pod, histories[pod.uid], now_seconds) for pod in pods)

    def forget(self, fleet: str) -> None:
        self._histories.pop(fleet, None)

    async def _ask(self, target: Target, pod: PodFacts, history: PodHistory, now_seconds: float) -> None:
        if pod.restarts != history.restarts:
            history.forget_process()
            history.restarts = pod.restarts
        try:
            reading = await self._read(target, pod, history, now_seconds)
        except Unusable as unusable:
            history.fault, history.fault_detail = unusable.fault, unusable.detail
            return
        history.fault, history.fault_detail = reading.fault, reading.fault_detail
        if reading.fault is not None:
            return
        newest = history.newest()
        if newest is not None and was_reset(newest, reading):
            history.forget_process()
        history.readings.append(reading)
        await self._learn_capability(target, pod, history, reading, now_seconds)

    async def _read(self, target: Target, pod: PodFacts, history: PodHistory, now_seconds: float) -> PodReading:
        """The first engine whose paths give a usable reading; with one engine configured, only that.

        The engine that has answered before is asked first.
        """
        candidates = [ENGINES[target.engine]] if target.engine in ENGINES else list(ENGINES.values())
        newest = history.newest()
        if newest is not None:
            candidates.sort(key=lambda engine: engine.type is not newest.engine)
        last: PodReading | Unusable = Unusable(ScrapeFault.WRONG_ENGINE)
        for engine in candidates:
            assert pod.address is not None
            try:
                paths, port = engine.load_paths(history.capability), _port(target, pod, engine)
                answers = await self._scraper.first_group(pod.address, port, paths)
            except Unusable as unusable:
                last = unusable
                continue
            last = engine.read(answers, now_seconds, history.newest())
            if last.fault is None:
                history.port = port
                return last
        if isinstance(last, Unusable):
            raise last
        return last

    async def _learn_capability(
        self, target: Target, pod: PodFacts, history: PodHistory, reading: PodReading, now_seconds: float
    ) -> None:
        if reading.engine is None or now_seconds < history.capability_due_seconds or pod.address is None:
            return
        engine = ENGINES[reading.engine]
        info = None
        for path in engine.info_paths:
            try:
                answer = await self._scraper.fetch(pod.address, _port(target, pod, engine), path)
            except Unusable:
                break
            if answer.status == 200:
                info = answer
                break
        told = engine.capability(info, target.container, target.files)
        if told is not None:
            history.capability = told
        pause = CAPABILITY_SECONDS if info is not None else CAPABILITY_RETRY_SECONDS
        history.capability_due_seconds = now_seconds + pause


def _port(target: Target, pod: PodFacts, engine: Engine) -> int:
    if target.port is not None:
        return target.port
    if engine.default_port in pod.ports or len(pod.ports) != 1:
        return engine.default_port
    return pod.ports[0]


def _observation(pod: PodFacts, history: PodHistory, now_seconds: float) -> PodObservation:
    newest = history.newest()
    fresh = [reading for reading in history.readings if reading.observed_at_seconds > now_seconds - WINDOW_SECONDS]
    rates = pod_rates(fresh) if fresh else PodRates()
    return PodObservation(
        name=pod.name,
        uid=pod.uid,
        phase=pod.phase,
        address=pod.address,
        template_hash=pod.template_hash,
        created_at_seconds=pod.created_at_seconds,
        ready_at_seconds=pod.ready_at_seconds,
        restarts=pod.restarts,
        reading=newest,
        reading_age_seconds=None if newest is None else max(0.0, now_seconds - newest.observed_at_seconds),
        fault=history.fault,
        fault_detail=history.fault_detail,
        output_tokens_per_second=rates.output_tokens_per_second,
        acceptance_length=rates.acceptance_length,
        time_per_output_token_seconds=rates.time_per_output_token_seconds,
        time_to_first_token_seconds=rates.time_to_first_token_seconds,
        capability=history.capability,
        port=history.port,
    )
