"""pytest fixtures: one control plane and one kubelet per worker, one fresh namespace per test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.api_server.control_plane import ControlPlane
from tests.api_server.kubelet import Kubelet

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A running control plane with audit log, shared by the tests of one worker."""
    with ControlPlane(audit=True) as started:
        yield started


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    """Starts pods of the shared control plane: emulated engines and plain commands."""
    with Kubelet(plane) as started:
        yield started


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    """A fresh namespace; nothing deletes it, the control plane is thrown away as a whole."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    plane.create_namespace(name)
    return name
