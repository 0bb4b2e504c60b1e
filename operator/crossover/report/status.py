"""The status subresource: built whole from the tick's facts, written only when it says something new.

A steady fleet causes no write: the numbers of `status.fleet` ride along with a change of decision, condition or pods,
or are refreshed when the load has moved by more than a quarter and the last write is half a minute old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from crossover.api.decision import Decision
from crossover.api.fleet import FleetSnapshot, PodPhase
from crossover.report.conditions import compute, timestamp
from crossover.report.facts import TickFacts
from crossover.report.texts import running_cap

RECENT = 10
MAX_SUMMARY = 512
REFRESH_SECONDS = 30.0
REFRESH_SHARE = 0.25
CROSSOVER_SHARE = 0.15
LOAD_NUMBERS = ("runningRequests", "waitingRequests", "outputTokensPerSecond")


def build(facts: TickFacts, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The status that this tick would show. ``memory``: `decide.memory` as JSON. Absent keys are unknown."""
    previous = dict(facts.previous)
    status: dict[str, Any] = {
        "observedGeneration": facts.generation,
        "conditions": compute(facts, _list(previous.get("conditions"))),
    }
    if memory:
        status["memory"] = dict(memory)
    if facts.snapshot is not None:
        status["fleet"] = fleet(facts)
        status["replicas"] = len([pod for pod in facts.snapshot.pods if pod.phase is not PodPhase.TERMINATING])
        status["selector"] = facts.selector
    else:
        status |= {key: previous[key] for key in ("fleet", "replicas", "selector") if key in previous}
    status |= _decisions(facts, previous)
    threshold = _crossover(facts)
    if threshold:
        status["crossover"] = threshold
    return status


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def fleet(facts: TickFacts) -> dict[str, Any]:
    """`status.fleet`. A number that is unknown is left out; the condition MetricsAvailable says why."""
    snapshot = facts.snapshot
    assert snapshot is not None
    shown: dict[str, Any] = {"pods": pods_line(snapshot)}
    if facts.engine is not None:
        shown["engine"] = f"{facts.engine} {facts.engine_version}" if facts.engine_version else str(facts.engine)
    schedulers = [scheduler for pod in snapshot.known if pod.reading for scheduler in pod.reading.schedulers]
    running = [s.running_requests for s in schedulers if s.running_requests is not None]
    waiting = [s.waiting_requests for s in schedulers if s.waiting_requests is not None]
    kv_usage = [s.kv_usage for s in schedulers if s.kv_usage is not None]
    cap = facts.decision.cap if facts.decision is not None else None
    if cap is not None and cap.wanted is not None:
        shown["runningRequestsCap"] = cap.wanted
    if running:
        shown["runningRequests"] = round(sum(running))
        shown["meanRunningRequests"] = f"{fmean(running):.1f}"
    if waiting:
        shown["waitingRequests"] = round(sum(waiting))
    if kv_usage:
        shown["kvUsagePercent"] = round(100 * max(kv_usage))
    drafts = sorted({round(s.draft_tokens) for s in schedulers if s.draft_tokens is not None})
    if drafts:
        shown["draftTokens"] = str(drafts[0]) if len(drafts) == 1 else f"{drafts[0]}-{drafts[-1]}"
    verified = [
        s.running_requests * (s.draft_tokens + 1)
        for s in schedulers
        if s.running_requests is not None and s.draft_tokens is not None
    ]
    if verified:
        shown["verifiedTokensPerStep"] = f"{fmean(verified):.0f}"
    accepted = [pod.acceptance_length for pod in snapshot.known if pod.acceptance_length is not None]
    if accepted:
        shown["acceptanceLength"] = f"{fmean(accepted):.2f}"
    rates = [pod.output_tokens_per_second for pod in snapshot.known if pod.output_tokens_per_second is not None]
    if rates and len(rates) == len(snapshot.known):
        shown["outputTokensPerSecond"] = round(sum(rates))
    tpot = [pod.time_per_output_token_seconds for pod in snapshot.known if pod.time_per_output_token_seconds]
    if tpot:
        shown["timePerOutputTokenMilliseconds"] = round(1000 * max(tpot))
    return shown


def pods_line(snapshot: FleetSnapshot) -> str:
    parts = [
        f"{len(snapshot.in_phase(PodPhase.READY))} ready",
        f"{len(snapshot.in_phase(PodPhase.PENDING))} pending",
        f"{len(snapshot.in_phase(PodPhase.TERMINATING))} terminating",
        f"{len(snapshot.unknown)} unknown",
    ]
    failed = len(snapshot.in_phase(PodPhase.FAILED))
    return ", ".join([*parts, f"{failed} failed"] if failed else parts)


