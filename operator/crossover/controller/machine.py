"""What a set of running pods really runs on and runs: the accelerators of their nodes, the digests of their images.

A template tells neither where a pod may run on several kinds of nodes, nor what a tag pointed to when it was pulled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from crossover.api.fleet import PodFacts, PodPhase
from crossover.cluster.nodes import Nodes
from crossover.cluster.pods import PodCache

GONE = (PodPhase.TERMINATING, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class Machine:
    """Unknown ones are left out, so empty = nothing is known."""

    products: frozenset[str] = frozenset()
    image_digests: frozenset[str] = frozenset()


NOTHING_KNOWN = Machine()


async def machine_of(pods: Iterable[PodFacts], container: str, nodes: Nodes) -> Machine:
    """``container``: the one whose image counts. Pods that end do not count."""
    products, digests = set(), set()
    for pod in pods:
        if pod.phase in GONE:
            continue
        digests |= {digest for name, digest in pod.image_digests if name == container}
        product = await nodes.product(pod.node) if pod.node else None
        if product is not None:
            products.add(product)
    return Machine(frozenset(products), frozenset(digests))


class Machines:
    """What pods run on, by their nodes."""

    def __init__(self, pods: PodCache, nodes: Nodes) -> None:
        self._pods, self._nodes = pods, nodes

    async def of_pods(self, pods: Iterable[PodFacts], container: str) -> Machine:
        return await machine_of(pods, container, self._nodes)

    async def of_fleet(self, user: Hashable, namespace: str, selector: str, container: str) -> Machine | None:
        """Of the pods that ``selector`` has now; None = they are not listed yet. ``user`` keeps them watched until
        `release`."""
        if not self._pods.use(user, namespace).synced:
            return None
        return await self.of_pods(self._pods.select(namespace, selector), container)

    async def release(self, user: Hashable) -> None:
        await self._pods.release(user)
