"""One point on one scratch pod: what it is asked, and what a failure means for the rest."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace

import httpx

from crossover.api.faults import ClusterError
from crossover.api.resources import CalibrationSpec
from crossover.api.resources.calibration import KeyRef
from crossover.calibrate import measure as calibrate
from crossover.calibrate.contract import (
    Ask,
    Described,
    FailureReason,
    Measured,
    MeasureFailure,
    Precision,
    Server,
)
from crossover.calibrate.forced import not_forced
from crossover.calibrate.workload import Workload, WorkloadError
from crossover.cluster.client import Client
from crossover.controller.calibration.environment import environment_of, measured_on, mixed, since
from crossover.controller.calibration.lengths import lengths_of
from crossover.controller.calibration.pods import ScratchPod
from crossover.controller.calibration.run import Run
from crossover.controller.calibration.subject import Subject
from crossover.controller.machine import Machines
from crossover.decide.variant import Variant
from crossover.report.calibration import Why

ENDS_ALL = frozenset(
    {
        FailureReason.UNAUTHORIZED,
        FailureReason.WRONG_MODEL,
        FailureReason.WRONG_ENGINE,
        FailureReason.METRICS_OFF,
        FailureReason.REJECTED,
    }
)
"""The same on every pod: the user has to change something."""
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Failed:
    """No number, and what follows from it."""

    reason: str
    message: str
    ends_all: bool = False
    """The same on every pod."""
    lasting: bool = False
    """Not worth another pod until the spec or the pod template changes."""
    pod_is_gone: bool = False
    never_answered: bool = False
    """Not since it was started: without a readiness probe a pod is ready while its server still loads."""


class Measuring:
    """Measurements against pods. ``precision`` is a setting of the operator's, for tests."""

    def __init__(self, client: Client, http: httpx.AsyncClient, precision: Precision, machines: Machines) -> None:
        self._client, self._http, self._precision, self._machines = client, http, precision, machines

    async def point(
        self, namespace: str, run: Run, spec: CalibrationSpec, subject: Subject, ask: Ask, pod: ScratchPod
    ) -> Measured | Failed:
        """Never raises but for cancellation."""
        try:
            workload = await self._workload(namespace, spec)
            described = await self._described(namespace, run, spec, subject, ask, pod)
            measured = await calibrate.measure(
                described, ask.running_requests, workload, http=self._http, precision=self._precision
            )
        except MeasureFailure as failure:
            return self._failed(run, ask, pod, failure)
        except WorkloadError as error:
            return Failed(Why.TRACE, f"spec.workload: {error}", ends_all=True)
        except _Unreadable as error:
            return Failed(error.reason, str(error), ends_all=True)
        caveat = not_forced(subject.forcing.acceptance, measured.point) if subject.forcing is not None else None
        return measured if caveat is None else replace(measured, caveats=(*measured.caveats, caveat))

    async def preflight(self, namespace: str, spec: CalibrationSpec) -> Failed | None:
        """What the spec refers to can be read: asked before a pod, and its accelerators, are asked for."""
        try:
            await self._workload(namespace, spec)
            await self._token(namespace, spec.api_key_secret_ref)
        except WorkloadError as error:
            return Failed(Why.TRACE, f"spec.workload: {error}", ends_all=True)
        except _Unreadable as error:
            return Failed(error.reason, str(error), ends_all=True)
        return None

    async def describe(
        self,
        namespace: str,
        run: Run,
        spec: CalibrationSpec,
        subject: Subject,
        variant: Variant,
        pod: ScratchPod,
        ask: Ask,
    ) -> Failed | None:
        """Ask a pod what it is, without load; `run.described` then knows it. ``ask``: what that is wanted for, and what is
        given up when it does not tell."""
        try:
            await self._described(namespace, run, spec, subject, Ask(variant, 1), pod)
        except MeasureFailure as failure:
            return self._failed(run, ask, pod, failure)
        except _Unreadable as error:
            return Failed(error.reason, str(error), ends_all=True)
        return None

    async def _described(
        self, namespace: str, run: Run, spec: CalibrationSpec, subject: Subject, ask: Ask, pod: ScratchPod
    ) -> Described:
        known = run.described.get(pod.uid)
        if known is not None:
            return known
        server = Server(
            f"http://{pod.address}:{subject.port}",
            subject.engine,
            spec.model,
            ask.variant,
            await self._token(namespace, spec.api_key_secret_ref),
        )
        described = await calibrate.describe(server, http=self._http, template=(subject.container, subject.files))
        run.described[pod.uid] = described
        container = str(subject.container["name"])
        version = described.capability.version if described.capability is not None else None
        now = environment_of(subject.workload, subject.container, subject.files, subject.engine, version)
        machine = await self._machines.of_pods([pod.facts] if pod.facts is not None else [], container)
        now = measured_on(now, machine)
        run.caveat(mixed(run.environment, now))
        run.environment = since(run.environment, now)
        return described

    def _failed(self, run: Run, ask: Ask, pod: ScratchPod, failure: MeasureFailure) -> Failed:
        if failure.reason in ENDS_ALL:
            return Failed(failure.reason, failure.message, ends_all=True, lasting=True)
        if failure.reason is FailureReason.UNREACHABLE and pod.uid not in run.described:
            return Failed(failure.reason, failure.message, never_answered=True)
        run.tries[ask] = run.tries.get(ask, 0) + 1
        is_gone = failure.reason is FailureReason.SERVER_DIED
        if run.tries[ask] >= MOST_TRIES:
            run.give_up(ask, failure.reason, failure.message)
        if is_gone:
            run.described.pop(pod.uid, None)
        return Failed(failure.reason, failure.message, pod_is_gone=is_gone)

    async def _workload(self, namespace: str, spec: CalibrationSpec) -> Workload:
        wanted = spec.workload
        if wanted.trace_ref is None:
            return lengths_of(wanted)
        text = await self._key(namespace, "configmaps", wanted.trace_ref, "spec.workload.traceRef", Why.TRACE)
        return Workload.of_trace(text)

    async def _token(self, namespace: str, ref: KeyRef | None) -> str | None:
        if ref is None:
            return None
        encoded = await self._key(namespace, "secrets", ref, "spec.apiKeySecretRef", Why.SECRET)
        try:
            return base64.b64decode(encoded, validate=True).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            raise _Unreadable(Why.SECRET, f"spec.apiKeySecretRef: key {ref.key} holds no text") from None

    async def _key(self, namespace: str, kind: str, ref: KeyRef, field: str, reason: Why) -> str:
        """One key of a ConfigMap or Secret; nothing of its content reaches a message."""
        try:
            body = await self._client.get(f"/api/v1/namespaces/{namespace}/{kind}/{ref.name}")
        except ClusterError as fault:
            hint = (
                f"; grant the operator's ServiceAccount get on this Secret by a Role with resourceNames: [{ref.name}]"
                if kind == "secrets" and fault.status == 403
                else ""
            )
            raise _Unreadable(reason, f"{field}: {kind} {ref.name} cannot be read ({fault.code}){hint}") from None
        data = body.get("data") or {}
        if ref.key not in data:
            raise _Unreadable(reason, f"{field}: {kind} {ref.name} has no key {ref.key}")
        return str(data[ref.key])


class _Unreadable(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, reason: Why, message: str) -> None:
        super().__init__(message)
        self.reason = reason
