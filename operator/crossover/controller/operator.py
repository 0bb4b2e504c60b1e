"""The operator process: everything put together, started in order, stopped in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import kopf
import structlog

from crossover.api.faults import ClusterError
from crossover.api.resources import GROUP, VERSION
from crossover.calibrate.contract import Precision
from crossover.calibrate.probe import open_http
from crossover.cluster.client import Client
from crossover.cluster.conflicts import Rivals
from crossover.cluster.events import Recorder
from crossover.cluster.kinds import Kinds
from crossover.cluster.lease import Elector
from crossover.cluster.nodes import Nodes
from crossover.cluster.pods import PodCache
from crossover.cluster.workload import Workloads
from crossover.cluster.writer import Writer
from crossover.controller import health
from crossover.controller.calibration.measuring import Measuring
from crossover.controller.calibration.pods import ScratchPods
from crossover.controller.calibration.reconcile import CalibrationParts, CalibrationReconciler
from crossover.controller.calibration.reporter import CalibrationReporter
from crossover.controller.calibration.store import Calibrations
from crossover.controller.clock import SystemClock
from crossover.controller.fleets import Fleets
from crossover.controller.handlers import CALIBRATIONS, PLURAL, operator_settings, registry
from crossover.controller.hands import Hands
from crossover.controller.machine import Machines
from crossover.controller.reconcile import Parts, Reconciler
from crossover.controller.reporter import Reporter
from crossover.controller.settings import OperatorSettings
from crossover.controller.target import TargetFinder
from crossover.controller.ticker import Ticker
from crossover.observe.observer import Observer
from crossover.observe.scraper import Scraper
from crossover.report.metrics import OperatorMetrics

STALLED_SECONDS = 120.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Operator:
    """One process. `run` returns the exit status."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._fleets = Fleets()
        self._calibrations = Calibrations()
        self._metrics = OperatorMetrics()
        self._log = structlog.get_logger("crossover.operator")
        self._lost = asyncio.Event()
        self._in_election: Elector | None = None
        self._ready = False

    async def run(self) -> int:
        settings = self._settings
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await Client.connect())
            scraper = await stack.enter_async_context(
                Scraper(timeout_seconds=settings.scrape_timeout_seconds, concurrency=settings.scrape_concurrency)
            )
            identity = settings.identity or socket.gethostname()
            elector = self._in_election = self._elector(client, identity)
            pods = PodCache(client, self._clock, self._pod_changed)
            stack.push_async_callback(pods.close)
            kinds = Kinds(client, self._clock)
            workloads = Workloads(client, kinds)
            recorder = Recorder(client, self._clock, instance=identity)
            rivals = Rivals(client, kinds, self._clock)
            machines = Machines(pods, Nodes(client, self._clock))
            parts = self._parts(client, scraper, pods, TargetFinder(workloads, rivals), workloads, recorder, machines)
            reconciler = Reconciler(parts, lambda: self._leads(elector))
            self._ticker = Ticker(reconciler.tick, self._clock, workers=settings.workers)
            http = await stack.enter_async_context(open_http())
            measuring = CalibrationReconciler(
                self._calibration_parts(client, http, workloads, recorder, machines), lambda: self._leads(elector)
            )
            self._calibration_ticker = Ticker(measuring.tick, self._clock, workers=settings.calibrations)
            runner, port = await health.serve(
                settings.metrics_address, settings.metrics_port, self._metrics.registry, self._alive, self._serving
            )
            stack.push_async_callback(runner.cleanup)
            self._log.info("started", identity=identity, metrics_port=port, namespaces=settings.namespaces or "all")
            return await self._until_stopped(client, elector)

    async def _until_stopped(self, client: Client, elector: Elector | None) -> int:
        """Until a signal (0), or until the lease or a watch is lost (1: a restart heals)."""
        await self._list(client)
        self._ready = True
        # Our tasks are older than kopf's, so that it does not cancel them when it ends.
        tasks = [
            asyncio.create_task(self._ticker.run(), name="ticker"),
            asyncio.create_task(self._calibration_ticker.run(), name="calibrations"),
        ]
        if elector is not None:
            tasks.append(asyncio.create_task(elector.run(), name="elector"))
        stop = asyncio.Event()
        watching = asyncio.create_task(self._watch(stop), name="kopf")
        lost = asyncio.create_task(self._lost.wait(), name="lease lost")
        try:
            done, _ = await asyncio.wait({watching, lost, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in done if task is not watching or task.exception() is not None]
            for task in failed:
                self._log.error("stopping", because=task.get_name())
            return 1 if failed else 0
        finally:
            self._ready = False
            stop.set()
            for task in (*tasks, lost):
                task.cancel()
            for task in (watching, *tasks, lost):
                with suppress(asyncio.CancelledError, Exception):
                    await task
            if elector is not None:
                await elector.release()
            self._log.info("stopped")

    async def _watch(self, stop: asyncio.Event) -> None:
        namespaces = self._settings.namespaces
        await kopf.operator(
            registry=registry(
                {
                    PLURAL: (self._seen, self._gone),
                    CALIBRATIONS: (self._calibration_seen, self._calibration_gone),
                }
            ),
            settings=operator_settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            stop_flag=stop,
        )

    async def _list(self, client: Client) -> None:
        """Everybody at once, before the first tick: an older ModelAutoscaler must be known before a younger one acts."""
        places = [f"namespaces/{name}/" for name in self._settings.namespaces] or [""]
        for plural, seen in ((CALIBRATIONS, self._calibration_seen), (PLURAL, self._seen)):
            for place in places:
                try:
                    listed = await client.get(f"/apis/{GROUP}/{VERSION}/{place}{plural}")
                except ClusterError as error:
                    self._log.error("resources cannot be listed", resources=plural, fault=str(error))
                    raise
                for body in listed.get("items") or []:
                    seen(body)

    # -- wiring -------------------------------------------------------------------------------------------------------

    def _parts(
        self,
        client: Client,
        scraper: Scraper,
        pods: PodCache,
        finder: TargetFinder,
        workloads: Workloads,
        recorder: Recorder,
        machines: Machines,
    ) -> Parts:
        return Parts(
            fleets=self._fleets,
            pods=pods,
            finder=finder,
            observer=Observer(scraper),
            hands=Hands(Writer(client), workloads, scraper.door),
            reporter=Reporter(client, recorder, self._metrics),
            calibrations=self._calibrations,
            machines=machines,
            clock=self._clock,
        )

    def _calibration_parts(
        self,
        client: Client,
        http: httpx.AsyncClient,
        workloads: Workloads,
        recorder: Recorder,
        machines: Machines,
    ) -> CalibrationParts:
        settings = self._settings
        precision = Precision(
            settings.calibration_relative_error,
            settings.calibration_least_seconds,
            settings.calibration_most_seconds,
        )
        return CalibrationParts(
            calibrations=self._calibrations,
            workloads=workloads,
            pods=ScratchPods(client, Writer(client)),
            measuring=Measuring(client, http, precision, machines),
            reporter=CalibrationReporter(client, recorder, self._clock),
            machines=machines,
            clock=self._clock,
        )

    def _elector(self, client: Client, identity: str) -> Elector | None:
        settings = self._settings
        if not settings.leader_election:
            return None
        namespace = settings.lease_namespace
        if not namespace:
            namespace = NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"
        return Elector(
            client,
            namespace=namespace,
            name=settings.lease_name,
            identity=identity,
            clock=self._clock,
            on_lost=self._lost.set,
        )

    def _leads(self, elector: Elector | None) -> bool:
        return elector is None or elector.is_leader

    # -- what happens -------------------------------------------------------------------------------------------------

    def _seen(self, body: Mapping[str, Any]) -> None:
        """A new or changed spec is looked at at once; our own status writes change nothing and wait for the interval."""
        meta = body["metadata"]
        known = self._fleets.get((meta["namespace"], meta["name"]))
        generation = known.body["metadata"].get("generation") if known is not None else None
        key = self._fleets.put(body, leading=self._leads(self._in_election))
        if known is None or known.uid != meta["uid"] or generation != meta.get("generation"):
            self._ticker.want(key)

    def _gone(self, body: Mapping[str, Any]) -> None:
        """The fleet runs on as it is; others may have waited for its target."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._fleets.get(key)
        if known is not None and known.uid == meta["uid"]:
            self._fleets.drop(key)
            self._metrics.forget(*key)
            self._ticker.want(key)

    def _calibration_seen(self, body: Mapping[str, Any]) -> None:
        key, is_new = self._calibrations.put(body, leading=self._leads(self._in_election))
        if is_new:
            self._calibration_ticker.want(key)

    def _calibration_gone(self, body: Mapping[str, Any]) -> None:
        key = self._calibrations.drop(body)
        if key is not None:
            self._calibration_ticker.want(key)

    def _pod_changed(self, pod: Any) -> None:
        for fleet in self._fleets.in_namespace(pod.namespace):
            fleet.touch()

    def _alive(self) -> str | None:
        age = self._clock.now() - self._ticker.last_progress_seconds
        return None if age < STALLED_SECONDS else f"no tick was started for {age:.0f} s"

    def _serving(self) -> str | None:
        return None if self._ready else "starting or stopping"


async def run(settings: OperatorSettings) -> int:
    return await Operator(settings).run()
