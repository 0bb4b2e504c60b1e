"""Pods, kept slim: one watch for each namespace in use, and the pods of a selector without asking the API server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from crossover.api.fleet import PodFacts, PodPhase
from crossover.cluster import selectors
from crossover.cluster.client import Client
from crossover.cluster.watch import Clock, ListWatch, WatchState

HASH_LABELS = ("pod-template-hash", "controller-revision-hash")
_WORD = re.compile(r"[A-Za-z]{1,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_VIEWS = 1024
"""Selectors remembered in one namespace; the one asked for longest ago makes room."""


class _OwnerReference(msgspec.Struct):
    uid: str
    controller: bool = False


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: list[_OwnerReference] = msgspec.field(default_factory=list)


class _Port(msgspec.Struct, rename="camel"):
    container_port: int


class _Container(msgspec.Struct):
    name: str
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] = msgspec.field(default_factory=list)


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    reason: str | None = None
    last_transition_time: datetime | None = None


class _Waiting(msgspec.Struct):
    reason: str | None = None


class _State(msgspec.Struct):
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    image_id: str = msgspec.field(name="imageID", default="")
    restart_count: int = 0
    state: _State | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[_Condition] = msgspec.field(default_factory=list)
    container_statuses: list[_ContainerStatus] = msgspec.field(default_factory=list)
    init_container_statuses: list[_ContainerStatus] = msgspec.field(default_factory=list)


class WirePod(msgspec.Struct):
    """The fields of a Pod that are decoded; everything else is skipped over."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


def pod_facts(pod: WirePod) -> PodFacts:
    """What is kept of a pod."""
    meta, status = pod.metadata, pod.status
    ready = next((item for item in status.conditions if item.type == "Ready"), None)
    scheduled = next((item for item in status.conditions if item.type == "PodScheduled"), None)
    is_ready = ready is not None and ready.status == "True"
    containers = [*status.init_container_statuses, *status.container_statuses]
    return PodFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=meta.labels,
        address=status.pod_ip or None,
        phase=_phase(pod, is_ready),
        template_hash=next((meta.labels[label] for label in HASH_LABELS if label in meta.labels), None),
        created_at_seconds=_seconds(meta.creation_timestamp) or 0.0,
        ready_at_seconds=_seconds(ready.last_transition_time) if ready is not None and is_ready else None,
        restarts=sum(item.restart_count for item in containers),
        ports=tuple(port.container_port for container in pod.spec.containers for port in container.ports or ()),
        node=pod.spec.node_name,
        waiting_reason=next((word for item in containers if (word := _waiting(item))), None),
        owner_uid=next((owner.uid for owner in meta.owner_references if owner.controller), None),
        unschedulable=scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable",
        deleted_at_seconds=_seconds(meta.deletion_timestamp),
        image_digests=tuple(
            (item.name, digest) for item in status.container_statuses if (digest := image_digest(item.image_id))
        ),
    )


def image_digest(image_id: str) -> str | None:
    """``"sha256:..."`` of a container's imageID. Runtimes write ``REPOSITORY@sha256:...``, some with ``docker-pullable://``
    before it. Without a repository it is the digest of the local image's configuration, which is not comparable."""
    repository, at, digest = image_id.rpartition("@")
    return digest if at and repository and _DIGEST.fullmatch(digest) else None


def _phase(pod: WirePod, is_ready: bool) -> PodPhase:
    """Deletion first: a pod that drains is still ready, and still counts as going."""
    if pod.metadata.deletion_timestamp is not None:
        return PodPhase.TERMINATING
    if pod.status.phase in ("Failed", "Succeeded"):
        return PodPhase.FAILED
    return PodPhase.READY if is_ready else PodPhase.PENDING


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _waiting(container: _ContainerStatus) -> str | None:
    """Kubernetes' own word; anything else a runtime may put there is not passed on."""
    if container.state is None or container.state.waiting is None:
        return None
    reason = container.state.waiting.reason or ""
    return reason if _WORD.fullmatch(reason) else None


