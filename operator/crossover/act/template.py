"""From what is wanted of a pod template to the smallest server-side apply that brings it about, or a refusal.

Pure: facts in, `TemplatePatch` out. One apply is one rollout, so everything that restarts pods goes into the same one:
the command line, the mounted file, the grace period, the annotation that says what was done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from posixpath import dirname
from typing import Any

from crossover.act import config_map, mark
from crossover.act.config_map import VOLUME, ConfigMapPatch
from crossover.act.mark import Failure, Mark
from crossover.act.ownership import keyed, node, owned_object
from crossover.act.strategy import RolloutRules, rolling_strategy
from crossover.api.fleet import Capability
from crossover.api.managed_fields import container_path, owners
from crossover.api.workload import Revision, Workload
from crossover.engines.contract import ContainerEdit, Engine, Refusal, WantedSpeculation

DEFAULT_GRACE_SECONDS = 30
RETRY_FAILED_SECONDS = 3600.0
"""A rollout that failed is tried again after this time, or at once on other containers."""
REVERT_SECONDS = 600.0
"""Arguments put back by a GitOps controller within this time of our edit were put back because of it."""

GITOPS = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "fleetagent": "Rancher Fleet",
    "configsync.gke.io": "Config Sync",
}
"""Field managers that put a template back to what is in Git whenever it differs."""


@dataclass(frozen=True, slots=True)
class TemplatePatch:
    """One apply of the workload, and the ConfigMap that must be there before."""

    path: str
    body: Mapping[str, Any]
    summary: str
    """``"speculation off"``, ``"schedule 1:3,32:0"``: for records and Events."""
    config_map: ConfigMapPatch | None = None
    notes: tuple[str, ...] = ()
    """What the user should know about this rollout."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What is to be changed: which engine in which container, and how its pods may be replaced."""

    engine: Engine
    container: str
    capability: Capability
    wanted: WantedSpeculation
    files: Mapping[str, str]
    """Path -> content of the ConfigMap files that the container mounts."""
    rules: RolloutRules


def pick_container(template: Mapping[str, Any], name: str | None, port: int | None = None) -> Mapping[str, Any]:
    """The container that serves the model: the one named, the only one, or the only one that declares ``port``.

    Raises `Refusal`.
    """
    containers = (template.get("spec") or {}).get("containers") or []
    if name is not None:
        found = [item for item in containers if item.get("name") == name]
        if not found:
            raise Refusal(
                "ContainerNotFound",
                f"the pod template has no container {name!r}.",
                field="spec.engine.container",
                fix=f"Name one of: {_names(containers)}.",
            )
        return dict(found[0])
    serving = [item for item in containers if port in {entry.get("containerPort") for entry in item.get("ports") or []}]
    found = containers if len(containers) == 1 else serving
    if len(found) != 1:
        raise Refusal(
            "ContainerAmbiguous",
            "the pod template has several containers and none is named.",
            field="spec.engine.container",
            fix=f"Name one of: {_names(containers)}.",
        )
    return dict(found[0])


def plan_template(workload: Workload, edit: Edit, now_seconds: float) -> TemplatePatch | None:
    """The apply that makes the template ask for ``edit.wanted``; None = it already does. Raises `Refusal`."""
    template = _editable_template(workload)
    container = pick_container(template, edit.container)
    before = mark.mark_of(template)
    removed = before.removed if before is not None and before.container == edit.container else {}
    change = edit.engine.edit(container, edit.files, edit.wanted, edit.capability, removed)
    if change.is_empty:
        return None
    strategy = rolling_strategy(workload, edit.rules)
    _refuse_fight(workload, container, before, now_seconds)
    _refuse_known_failure(workload, template, edit.wanted, now_seconds)

    body = owned_object(workload)
    result = _set_container(body, container, change)
    kept = _removed_after(change, removed, edit.wanted)
    new_map = _set_file(body, workload, container, change, [result, kept])
    _set_mark(body, Mark(edit.container, edit.wanted, mark.command_digest(result), now_seconds, kept))
    notes = _set_grace(body, template, edit.rules)
    if strategy is not None:
        node(body, "spec")["strategy"] = strategy
    _set_annotations(body, workload, new_map, edit.wanted)
    return TemplatePatch(workload.path, body, describe(edit.wanted), new_map, notes)


