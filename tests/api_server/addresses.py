"""Loopback addresses for pods: a /16 of 127.0.0.0/8 for each kubelet, several side by side."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator


class AddressPool:
    """Holds one 127.X.0.0/16 by listening on its last address for as long as the pool lives."""

    def __init__(self) -> None:
        for second in range(16, 250):
            guard = socket.socket()
            try:
                guard.bind((f"127.{second}.255.254", 65000))
                guard.listen(1)
            except OSError:
                guard.close()
                continue
            self._guard, self._second = guard, second
            self._next = self._addresses()
            return
        raise RuntimeError("no free 127.X.0.0/16: too many kubelets run side by side")

    def take(self) -> str:
        return next(self._next)

    def close(self) -> None:
        self._guard.close()

    def _addresses(self) -> Iterator[str]:
        for third, fourth in itertools.product(range(255), range(1, 255)):
            yield f"127.{self._second}.{third}.{fourth}"