def _crossover(facts: TickFacts) -> dict[str, Any]:
    """Simple mode shows the user's own numbers and says that they are not measured."""
    if facts.calibrated:
        return _measured_crossover(facts)
    speculation = facts.intent.speculation if facts.intent else None
    if speculation is None or speculation.disable_above_running_requests is None:
        return {}
    above, below = speculation.disable_above_running_requests, speculation.enable_below_running_requests
    return {
        "runningRequests": f"{above} (on again below {below})" if below is not None else str(above),
        "source": "spec.speculation.threshold, not measured",
    }


def _measured_crossover(facts: TickFacts) -> dict[str, Any]:
    """At the present context and acceptance, which move a little with every scrape: shown anew only when it says more."""
    numbers = facts.decision.numbers if facts.decision is not None else {}
    live = numbers.get("crossover_running_requests")
    shown = "none in what was measured" if live is None else f"{live:.0f}"
    before = facts.previous.get("crossover") or {}
    known = str(before.get("runningRequests", ""))
    if live is not None and known.isdigit() and abs(live - int(known)) <= CROSSOVER_SHARE * int(known):
        shown = known
    return {
        "runningRequests": shown,
        "source": f"calibration {facts.calibration}, at the present context and acceptance",
    }


def _decisions(facts: TickFacts, previous: Mapping[str, Any]) -> dict[str, Any]:
    decision = facts.decision
    recent = _list(previous.get("recentDecisions"))
    last = previous.get("lastDecision")
    if decision is not None:
        shown = last_decision(decision, facts)
        if not isinstance(last, Mapping) or _moved(last, shown):
            last = shown
    for done in facts.done:
        line = f"{clock(facts.at_seconds)} {done.summary}: {done.message}"
        recent = [{"summary": line[:MAX_SUMMARY], "time": timestamp(facts.at_seconds)}, *recent]
    result: dict[str, Any] = {}
    if last is not None:
        result["lastDecision"] = last
    if recent:
        result["recentDecisions"] = recent[:RECENT]
    return result


def clock(seconds: float) -> str:
    """Time of day, UTC, for one-line summaries."""
    return timestamp(seconds)[11:19]


def _moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Another action or reason is a new decision; other numbers in the same one are not."""
    return any(before.get(key) != now.get(key) for key in ("action", "reason"))


def last_decision(decision: Decision, facts: TickFacts) -> dict[str, Any]:
    """Action, reason, message with numbers. The part that acts speaks first."""
    replicas, draft = decision.replicas, decision.draft
    actions = []
    if draft.target is not None:
        actions.append(f"draft {_shown(draft.current)} -> {draft.target}")
    if replicas.target is not None and replicas.target != replicas.current:
        actions.append(f"replicas {_shown(replicas.current)} -> {replicas.target}")
    if decision.cap is not None and decision.cap.is_change:
        actions.append(running_cap(decision.cap.current, decision.cap.wanted))
    no_target = facts.intent is not None and facts.intent.replicas.target_running_requests is None
    draft_leads = draft.target is not None or (not actions and no_target and not facts.calibrated)
    lead, other = (draft, replicas) if draft_leads else (replicas, draft)
    return {
        "action": ", ".join(actions) or "hold",
        "reason": str(lead.reason),
        "message": "; ".join(part for part in (lead.message, other.message) if part)[:1024],
        "time": timestamp(decision.at_seconds),
    }


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def worth_writing(previous: Mapping[str, Any], status: Mapping[str, Any], seconds_since_write: float | None) -> bool:
    """True when the new status tells a reader something new (see the module's first lines)."""
    if seconds_since_write is None or _skeleton(previous) != _skeleton(status):
        return True
    if seconds_since_write < REFRESH_SECONDS:
        return False
    before, now = previous.get("fleet") or {}, status.get("fleet") or {}
    return any(_share(before.get(name), now.get(name)) > REFRESH_SHARE for name in LOAD_NUMBERS)


def _share(before: float | None, now: float | None) -> float:
    if before is None or now is None:
        return 0.0 if before is now else 1.0
    largest = max(abs(before), abs(now))
    return abs(before - now) / largest if largest > 4 else 0.0


def _skeleton(status: Mapping[str, Any]) -> Any:
    """The status without what moves with every scrape."""
    fleet_part = status.get("fleet") or {}
    last = status.get("lastDecision") or {}
    memory = status.get("memory") or {}
    return (
        status.get("observedGeneration"),
        status.get("replicas"),
        status.get("selector"),
        status.get("crossover"),
        fleet_part.get("pods"),
        fleet_part.get("engine"),
        fleet_part.get("draftTokens"),
        last.get("action"),
        last.get("reason"),
        status.get("recentDecisions"),
        memory,
        [(item["type"], item["status"], item["reason"]) for item in status.get("conditions") or []],
    )
