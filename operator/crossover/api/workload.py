"""The scale target as the API server shows it, and who else has a hand in it: plain data from `cluster` to `act`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TargetRef:
    """`spec.scaleTargetRef`: an object of the same namespace."""

    api_version: str
    kind: str
    name: str

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controlling owner of a workload: it may write the pod template again whenever it likes."""

    api_version: str
    kind: str
    name: str
    product: str | None = None
    """The product it belongs to where it is known (KServe, OME, RBG, Dynamo, LeaderWorkerSet)."""


@dataclass(frozen=True, slots=True)
class WorkloadCondition:
    type: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of the pod template that the workload's controller keeps (ReplicaSet, ControllerRevision)."""

    number: int
    template_hash: str
    template: Mapping[str, Any]
    replicas: int | None = None
    """Pods it has now; None = not told by this kind."""
    ready_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One look at the scale target. ``None`` = this kind does not tell, or has none."""

    ref: TargetRef
    namespace: str
    path: str
    """Of the object in the API, for writes."""
    uid: str
    resource_version: str
    generation: int
    observed_generation: int | None
    desired_replicas: int | None
    """`spec.replicas`, as the scale subresource gives it."""
    selector: str
    """Label selector of its pods, in the API's own notation. Empty = it names none."""
    replicas: int | None = None
    ready_replicas: int | None = None
    updated_replicas: int | None = None
    available_replicas: int | None = None
    revision: str | None = None
    """The template that pods are being brought to: a Deployment's revision number, a StatefulSet's revision name."""
    paused: bool = False
    """Deployment: `spec.paused`."""
    strategy: Mapping[str, Any] = field(default_factory=dict)
    """Deployment `spec.strategy`, StatefulSet `spec.updateStrategy`."""
    template: Mapping[str, Any] | None = None
    """`spec.template`. None = this kind keeps no pod template there."""
    conditions: tuple[WorkloadCondition, ...] = ()
    owner: Owner | None = None
    volume_claims: tuple[Mapping[str, Any], ...] = ()
    """StatefulSet: `spec.volumeClaimTemplates`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    managed_fields: tuple[Mapping[str, Any], ...] = ()

    @property
    def rollout_in_progress(self) -> bool:
        """Some pods are not of the newest template, or the controller has not looked at it yet.

        Pods of the newest template that are merely not ready do not count: that is what scaling up looks like.
        """
        if self.observed_generation is not None and self.observed_generation < self.generation:
            return True
        if self.updated_replicas is None or self.replicas is None:
            return False
        return self.updated_replicas < self.replicas

    def is_current(self, revision: Revision) -> bool:
        """True for the revision that pods are being brought to."""
        return self.revision in (str(revision.number), revision.template_hash)

    def condition(self, kind: str) -> WorkloadCondition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another autoscaler on the same target."""

    kind: str
    name: str
    min_replicas: int | None = None
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class FieldManager:
    """Who last wrote a field, by `metadata.managedFields`."""

    name: str
    operation: str
    """Apply or Update."""
    time: str | None = None
