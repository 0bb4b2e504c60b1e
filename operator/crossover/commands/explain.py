"""`crossover explain`: why a fleet is as it is, and what would change it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from crossover.api.decision import Decision, DecisionReason, Lever, Memory
from crossover.api.faults import ClusterError, NotFound
from crossover.api.intent import Intent, careful
from crossover.api.invalid import explain as explain_invalid
from crossover.api.resources import GROUP, VERSION, ModelAutoscalerSpec
from crossover.api.resources.status import ModelAutoscalerStatus
from crossover.cluster.client import Client
from crossover.cluster.login import LoginError
from crossover.commands import point_files
from crossover.commands.explain_asked import Load, answer, live_conditions
from crossover.commands.explain_text import print_document
from crossover.commands.fit import summary
from crossover.controller.calibration.store import Calibrations
from crossover.decide import from_json, plan
from crossover.decide.profile import Profile, ProfileError, fit_profile
from crossover.decide.schedule import Schedule, describe, draft_at, of_threshold
from crossover.decide.tables import TableError
from crossover.decide.whatif import Turn, turns
from crossover.report.conditions import timestamp
from crossover.report.readback import ReadBack, condition, newest_seconds, read_back
from crossover.report.reasons import meaning
from crossover.report.texts import ConditionType, Reason

app = typer.Typer()

EXPLAINED, STOPPED, UNUSABLE = 0, 1, 2
MOST_BYTES = 5_000_000
CAREFUL = "the calibration is stale: the draft length is held, and no replica is taken away on its account"
LIMITED = str(ConditionType.SCALING_LIMITED)


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(help="Name of the ModelAutoscaler in the cluster.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    file: Annotated[
        Path | None, typer.Option(help="A saved `kubectl get mas NAME -o yaml` (or json) in place of the cluster.")
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(help="Calibration points as CSV or JSON, where the Calibration cannot be read (with --file)."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A saved `kubectl get cal NAME -o yaml`, with --file.")
    ] = None,
    running: Annotated[
        float | None,
        typer.Option(help="Ask what it would do at this many running requests per scheduler.", min=0.1, max=100_000),
    ] = None,
    pods: Annotated[int | None, typer.Option(help="Ask what it would do on this many pods.", min=1, max=1_000)] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: KUBECONFIG, else ~/.kube/config.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, documented in docs/decision.md.")] = False,
) -> None:
    """Show why a fleet is as it is: numbers, last decision, what was weighed and lost, what would change it.

    Reads only. What status keeps is shown as it stands; the decision is then made again from it by the operator's own
    code, and again under other loads, to find the nearest ones that would change something.

    Exit status: 0 the fleet is managed as asked, 1 a condition stops it (Ready is not True) or the operator has not seen it
    yet, 2 the input cannot be used.

    Example: crossover explain llama-70b -n models --running 60
    """
    if (name is None) == (file is None):
        raise _unusable("give either NAME (a ModelAutoscaler in the cluster) or --file")
    if calibration is not None and (file is None or points is not None):
        raise _unusable("--calibration goes with --file, and not with --points: the cluster's own is read otherwise")
    body, measured = _from_file(file) if file is not None else _from_cluster(str(name), namespace, kubeconfig)
    if calibration is not None:
        measured = _one(calibration, "Calibration", _items(calibration, "cal"))
    profile, problem = _profile(body, measured, points)
    now = None if file is not None else time.time()
    document, read = document_of(body, profile, problem, now, Load(running, pods))
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        print_document(document)
    if read.snapshot is None or (document["ready"] or {}).get("status") != "True":
        raise typer.Exit(STOPPED)


def _unusable(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(UNUSABLE)


# -- what is read ------------------------------------------------------------------------------------------------------

Body = Mapping[str, Any]


def _from_file(path: Path) -> tuple[Body, Body | None]:
    items = _items(path, "mas")
    calibrations = [item for item in items if item.get("kind") == "Calibration"]
    return _one(path, "ModelAutoscaler", items), calibrations[0] if calibrations else None


def _items(path: Path, short: str) -> list[Body]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _unusable(f"{path}: larger than {MOST_BYTES} bytes: save one object")
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(f"{path}: {error.strerror or type(error).__name__}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _unusable(f"{path}: is neither YAML nor JSON: save it with kubectl get {short} NAME -o yaml") from None
    items = body.get("items") if isinstance(body, dict) and str(body.get("kind", "")).endswith("List") else [body]
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _one(path: Path, kind: str, items: list[Body]) -> Body:
    found = [item for item in items if item.get("kind") == kind]
    if len(found) != 1:
        short = "cal" if kind == "Calibration" else "mas"
        raise _unusable(f"{path}: holds {len(found)} {kind}s, needs exactly one: kubectl get {short} NAME -o yaml")
    return found[0]


def _from_cluster(name: str, namespace: str, kubeconfig: Path | None) -> tuple[Body, Body | None]:
    async def read() -> tuple[Body, Body | None]:
        async with await Client.connect(kubeconfig=kubeconfig) as client:
            base = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}"
            body = await client.get(f"{base}/modelautoscalers/{name}")
            ref = _calibration_name(body)
            try:
                calibration = await client.get(f"{base}/calibrations/{ref}") if ref else None
            except NotFound:
                calibration = None
            return body, calibration

    try:
        return asyncio.run(read())
    except NotFound:
        raise _unusable(f"ModelAutoscaler {name} does not exist in namespace {namespace}: kubectl get mas -A") from None
    except (ClusterError, LoginError) as error:
        raise _unusable(str(error)) from None


def _calibration_name(body: Body) -> str | None:
    spec = body.get("spec")
    speculation = spec.get("speculation") if isinstance(spec, dict) else None
    ref = speculation.get("calibrationRef") if isinstance(speculation, dict) else None
    return str(ref["name"]) if isinstance(ref, dict) and ref.get("name") else None


def _profile(body: Body, calibration: Body | None, points: Path | None) -> tuple[Profile | None, str]:
    """(profile, why there is none although one is asked for)."""
    name = _calibration_name(body)
    if points is not None:
        try:
            return fit_profile(point_files.read(points), source=points.name), ""
        except (OSError, TableError, ProfileError) as error:
            raise _unusable(f"{points}: {error}") from None
    if name is None:
        return None, ""
    if calibration is None:
        return None, f"calibration {name} was not found: give it with --calibration, or its points with --points"
    meta = calibration.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    saved = meta.get("name")
    if saved != name or not isinstance(calibration.get("spec"), dict):
        raise _unusable(
            f"metadata.name: {saved}: spec.speculation.calibrationRef.name is {name}: save that Calibration"
        )
    known = Calibrations()
    known.put({"status": {}, **calibration, "metadata": {"namespace": "", "uid": "", **meta}})
    resolved = known.resolve(str(meta.get("namespace", "")), name)
    return resolved.profile, resolved.message


# -- what is made of it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Again:
    """The decision made again from status."""

    decision: Decision
    turns: tuple[Turn, ...]
    schedule: Schedule
    """The engine's own; empty = it has none."""


