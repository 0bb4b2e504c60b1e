"""What a pod template says of the machine that a calibration is valid for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossover.act.mark import mark_of
from crossover.api.fleet import Capability, EngineType
from crossover.api.resources import CalibrationSpec
from crossover.api.workload import Workload
from crossover.calibrate.environment import Environment
from crossover.cluster.nodes import are_different
from crossover.controller.machine import NOTHING_KNOWN, Machine
from crossover.engines import ENGINES
from crossover.engines.contract import Refusal, WantedSpeculation

NAMES = {
    "engine": "the engine",
    "engine_version": "the engine's version",
    "image": "the image",
    "image_digest": "what the image's tag points to",
    "model": "the model",
    "draft_model": "the draft model",
    "gpu": "the accelerator",
    "gpu_product": "the accelerator's product",
    "arguments": "the container's arguments (model, draft or others)",
}
NAMED = ("model", "draft_model", "gpu_product")
"""Told from what to what."""
MOST_NAME = 256


def environment_of(
    workload: Workload,
    container: Mapping[str, Any],
    files: Mapping[str, str],
    engine: EngineType,
    version: str | None = None,
) -> Environment:
    """As far as the template tells. The draft length and the schedule do not count: changing them is what a calibration
    is for. Neither does the environment of the container, which may hold credentials."""
    models = ENGINES[engine].models(container, files)
    return Environment(
        engine=str(engine),
        engine_version=version,
        image=str(container.get("image") or "") or None,
        gpu=_accelerator(workload, container),
        model=_short(models.model),
        draft_model=_short(models.draft_model),
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


def _short(name: str | None) -> str | None:
    """A path may be long; its end tells most."""
    return name[-MOST_NAME:] if name else None


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
    # What an older operator did not know leaves its digests as they are: nothing is measured anew for an upgrade.
    told = [_without(part, "input_percentiles", "output_percentiles") for part in told]
    forced = spec.forced_acceptance
    return _digest([*told, spec.model, *([forced.model_dump(mode="json")] if forced is not None else [])])


def _without(part: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return part and {name: value for name, value in part.items() if name not in names or value is not None}


def to_status(environment: Environment) -> dict[str, Any]:
    """`status.environment`."""
    told = {
        "arguments": environment.arguments[0] if environment.arguments else None,
        "draftModel": environment.draft_model,
        "engine": environment.engine,
        "engineVersion": environment.engine_version,
        "gpu": environment.gpu[:512] if environment.gpu else None,
        "gpuProduct": environment.gpu_product,
        "image": environment.image[:512] if environment.image else None,
        "imageDigest": environment.image_digest,
        "model": environment.model,
    }
    return {name: value for name, value in told.items() if value is not None}


def from_status(status: Mapping[str, Any]) -> Environment:
    arguments = status.get("arguments")
    return Environment(
        engine=status.get("engine"),
        engine_version=status.get("engineVersion"),
        image=status.get("image"),
        image_digest=status.get("imageDigest"),
        gpu=status.get("gpu"),
        gpu_product=status.get("gpuProduct"),
        model=status.get("model"),
        draft_model=status.get("draftModel"),
        arguments=(arguments,) if arguments else (),
    )


def changed(measured: Environment, now: Environment, machine: Machine = NOTHING_KNOWN) -> str:
    """``"the image and the draft model (a, now b)"``; empty = nothing that is known. ``machine``: what the fleet's pods run
    on; a single pod on something else counts."""
    names = measured.differs(now)
    if {"model", "draft_model"} & set(names):
        names = tuple(name for name in names if name != "arguments")
    told = [_told(name, getattr(measured, name), getattr(now, name)) for name in names]
    before = measured.gpu_product
    others = {product for product in machine.products if before and are_different(before, product)}
    if before and others:
        told.append(_told("gpu_product", before, ", ".join(sorted(others))))
    pulled = machine.image_digests - {measured.image_digest} if measured.image_digest else ()
    if pulled and "image" not in names:
        told.append(NAMES["image_digest"])
    return " and ".join(told)


def _told(name: str, before: str, after: str) -> str:
    return f"{NAMES.get(name, name)} ({before}, now {after})" if name in NAMED else NAMES.get(name, name)


def measured_on(environment: Environment, machine: Machine) -> Environment:
    """With what the pods that are measured really run on. Several products: the first by name, see `mixed`."""
    return replace(
        environment,
        gpu_product=min(machine.products, default=None),
        image_digest=min(machine.image_digests, default=None),
    )


def since(before: Environment | None, now: Environment) -> Environment:
    """What the first pod ran on stays what the calibration is of."""
    if before is None:
        return now
    return replace(
        now,
        engine_version=now.engine_version or before.engine_version,
        gpu_product=before.gpu_product or now.gpu_product,
        image_digest=before.image_digest or now.image_digest,
    )


def mixed(before: Environment | None, now: Environment) -> str:
    """A sentence where a pod of the same calibration runs on something else than the ones before; empty = it does not."""
    if before is None:
        return ""
    names = [name for name in ("gpu_product", "image_digest") if name in before.differs(now)]
    if before.gpu_product and now.gpu_product and not are_different(before.gpu_product, now.gpu_product):
        names = [name for name in names if name != "gpu_product"]
    if not names:
        return ""
    what = " and ".join(_told(name, getattr(before, name), getattr(now, name)) for name in names)
    return f"points are not of one machine: between scratch pods {what} changed; pin it by a node selector or a digest"
