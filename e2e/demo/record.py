"""What the demo saw with its own eyes: samples of the API server and of the emulated engines, twice a second.

Kept apart from the operator's own account, so that the story is checked against an independent witness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PodTruth:
    """One emulated engine, asked directly."""

    name: str
    running: int
    draft_tokens: int
    speculates: bool
    """Started with speculation."""
    draining: bool = False
    moves: tuple[tuple[float, int], ...] = ()
    """(wall time, new draft length), by the engine's own log."""


@dataclass(frozen=True)
class Sample:
    at_seconds: float
    replicas: int
    """spec.replicas of the Deployment."""
    ready: int
    template_generation: int
    """metadata.generation of the Deployment."""
    speculation_on: bool
    """The template's arguments ask for speculation."""
    pods: tuple[PodTruth, ...]

    @property
    def mean_running(self) -> float | None:
        serving = [pod.running for pod in self.pods if not pod.draining]
        return sum(serving) / len(serving) if serving else None


@dataclass
class FleetRecord:
    """The samples of one fleet, oldest first."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    requests_failed: int = 0
    requests_done: int = 0
    tokens_done: int = 0

    def first(self, wanted: Callable[[Sample], bool], *, after_seconds: float = 0.0) -> Sample | None:
        return next((sample for sample in self.samples if sample.at_seconds >= after_seconds and wanted(sample)), None)

    def held_since(self, wanted: Callable[[Sample], bool], *, before_seconds: float) -> float | None:
        """Start of the unbroken run of samples with ``wanted`` that was going on at ``before_seconds``."""
        since: float | None = None
        for sample in self.samples:
            if sample.at_seconds > before_seconds:
                break
            since = (since if since is not None else sample.at_seconds) if wanted(sample) else None
        return since
