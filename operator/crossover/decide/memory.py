"""Decision state: what a change leaves behind, what must survive a restart, and its JSON form in status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossover.api.decision import Change, Decision, DecisionReason, Memory

MAX_CHANGES = 20
"""Enough for every policy period (at most 1,800 s) at the pace that policies themselves allow."""


def with_changes(memory: Memory, decision: Decision, *, replicas: bool, draft: bool) -> Memory:
    """Memory after parts of a decision were carried out."""
    changes = list(memory.changes)
    if replicas and decision.replicas.target is not None:
        changes.append(Change(decision.at_seconds, "replicas", decision.replicas.current, decision.replicas.target))
    if draft and decision.draft.target is not None:
        changes.append(Change(decision.at_seconds, "draft", decision.draft.current, decision.draft.target))
    drafts = [change for change in changes if change.kind == "draft"][-MAX_CHANGES // 2 :]
    others = [change for change in changes if change.kind != "draft"][-MAX_CHANGES // 2 :]
    return replace(memory, changes=tuple(sorted([*drafts, *others], key=lambda change: change.at_seconds)))


def to_json(memory: Memory) -> dict[str, Any]:
    """The part that must survive: changes, corrections, a recognised latch. Numbers are whole seconds."""
    document: dict[str, Any] = {}
    if memory.changes:
        document["changes"] = [
            {
                "atSeconds": int(change.at_seconds),
                "kind": change.kind,
                "fromValue": change.from_value,
                "toValue": change.to_value,
            }
            for change in memory.changes
        ]
    for change in document.get("changes", ()):
        for key in ("fromValue", "toValue"):
            if change[key] is None:
                del change[key]
    if memory.latched is not None:
        document["latched"] = str(memory.latched)
    return document


def from_json(document: Mapping[str, Any]) -> Memory:
    """What `to_json` wrote; anything unreadable is dropped, which can only delay an action."""
    changes = []
    for item in document.get("changes") or ():
        if isinstance(item, Mapping) and isinstance(item.get("atSeconds"), int | float) and item.get("kind"):
            changes.append(
                Change(float(item["atSeconds"]), str(item["kind"]), item.get("fromValue"), item.get("toValue"))
            )
    latched = document.get("latched")
    return Memory(
        changes=tuple(changes),
        latched=DecisionReason(latched) if latched in set(DecisionReason) else None,
    )
