"""Decision state: what a change leaves behind, what must survive a restart, and its JSON form in status.

Only what changes rarely is written to status (changes, corrections, a recognised latch), so that a steady fleet causes
no write. The rest is a cache: after a restart windows and dwell timers of the load begin again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossover.api.decision import Change, Decision, DecisionReason, Memory

MAX_REPLICA_CHANGES = 24
MAX_DRAFT_CHANGES = 12
KEEP_REPLICA_CHANGES_SECONDS = 1800.0
"""The longest period of a scaling policy (autoscaling/v2)."""
LAST_TICK = "last_tick_seconds"
TPOT_MISSED_SINCE, TPOT_ROOM_SINCE = "tpot_missed_since_seconds", "tpot_room_since_seconds"
"""Since when, without a break, the time per output token has been above or well below its target."""


def with_changes(memory: Memory, decision: Decision, *, replicas: bool, draft: bool) -> Memory:
    """Memory after parts of a decision were carried out: to be given to the next `plan`.

    ``replicas`` and ``draft`` say which part was; neither in advisory mode or when the write failed.
    """
    changes = list(memory.changes)
    demand = decision.numbers.get("demand_tokens_per_second_per_scheduler")
    running = decision.numbers.get("running_requests_per_scheduler")
    if replicas and decision.replicas.target not in (None, decision.replicas.current):
        changes.append(Change(decision.at_seconds, "replicas", decision.replicas.current, decision.replicas.target))
    if draft and decision.draft.target is not None:
        changes.append(
            Change(
                decision.at_seconds,
                "draft",
                decision.draft.current,
                decision.draft.target,
                running_requests=running,
                demand_tokens_per_second=demand,
            )
        )
    return replace(memory, changes=trimmed(tuple(changes), decision.at_seconds))


def trimmed(changes: tuple[Change, ...], now_seconds: float) -> tuple[Change, ...]:
    """Bounded in size. Replica changes older than any policy's period go; too many young ones are folded together,
    oldest first, so that their sum still counts against the policies."""
    drafts = [change for change in changes if change.kind == "draft"][-MAX_DRAFT_CHANGES:]
    others = [
        change
        for change in changes
        if change.kind != "draft" and change.at_seconds > now_seconds - KEEP_REPLICA_CHANGES_SECONDS
    ]
    while len(others) > MAX_REPLICA_CHANGES:
        others[:2] = [_folded(others[0], others[1])]
    return tuple(sorted([*drafts, *others], key=lambda change: change.at_seconds))


def _folded(first: Change, second: Change) -> Change:
    grown = (second.to_value or 0) - (second.from_value or 0)
    return replace(first, at_seconds=second.at_seconds, to_value=max(0, (first.to_value or 0) + grown))


def last_draft_change(memory: Memory) -> Change | None:
    return next((change for change in reversed(memory.changes) if change.kind == "draft"), None)


def after_gap(memory: Memory, now_seconds: float, longest_gap_seconds: float) -> Memory:
    """A load that nobody looked at for a while was not "above since": timers and windows begin again after a gap."""
    last = memory.observations.get(LAST_TICK)
    observations = {**memory.observations, LAST_TICK: now_seconds}
    if last is None or now_seconds - last <= longest_gap_seconds:
        return replace(memory, observations=observations)
    for name in (TPOT_MISSED_SINCE, TPOT_ROOM_SINCE):
        observations.pop(name, None)
    return replace(
        memory, recommendations=(), above_since_seconds=None, below_since_seconds=None, observations=observations
    )


# -- the form in status ------------------------------------------------------------------------------------------------

_WHOLE = {"fromValue": "from_value", "toValue": "to_value"}
_LOADS = {
    "runningRequests": "running_requests",
    "demandTokensPerSecond": "demand_tokens_per_second",
    "runningRequestsAfter": "running_requests_after",
}


def to_json(memory: Memory) -> dict[str, Any]:
    """The part that must survive, as `status.memory`. Times in whole seconds; loads and factors as decimal strings,
    because the Kubernetes API has no place for floats. Unknown values are left out."""
    document: dict[str, Any] = {}
    if memory.changes:
        document["changes"] = [_change_to_json(change) for change in memory.changes]
    if memory.correction:
        document["corrections"] = [
            {"curve": name, "factor": f"{factor:.2f}"} for name, factor in sorted(memory.correction.items())
        ]
    if memory.running_cap is not None:
        document["runningCap"] = memory.running_cap
    if memory.latched is not None:
        document["latched"] = str(memory.latched)
    return document


def _change_to_json(change: Change) -> dict[str, Any]:
    item: dict[str, Any] = {"atSeconds": int(change.at_seconds), "kind": change.kind}
    for key, attribute in _WHOLE.items():
        if (value := getattr(change, attribute)) is not None:
            item[key] = value
    for key, attribute in _LOADS.items():
        if (value := getattr(change, attribute)) is not None:
            item[key] = f"{value:.1f}"
    return item


def from_json(document: Mapping[str, Any]) -> Memory:
    """What `to_json` wrote; anything unreadable is dropped, which can only delay an action."""
    changes = [change for item in _mappings(document.get("changes")) if (change := _change_from_json(item))]
    factors = {str(item.get("curve")): _number(item.get("factor")) for item in _mappings(document.get("corrections"))}
    latched = document.get("latched")
    cap = _number(document.get("runningCap"))
    return Memory(
        changes=tuple(sorted(changes, key=lambda change: change.at_seconds)),
        correction={name: factor for name, factor in factors.items() if factor is not None and factor > 0},
        running_cap=int(cap) if cap is not None and cap >= 1 else None,
        latched=DecisionReason(latched) if latched in {str(reason) for reason in DecisionReason} else None,
    )


def _change_from_json(item: Mapping[str, Any]) -> Change | None:
    at_seconds = _number(item.get("atSeconds"))
    if at_seconds is None or item.get("kind") not in {"replicas", "draft"}:
        return None
    whole = {attribute: _number(item.get(key)) for key, attribute in _WHOLE.items()}
    loads = {attribute: _number(item.get(key)) for key, attribute in _LOADS.items()}
    before, after = (None if value is None else int(value) for value in (whole["from_value"], whole["to_value"]))
    return Change(at_seconds, str(item["kind"]), before, after, **loads)


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