def plan_undo(
    workload: Workload, revisions: Sequence[Revision], reason: str, now_seconds: float
) -> TemplatePatch | None:
    """The apply that takes our last edit back, exactly: the old pods are of that template again and are kept.

    None when there is nothing of ours to take back: no mark, no revision from before it, a command line that somebody has
    changed since, or an undo already after the last edit (never two steps back for one failure).
    """
    template = workload.template or {}
    now, failure = mark.mark_of(template), mark.failure_of(workload.annotations)
    if now is None or (failure is not None and failure.at_seconds >= now.at_seconds):
        return None
    if not any(workload.is_current(revision) for revision in revisions):
        return None
    older = [revision for revision in revisions if _is_before(revision, now)]
    if not older:
        return None
    previous = max(older, key=lambda revision: (revision.ready_replicas or 0, revision.number))
    as_we_left_it = any(
        item["name"] == now.container and mark.command_digest(item) == now.digest
        for item in template["spec"]["containers"]
    )
    if not as_we_left_it:
        return None
    body = owned_object(workload, template=previous.template)
    failed = Failure(now.wanted, reason, now_seconds, mark.containers_digest(previous.template))
    node(body, "metadata", "annotations")[mark.FAILED] = failed.to_json()
    return TemplatePatch(workload.path, body, f"{describe(now.wanted)} taken back")


def _is_before(revision: Revision, now: Mark) -> bool:
    """From before our last edit. Revision numbers do not tell: a template that comes back gets a new one."""
    then = mark.mark_of(revision.template)
    return then is None or then.at_seconds < now.at_seconds


def plan_cleanup(workload: Workload, revisions: Sequence[Revision]) -> tuple[TemplatePatch, tuple[str, ...]] | None:
    """ConfigMaps of ours to delete, and the apply that forgets them (it restarts nothing); None = nothing to do."""
    gone = config_map.unused(workload, revisions)
    if not gone:
        return None
    body = owned_object(workload)
    left = [name for name in mark.config_maps_of(workload.annotations) if name not in gone]
    node(body, "metadata", "annotations")[mark.CONFIG_MAPS] = ",".join(left)
    return TemplatePatch(workload.path, body, f"{len(gone)} unused ConfigMaps removed"), gone


def describe(wanted: WantedSpeculation) -> str:
    if not wanted.enabled:
        return "speculation off"
    if wanted.schedule:
        return "schedule " + ",".join(f"{from_running}:{draft}" for from_running, draft in wanted.schedule)
    return "speculation on" if wanted.draft_tokens is None else f"draft length {wanted.draft_tokens}"


# -- what cannot be done ---------------------------------------------------------------------------------------------


def _editable_template(workload: Workload) -> Mapping[str, Any]:
    if workload.template is None:
        raise Refusal(
            "NoPodTemplate",
            f"a {workload.ref.kind} keeps no pod template in spec.template.",
            field="spec.scaleTargetRef.kind",
            fix="Speculation is managed for Deployments and StatefulSets; set spec.speculation.policy to Hold here.",
        )
    owner = workload.owner
    if owner is not None:
        product = f" of {owner.product}" if owner.product else ""
        raise Refusal(
            "TemplateOwnedByParent",
            f"{workload.ref} belongs to {owner.kind} {owner.name}{product}, whose controller would undo the change.",
            field="spec.scaleTargetRef",
            fix=f"Set the speculation arguments in {owner.kind} {owner.name}, and spec.speculation.policy to Hold here.",
        )
    return workload.template


def _refuse_fight(workload: Workload, container: Mapping[str, Any], before: Mark | None, now_seconds: float) -> None:
    """A GitOps controller that put the arguments back right after our edit will do so again: one rollout an hour."""
    if before is None or mark.command_digest(container) == before.digest:
        return
    paths = [container_path(before.container, field) for field in ("args", "command")]
    for manager in [owner for path in paths for owner in owners(workload.managed_fields, path)]:
        product, at = GITOPS.get(manager.name), _seconds(manager.time)
        if product is None or at is None or now_seconds - at > RETRY_FAILED_SECONDS:
            continue
        if before.at_seconds - 1.0 <= at <= before.at_seconds + REVERT_SECONDS:
            raise Refusal(
                "RevertedByGitOps",
                f"{product} ({manager.name}) put its own arguments back after the last change.",
                field=f"spec.template.spec.containers[{before.container}].args",
                fix="Let it ignore fields managed by crossover.dev (Argo CD: ignoreDifferences.managedFieldsManagers), or "
                "set spec.speculation.policy to Hold.",
            )


def _refuse_known_failure(
    workload: Workload, template: Mapping[str, Any], wanted: WantedSpeculation, now_seconds: float
) -> None:
    failure = mark.failure_of(workload.annotations)
    if failure is None or failure.wanted != wanted or failure.template != mark.containers_digest(template):
        return
    left = failure.at_seconds + RETRY_FAILED_SECONDS - now_seconds
    if left > 0:
        raise Refusal(
            "RolloutFailedBefore",
            f"{describe(wanted)} was rolled out and taken back: {failure.reason}.",
            field="spec.template",
            fix=f"Correct the template (a new one is tried at once); this one is tried again in {left / 60:.0f} min.",
        )


def _seconds(time: str | None) -> float | None:
    try:
        return None if time is None else datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


# -- the parts of the apply ------------------------------------------------------------------------------------------