def document_of(
    body: Body, profile: Profile | None, problem: str, now_seconds: float | None, asked: Load
) -> tuple[dict[str, Any], ReadBack]:
    """Everything `--json` prints. ``now_seconds`` None = as of the newest time in the status."""
    try:
        spec = ModelAutoscalerSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        raise _unusable("; ".join(f"spec.{item}" for item in explain_invalid(error)[:3])) from None
    status = _status(body)
    intent, memory = spec.to_intent(), from_json(status.get("memory") or {})
    at_seconds = now_seconds if now_seconds is not None else (newest_seconds(status) or time.time())
    granted = []
    if condition(status, ConditionType.CALIBRATED).get("reason") == Reason.CALIBRATION_STALE:
        intent = careful(intent)
        granted.append(CAREFUL)
    read = read_back(status, intent, memory, at_seconds, float(spec.metrics.stale_after_seconds))
    needs_profile = spec.speculation is not None and spec.speculation.calibration_ref is not None
    again = None if needs_profile and profile is None else _again(read, intent, memory, profile)
    last = status.get("lastDecision") or {}
    says, todo = meaning(str(last.get("reason", "")))
    document = {
        "name": (body.get("metadata") or {}).get("name"),
        "namespace": (body.get("metadata") or {}).get("namespace"),
        "at": timestamp(at_seconds),
        "mode": str(spec.mode),
        "ready": dict(condition(status, ConditionType.READY)) or None,
        "stopped_by": [dict(item) for item in status.get("conditions") or [] if _stops(item)],
        "fleet": dict(status.get("fleet") or {}),
        "crossover": status.get("crossover"),
        "last_decision": {**last, "meaning": says, "what_to_do": todo} if last else None,
        "recent_decisions": list(status.get("recentDecisions") or []),
        "decided_again": _decision_json(again.decision) if again is not None else None,
        "asked": _asked_json(read, intent, memory, profile, asked, bool(needs_profile and profile is None)),
        "calibration": None
        if profile is None
        else {"source": profile.source, **summary(profile, live_conditions(read.snapshot, intent, memory, profile))},
        "would_change": [*_engine_turns(again), *map(_turn_json, again.turns)] if again is not None else [],
        "taken_for_granted": [*granted, *read.missing, *([problem] if problem else [])],
    }
    return document, read


