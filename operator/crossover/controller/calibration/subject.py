"""What is to be measured: the target's template, and how to start it as each variant."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crossover.act.mark import mark_of
from crossover.act.template import pick_container
from crossover.api.fleet import Capability, EngineType, SpeculationSettings
from crossover.api.resources import CalibrationSpec
from crossover.api.workload import TargetRef, Workload
from crossover.calibrate.between import Forcing
from crossover.calibrate.forced import ForcedAcceptance
from crossover.cluster.workload import Workloads
from crossover.decide.variant import GATED, OFF, Variant
from crossover.engines import ENGINES
from crossover.engines.contract import ContainerEdit, Refusal, WantedSpeculation


@dataclass(frozen=True, slots=True)
class Subject:
    """A template that can be started in several ways."""

    workload: Workload
    container: Mapping[str, Any]
    files: Mapping[str, str]
    engine: EngineType
    settings: SpeculationSettings
    removed: Mapping[str, Any]
    variants: tuple[Variant, ...]
    port: int
    most_seconds: int = 86400
    """How long a scratch pod may live at most."""
    forcing: Forcing | None = None
    """Pods accept draft tokens as told."""

    @property
    def digest(self) -> str:
        """Of everything that a scratch pod is made from."""
        told = [(self.workload.template or {}).get("spec"), self.files, self.container["name"]]
        if self.forcing is not None:
            told.append(asdict(self.forcing.acceptance))
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def capability(self) -> Capability:
        """As far as the template tells."""
        told = ENGINES[self.engine].capability(None, self.container, self.files)
        return told or Capability(self.engine, None, None)

    def edit(self, variant: Variant, told: Capability | None = None) -> ContainerEdit:
        """How the container is changed to run as ``variant``. Raises `Refusal`."""
        engine = ENGINES[self.engine]
        return engine.edit(self.container, self.files, self._wanted(variant), told or self.capability, self.removed)

    def _wanted(self, variant: Variant) -> WantedSpeculation:
        if variant.off:
            return WantedSpeculation(False)
        if variant == GATED:
            # Engines refuse a schedule that never drafts: it drafts for a single request, which is not measured as gated.
            drafts = [item.draft_tokens for item in self.variants if item.draft_tokens]
            return WantedSpeculation(True, schedule=((1, max(drafts)), (2, 0)))
        forced = self.forcing.acceptance.length(variant.draft_tokens) if self.forcing is not None else None
        return WantedSpeculation(True, draft_tokens=variant.draft_tokens, forced_acceptance_length=forced)


async def find_subject(workloads: Workloads, namespace: str, spec: CalibrationSpec) -> Subject:
    """Raises `Refusal` for what the user can mend, `ClusterError` and `KindError` for the rest."""
    target = spec.target_ref
    assert target is not None
    workload = await workloads.read(namespace, TargetRef(target.api_version, target.kind, target.name))
    if workload.template is None:
        raise Refusal(
            "NoPodTemplate",
            f"a {target.kind} keeps no pod template in spec.template.",
            field="spec.targetRef.kind",
            fix="Name a Deployment or StatefulSet.",
        )
    container = pick_container(workload.template, spec.engine.container, spec.engine.port)
    files = await workloads.files(workload, str(container["name"]))
    engine, settings = _settings(container, files, spec.engine.type)
    mark = mark_of(workload.template)
    removed = mark.removed if mark is not None and mark.container == container["name"] else {}
    port = spec.engine.port or _port(container) or ENGINES[engine].default_port
    drafts = _draft_tokens(spec, settings)
    forcing = _forcing(spec, drafts)
    variants = _variants(spec, drafts)
    most = spec.timeout_minutes * 60 + spec.startup_deadline_seconds
    return Subject(workload, container, files, engine, settings, removed, variants, port, most, forcing)


def _settings(
    container: Mapping[str, Any], files: Mapping[str, str], told: EngineType | None
) -> tuple[EngineType, SpeculationSettings]:
    """The engine named, or the only one whose speculation the container asks for."""
    if told is not None:
        return told, ENGINES[told].read_settings(container, files)
    found = []
    for kind, engine in ENGINES.items():
        try:
            settings = engine.read_settings(container, files)
        except Refusal:
            continue
        if settings.enabled:
            found.append((kind, settings))
    if len(found) == 1:
        return found[0]
    raise Refusal(
        "EngineUnknown",
        "the container's arguments do not tell which engine it is.",
        field="spec.engine.type",
        fix=f"Set it to one of {', '.join(str(kind) for kind in ENGINES)}.",
    )


def _draft_tokens(spec: CalibrationSpec, settings: SpeculationSettings) -> tuple[int, ...]:
    drafts = spec.draft_tokens or ([settings.draft_tokens] if settings.draft_tokens else None)
    if drafts is None:
        raise Refusal(
            "DraftLengthUnknown",
            "the pod template asks for no draft length, so there is nothing to compare.",
            field="spec.draftTokens",
            fix="Give the draft lengths to measure, and the speculation arguments in the pod template.",
        )
    return tuple(sorted(set(drafts)))


def _forcing(spec: CalibrationSpec, draft_tokens: tuple[int, ...]) -> Forcing | None:
    wanted = spec.forced_acceptance
    if wanted is None:
        return None
    if wanted.acceptance_length is not None and wanted.draft_tokens is not None:
        return Forcing(draft_tokens, ForcedAcceptance.of_length(wanted.acceptance_length, wanted.draft_tokens))
    acceptance = ForcedAcceptance(tuple(wanted.by_position or ()))
    if acceptance.longest is not None and draft_tokens[-1] > acceptance.longest:
        raise Refusal(
            "ForcedAcceptanceTooShort",
            f"{acceptance.longest} positions are given, and the longest draft has {draft_tokens[-1]} tokens.",
            field="spec.forcedAcceptance.byPosition",
            fix="Give a share for every position, or shorter draft lengths in spec.draftTokens.",
        )
    return Forcing(draft_tokens, acceptance)


def _variants(spec: CalibrationSpec, draft_tokens: tuple[int, ...]) -> tuple[Variant, ...]:
    """Draft lengths first: they need the present template. With forced acceptance off comes first: its server tells the
    version, which decides how acceptance is forced, and whether it can be."""
    drafts = [Variant(draft) for draft in draft_tokens]
    zeros = ([GATED] if spec.include_gated else []) + ([OFF] if spec.include_off else [])
    if not zeros:
        raise Refusal(
            "NothingToCompareWith",
            "neither includeOff nor includeGated is true, so nothing can cross.",
            field="spec.includeOff",
            fix="Set one of the two to true.",
        )
    return (*zeros[::-1], *drafts) if spec.forced_acceptance is not None else (*drafts, *zeros)


def _port(container: Mapping[str, Any]) -> int | None:
    ports = [item.get("containerPort") for item in container.get("ports") or []]
    return int(ports[0]) if len(ports) == 1 and ports[0] else None