def _set_container(body: dict[str, Any], live: Mapping[str, Any], change: ContainerEdit) -> dict[str, Any]:
    """Command, args and env into the apply; the container as it will be."""
    ours = keyed(node(body, "spec", "template", "spec").setdefault("containers", []), "name", change.container)
    result = dict(live)
    for field, value in (("command", change.command), ("args", change.args)):
        if value is not None:
            ours[field] = result[field] = list(value)
    if change.env:
        result["env"] = _set_env(ours, live, change.env)
    return result


def _set_env(ours: dict[str, Any], live: Mapping[str, Any], env: Mapping[str, str | None]) -> list[dict[str, Any]]:
    present = {item["name"]: item for item in live.get("env") or []}
    mine: list[dict[str, Any]] = ours.setdefault("env", [])
    for name, value in env.items():
        is_mine = any(item["name"] == name for item in mine)
        if "valueFrom" in present.get(name, {}) or (value is None and name in present and not is_mine):
            raise Refusal(
                "EnvironmentNotOurs",
                f"the variable {name} is set by somebody else and cannot be changed from here.",
                field=f"spec.template.spec.containers[{live['name']}].env[{name}]",
                fix="Give it a plain value, or take it out of the manifest.",
            )
        if value is None:
            mine[:] = [item for item in mine if item["name"] != name]
            present.pop(name, None)
        else:
            keyed(mine, "name", name)["value"] = value
            present[name] = {"name": name, "value": value}
    if not mine:
        del ours["env"]
    return list(present.values())


def _set_file(
    body: dict[str, Any],
    workload: Workload,
    live: Mapping[str, Any],
    change: ContainerEdit,
    mentions: Sequence[Any],
) -> ConfigMapPatch | None:
    """Volume and mount for the edit's file; taken out when nothing in ``mentions`` names the folder any more."""
    spec = node(body, "spec", "template", "spec")
    container = keyed(spec["containers"], "name", change.container)
    if change.file is None:
        mine = [item for item in container.get("volumeMounts") or [] if item.get("name") == VOLUME]
        text = json.dumps(mentions)
        if mine and not any(str(item["mountPath"]) in text for item in mine):
            _without(container, "volumeMounts", "name", VOLUME)
            _without(spec, "volumes", "name", VOLUME)
        return None
    folder = dirname(change.file.mount_path)
    for item in live.get("volumeMounts") or []:
        if item["mountPath"].rstrip("/") == folder and item["name"] != VOLUME:
            raise Refusal(
                "MountPathTaken",
                f"something else is mounted at {folder}.",
                field=f"spec.template.spec.containers[{live['name']}].volumeMounts",
                fix="Mount it somewhere else.",
            )
    new_map = config_map.config_map_for(workload, change.file)
    _without(container, "volumeMounts", "name", VOLUME)
    _without(spec, "volumes", "name", VOLUME)
    container.setdefault("volumeMounts", []).append(config_map.mount(change.file))
    spec.setdefault("volumes", []).append(config_map.volume(new_map.name))
    return new_map


def _without(parent: dict[str, Any], field: str, key: str, value: str) -> None:
    left = [item for item in parent.get(field) or [] if item.get(key) != value]
    if left:
        parent[field] = left
    else:
        parent.pop(field, None)


def _removed_after(change: ContainerEdit, removed: Mapping[str, Any], wanted: WantedSpeculation) -> Mapping[str, Any]:
    """While off, everything ever taken out must stay known; once on, it is back in the template."""
    return dict(change.removed) if wanted.enabled else {**removed, **change.removed}


def _set_mark(body: dict[str, Any], new: Mark) -> None:
    node(body, "spec", "template", "metadata", "annotations")[mark.SPECULATION] = new.to_json()


def _set_grace(body: dict[str, Any], template: Mapping[str, Any], rules: RolloutRules) -> tuple[str, ...]:
    """A grace period that lets requests finish; never shortened."""
    present = template["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    if present >= rules.drain_seconds:
        return ()
    node(body, "spec", "template", "spec")["terminationGracePeriodSeconds"] = int(rules.drain_seconds)
    return (
        f"pods that run now still have terminationGracePeriodSeconds {present}: this rollout drains them no longer than "
        f"that, the next one {int(rules.drain_seconds)} s",
    )


def _set_annotations(
    body: dict[str, Any], workload: Workload, new_map: ConfigMapPatch | None, wanted: WantedSpeculation
) -> None:
    """On the workload: the ConfigMaps made so far, and the last failure unless this is the new attempt at it."""
    annotations = node(body, "metadata", "annotations")
    failure = mark.failure_of(workload.annotations)
    if failure is None or failure.wanted == wanted:
        annotations.pop(mark.FAILED, None)
    if new_map is not None:
        known = [name for name in mark.config_maps_of(workload.annotations) if name != new_map.name]
        annotations[mark.CONFIG_MAPS] = ",".join([*known, new_map.name])
    if not annotations:
        del body["metadata"]["annotations"]


def _names(containers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(item.get("name")) for item in containers)
