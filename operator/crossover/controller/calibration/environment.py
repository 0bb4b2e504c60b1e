"""What a pod template says of the machine that a calibration is valid for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from crossover.act.mark import mark_of
from crossover.api.fleet import Capability, EngineType
from crossover.api.resources import CalibrationSpec
from crossover.api.workload import Workload
from crossover.calibrate.environment import Environment
from crossover.engines import ENGINES
from crossover.engines.contract import Refusal, WantedSpeculation

NAMES = {
    "engine": "the engine",
    "engine_version": "the engine's version",
    "image": "the image",
    "gpu": "the accelerator",
    "arguments": "the container's arguments (model, draft or others)",
}


def environment_of(
    workload: Workload,
    container: Mapping[str, Any],
    files: Mapping[str, str],
    engine: EngineType,
    version: str | None = None,
) -> Environment:
    """As far as the template tells. The draft length and the schedule do not count: changing them is what a calibration
    is for. Neither does the environment of the container, which may hold credentials."""
    return Environment(
        engine=str(engine),
        engine_version=version,
        image=str(container.get("image") or "") or None,
        gpu=_accelerator(workload, container),
        arguments=(_digest(_normal(workload, container, files, engine)),),
    )


def _normal(
    workload: Workload, container: Mapping[str, Any], files: Mapping[str, str], engine: EngineType
) -> list[Any]:
    """The command line as it would be with draft length 1, so that all draft lengths and "off" look the same."""
    mark = mark_of(workload.template or {})
    removed = mark.removed if mark is not None and mark.container == container["name"] else {}
    try:
        change = ENGINES[engine].edit(
            container, files, WantedSpeculation(True, draft_tokens=1), Capability(engine, None, None), removed
        )
    except Refusal:
        return [container.get("command") or [], container.get("args") or []]
    command = change.command if change.command is not None else container.get("command") or []
    args = change.args if change.args is not None else container.get("args") or []
    return [list(command), list(args), change.file.content if change.file is not None else None]


def _accelerator(workload: Workload, container: Mapping[str, Any]) -> str | None:
    """``"nvidia.com/gpu 4 on nvidia.com/gpu.product=H100"``; None = the template asks for none."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counts = [f"{name} {count}" for name, count in sorted(asked.items()) if "/" in name]
    selector = ((workload.template or {}).get("spec") or {}).get("nodeSelector") or {}
    where = [f"{name}={value}" for name, value in sorted(selector.items())]
    if not counts and not where:
        return None
    return ", ".join(counts) + (f" on {', '.join(where)}" if where else "")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def template_digest(workload: Workload) -> str:
    """Of the whole pod template: with another one, what failed may work."""
    return _digest((workload.template or {}).get("spec"))


def asked_digest(spec: CalibrationSpec) -> str:
    """Of what points depend on in the spec."""
    parts = (spec.target_ref, spec.engine, spec.workload)
    told = [part.model_dump(mode="json") if part is not None else None for part in parts]
    forced = spec.forced_acceptance
    return _digest([*told, spec.model, *([forced.model_dump(mode="json")] if forced is not None else [])])


def to_status(environment: Environment) -> dict[str, Any]:
    """`status.environment`."""
    told = {
        "arguments": environment.arguments[0] if environment.arguments else None,
        "engine": environment.engine,
        "engineVersion": environment.engine_version,
        "gpu": environment.gpu[:512] if environment.gpu else None,
        "image": environment.image[:512] if environment.image else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def from_status(status: Mapping[str, Any]) -> Environment:
    arguments = status.get("arguments")
    return Environment(
        engine=status.get("engine"),
        engine_version=status.get("engineVersion"),
        image=status.get("image"),
        gpu=status.get("gpu"),
        arguments=(arguments,) if arguments else (),
    )


def changed(measured: Environment, now: Environment) -> str:
    """``"the image and the accelerator"``; empty = nothing that is known."""
    return " and ".join(NAMES.get(name, name) for name in measured.differs(now))