class _Namespace:
    """The pods of one namespace and the views on them, fed by its watch."""

    def __init__(self, changed: Callable[[PodFacts], None]) -> None:
        self.pods: dict[str, PodFacts] = {}
        self.users: set[Hashable] = set()
        self._views: dict[str, dict[str, PodFacts]] = {}
        self._changed = changed

    def replace(self, items: Sequence[WirePod]) -> None:
        before, self.pods = self.pods, {item.metadata.name: pod_facts(item) for item in items}
        self._views.clear()
        for name, pod in self.pods.items():
            if before.pop(name, None) != pod:
                self._changed(pod)
        for pod in before.values():
            self._changed(pod)

    def put(self, item: WirePod) -> None:
        pod = pod_facts(item)
        if self.pods.get(pod.name) == pod:
            return
        self.pods[pod.name] = pod
        for selector, view in self._views.items():
            if selectors.parse(selector)(pod.labels):
                view[pod.name] = pod
            else:
                view.pop(pod.name, None)
        self._changed(pod)

    def drop(self, item: WirePod) -> None:
        pod = self.pods.pop(item.metadata.name, None)
        for view in self._views.values():
            view.pop(item.metadata.name, None)
        if pod is not None:
            self._changed(pod)

    def select(self, selector: str) -> tuple[PodFacts, ...]:
        view = self._views.pop(selector, None)
        if view is None:
            matches = selectors.parse(selector)
            view = {name: pod for name, pod in self.pods.items() if matches(pod.labels)}
            if len(self._views) >= MAX_VIEWS:
                del self._views[next(iter(self._views))]
        self._views[selector] = view
        return tuple(view.values())


class PodCache:
    """The pods of every namespace that somebody uses. All calls from one event loop.

    ``on_change`` is told every pod that came, changed in what is kept of it, or went (its last facts).
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_change: Callable[[PodFacts], None] = lambda pod: None,
    ) -> None:
        self._client, self._clock, self._on_change = client, clock, on_change
        self._namespaces: dict[str, _Namespace] = {}
        self._watches: dict[str, tuple[ListWatch[WirePod], asyncio.Task[None]]] = {}

    def use(self, user: Hashable, namespace: str) -> WatchState:
        """Keep the pods of ``namespace`` for ``user`` until `release`; the first user starts its watch. Repeatable."""
        if namespace not in self._namespaces:
            pods = self._namespaces[namespace] = _Namespace(self._on_change)
            watch = ListWatch(self._client, f"/api/v1/namespaces/{namespace}/pods", WirePod, pods, self._clock)
            self._watches[namespace] = (watch, asyncio.create_task(watch.run(), name=f"watch pods {namespace}"))
        self._namespaces[namespace].users.add(user)
        return self._watches[namespace][0].state

    async def release(self, user: Hashable) -> None:
        """``user`` needs no pods any more; the last user of a namespace ends its watch."""
        for name, namespace in list(self._namespaces.items()):
            namespace.users.discard(user)
            if not namespace.users:
                await self._end(name)

    def state(self, namespace: str) -> WatchState | None:
        """How the watch of a namespace is doing; None = nobody uses it."""
        watch = self._watches.get(namespace)
        return None if watch is None else watch[0].state

    def select(self, namespace: str, selector: str) -> tuple[PodFacts, ...]:
        """The pods with these labels, as far as the watch has told. An empty selector selects none.

        Raises `SelectorError`. Before the first list has come (`state(namespace).synced`) the answer is no fact.
        """
        known = self._namespaces.get(namespace)
        return () if known is None else known.select(selector)

    async def close(self) -> None:
        for name in list(self._namespaces):
            await self._end(name)

    async def _end(self, name: str) -> None:
        del self._namespaces[name]
        _, task = self._watches.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
