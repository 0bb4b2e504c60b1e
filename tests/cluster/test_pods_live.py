"""The pod cache against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from crossover.api.fleet import PodPhase
from crossover.cluster.client import Client
from crossover.cluster.pods import PodCache
from crossover.controller.clock import SystemClock
from tests.api_server import ControlPlane

pytestmark = [pytest.mark.api_server, pytest.mark.xdist_group("edge")]


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with await Client.connect(kubeconfig=plane.kubeconfig) as connected:
        yield connected


def pod(name: str, **labels: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": "elsewhere",
            "containers": [{"name": "server", "image": "none", "ports": [{"containerPort": 30000}]}],
        },
    }


async def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.02)


async def test_pods_come_change_and_go(plane: ControlPlane, namespace: str, client: Client) -> None:
    cache = PodCache(client, SystemClock())
    state = cache.use("fleet", namespace)
    await asyncio.wait_for(state.ready.wait(), 20)
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.request("POST", path, pod("a-1", app="a"))
    plane.request("POST", path, pod("b-1", app="b"))
    await until(lambda: cache.select(namespace, "app=a") and cache.select(namespace, "app=b"))
    (seen,) = cache.select(namespace, "app=a")
    assert (seen.name, seen.phase, seen.ports) == ("a-1", PodPhase.PENDING, (30000,))
    status = {
        "status": {
            "phase": "Running",
            "podIP": "127.1.1.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-12-01T10:00:00Z"}],
        }
    }
    plane.request("PATCH", f"{path}/a-1/status", status, content_type="application/merge-patch+json")
    await until(lambda: cache.select(namespace, "app=a")[0].phase is PodPhase.READY)
    (seen,) = cache.select(namespace, "app=a")
    assert (seen.address, seen.ready_at_seconds) == ("127.1.1.1", 1796119200.0)
    relabel = {"metadata": {"labels": {"app": "b"}}}
    plane.request("PATCH", f"{path}/a-1", relabel, content_type="application/merge-patch+json")
    await until(lambda: len(cache.select(namespace, "app=b")) == 2)
    assert cache.select(namespace, "app=a") == ()
    plane.request("DELETE", f"{path}/a-1", {"gracePeriodSeconds": 0})
    await until(lambda: len(cache.select(namespace, "app=b")) == 1)
    await cache.release("fleet")
    assert cache.state(namespace) is None
    await cache.close()


async def test_api_server_restart_under_a_watch_loses_nothing(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    cache = PodCache(client, SystemClock())
    state = cache.use("fleet", namespace)
    await asyncio.wait_for(state.ready.wait(), 20)
    plane.restart_api_server()  # not in a thread: the server would end with it
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.request("POST", path, pod("after", app="a"))
    await until(lambda: cache.select(namespace, "app=a"), 60)
    assert state.fault is None
    await cache.close()


async def test_a_list_comes_in_chunks(plane: ControlPlane, namespace: str, client: Client) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(7):
        plane.request("POST", path, pod(f"p-{number}", app="many"))
    from crossover.cluster import pods, watch

    class Sink:
        items: list[str] = []  # noqa: RUF012

        def replace(self, items: object) -> None:
            self.items = [item.metadata.name for item in items]  # type: ignore[attr-defined]

        def put(self, item: object) -> None: ...

        def drop(self, item: object) -> None: ...

    sink = Sink()
    reflector = watch.ListWatch(client, path, pods.WirePod, sink, SystemClock(), chunk=3)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.state.ready.wait(), 20)
    task.cancel()
    assert sorted(sink.items) == [f"p-{number}" for number in range(7)]