def _status(body: Body) -> dict[str, Any]:
    """As the operator wrote it. Fields that this version does not know are another version's, no fault."""
    status = body.get("status") or {}
    try:
        ModelAutoscalerStatus.model_validate(status)
    except ValidationError as error:
        told = zip(error.errors(), explain_invalid(error), strict=True)
        wrong = [str(item) for raw, item in told if raw["type"] != "extra_forbidden"]
        if wrong:
            raise _unusable("; ".join(f"status.{item}" for item in wrong[:3])) from None
    if not isinstance(body.get("metadata") or {}, dict):
        raise _unusable("metadata: must be an object: save it with kubectl get mas NAME -o yaml")
    return dict(status)


def _asked_json(
    read: ReadBack, intent: Intent, memory: Memory, profile: Profile | None, asked: Load, is_blind: bool
) -> dict[str, Any] | None:
    if not asked.is_asked:
        return None
    told = answer(None if is_blind else read.snapshot, intent, memory, profile, asked)
    return {
        "running_requests_per_scheduler": _rounded(told.running_requests),
        "pods": told.pods,
        "decision": None if told.at_once is None else _decision_json(told.at_once),
        "if_it_lasts": [{"after_seconds": after, **_decision_json(then)} for after, then in told.later],
        "taken_for_granted": ["the calibration is not known"] if is_blind else list(told.granted),
    }


def _stops(item: Mapping[str, Any]) -> bool:
    """Conditions that keep something from happening; ScalingLimited is the one that does so by being True."""
    if item.get("type") == str(ConditionType.READY):
        return False
    return item.get("status") == ("True" if item.get("type") == LIMITED else "False") or item.get("status") == "Unknown"


def _again(read: ReadBack, intent: Intent, memory: Memory, profile: Profile | None) -> Again | None:
    snapshot = read.snapshot
    if snapshot is None:
        return None
    if read.lever is Lever.ENGINE_SCHEDULE and snapshot.settings is not None:
        written = _schedule(intent, snapshot.settings.draft_tokens or 0)
        if profile is not None:
            written = plan(snapshot, intent, replace(memory, changes=()), profile).draft.schedule
        snapshot = replace(snapshot, settings=replace(snapshot.settings, schedule=written))
    decision = plan(snapshot, intent, memory, profile)
    schedule = snapshot.settings.schedule if snapshot.settings is not None else ()
    return Again(decision, turns(snapshot, intent, memory, profile), schedule)


def _schedule(intent: Intent, full: int) -> tuple[tuple[int, int], ...]:
    above = intent.speculation.disable_above_running_requests if intent.speculation is not None else None
    return of_threshold(above, full, zero_is_safe=True) if above is not None and full else ()


def _decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "replicas": _plain(decision.replicas),
        "draft": _plain(decision.draft),
        "numbers": {key: value if value is None else round(value, 4) for key, value in decision.numbers.items()},
        "alternatives": [_plain(item) for item in decision.alternatives],
        "notices": [_plain(item) for item in decision.notices],
    }


def _plain(value: Any) -> dict[str, Any]:
    return {key: str(item) if isinstance(item, DecisionReason | Lever) else item for key, item in asdict(value).items()}


def _turn_json(turn: Turn) -> dict[str, Any]:
    part = turn.decision.draft if turn.kind == "draft" else turn.decision.replicas
    return {
        "what": turn.what,
        "load_factor": round(turn.factor, 3),
        "running_requests_per_scheduler": _rounded(turn.running_requests_per_scheduler),
        "demand_tokens_per_second": _rounded(turn.demand_tokens_per_second),
        "after_seconds": turn.after_seconds,
        "reason": str(part.reason),
        "message": part.message,
    }


def _engine_turns(again: Again) -> list[dict[str, Any]]:
    """The nearest batches at which an engine that follows a schedule takes another draft length by itself."""
    batch = again.decision.numbers.get("running_requests_per_scheduler")
    if not again.schedule or not batch:
        return []
    starts = [start for start, _ in again.schedule]
    nearest = (
        max((s for s in starts[1:] if s <= batch), default=None),
        min((s for s in starts if s > batch), default=None),
    )
    found = []
    for start in nearest:
        if start is None:
            continue
        here, there = draft_at(again.schedule, start - 1), draft_at(again.schedule, start)
        before, after = (here, there) if start > batch else (there, here)
        found.append(
            {
                "what": f"draft {before} -> {after} by the engine",
                "load_factor": round(start / batch, 3),
                "running_requests_per_scheduler": float(start),
                "demand_tokens_per_second": None,
                "after_seconds": 0.0,
                "reason": str(DecisionReason.ENGINE_FOLLOWS_SCHEDULE),
                "message": f"its schedule: {describe(again.schedule)}",
            }
        )
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
