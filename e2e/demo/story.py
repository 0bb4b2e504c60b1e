"""Whether the story is right: each line is checked against the witness, the API's own records or the Events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from e2e.demo.fleets import ENABLE_BELOW, FOLLOWS_SCHEDULE, NEEDS_RESTART, REPLICAS, THRESHOLD
from e2e.demo.record import FleetRecord, Sample

INTERVAL_SECONDS = 2.0
STABILIZATION_SECONDS = 6.0
ALLOWED_SECONDS = INTERVAL_SECONDS + 1.0
WITNESS_SECONDS = 0.6
"""The witness samples twice a second: a crossing it dates may be that much older."""


@dataclass(frozen=True)
class Line:
    """One sentence of the story."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Evidence:
    """What the story is judged by."""

    record: FleetRecord
    status: dict[str, Any]
    events: Sequence[dict[str, Any]]
    log: str
    """The operator's own log: when it decided and patched."""
    ramp_at_seconds: float
    """When the load began to rise."""
    fall_at_seconds: float

    def reasons(self) -> list[str]:
        return [str(event["reason"]) for event in self.events]

    def done(self, kind: str) -> list[dict[str, Any]]:
        """What the operator logged as done for this fleet, oldest first, with `at`: the time of the patch."""
        found = []
        for line in self.log.splitlines():
            if '"event": "done"' not in line:
                continue
            item = json.loads(line)
            if item["name"] == self.record.name and item["kind"] == kind:
                item["at"] = datetime.fromisoformat(item["timestamp"]).timestamp()
                found.append(item)
        return found


def follows_schedule(evidence: Evidence) -> Iterator[Line]:
    """Fleet one: the engine's own schedule."""
    record, reasons = evidence.record, evidence.reasons()
    written = evidence.done("speculation")
    yield Line(len(written) == 1 and written[0]["what"].startswith("schedule"), _wrote(written))
    zero = _first_move(record, 0)
    yield Line(zero is not None, f"its engines went to draft length 0 by themselves{_clock(zero)}")
    yield Line(
        any(reason == "DraftLengthChanged" for reason in reasons),
        "the operator saw it and said so (Event DraftLengthChanged)",
    )
    grew = [item for item in evidence.done("replicas") if _direction(item["what"]) > 0]
    yield Line(bool(grew), f"it added replicas: {', '.join(item['what'] for item in grew) or 'never'}")
    yield from _latency(evidence, "replicas", grew, record.first(_above_target, after_seconds=evidence.ramp_at_seconds))
    full = _first_move(record, FOLLOWS_SCHEDULE.draft_tokens, after_seconds=evidence.fall_at_seconds)
    yield Line(
        full is not None,
        f"when the load fell its engines drafted {FOLLOWS_SCHEDULE.draft_tokens} tokens again{_clock(full)}",
    )
    shrank = [item for item in evidence.done("replicas") if _direction(item["what"]) < 0]
    yield Line(bool(shrank), f"and replicas went down again: {', '.join(item['what'] for item in shrank) or 'never'}")
    yield from _always(record)


def needs_restart(evidence: Evidence) -> Iterator[Line]:
    """Fleet two: a rollout each way."""
    record = evidence.record
    off = record.first(lambda sample: not sample.speculation_on)
    yield Line(off is not None, f"the pod template was patched to no speculation{_clock(off and off.at_seconds)}")
    turned = [item for item in evidence.done("speculation") if item["what"] == "speculation off"]
    crossed = None
    if turned:
        crossed = record.held_since(lambda s: (s.mean_running or 0) > THRESHOLD, before_seconds=turned[0]["at"])
    yield from _latency(
        evidence,
        "template",
        turned,
        crossed,
        extra_seconds=STABILIZATION_SECONDS,
        what=f"{STABILIZATION_SECONDS:.0f} s window + ",
    )
    all_off = record.first(lambda s: bool(s.pods) and not any(pod.speculates for pod in s.pods))
    yield Line(all_off is not None, f"every pod ran without speculation{_clock(all_off and all_off.at_seconds)}")
    after = all_off.at_seconds if all_off else float("inf")
    on = record.first(lambda sample: sample.speculation_on, after_seconds=after)
    yield Line(
        on is not None, f"when the load stayed below {ENABLE_BELOW} it was patched back{_clock(on and on.at_seconds)}"
    )
    resumed = on.at_seconds if on else after
    back = record.first(lambda s: bool(s.pods) and all(pod.speculates for pod in s.pods), after_seconds=resumed)
    yield Line(back is not None, f"every pod speculated again{_clock(back and back.at_seconds)}")
    changes = evidence.done("speculation")
    yield Line(len(changes) == 2, f"two rollouts in all, no more: {', '.join(item['what'] for item in changes)}")
    yield from _always(record)


def _always(record: FleetRecord) -> Iterator[Line]:
    lowest = min(sample.ready for sample in record.samples)
    seen = f"lowest seen: {lowest}, {len(record.samples)} samples"
    yield Line(lowest >= REPLICAS, f"never fewer than {REPLICAS} ready pods ({seen})")
    yield Line(
        record.requests_failed == 0 and record.requests_done > 0,
        f"{record.requests_done} requests answered, {record.requests_failed} lost",
    )


def _latency(
    evidence: Evidence,
    kind: str,
    acted: Sequence[dict[str, Any]],
    crossed: Sample | float | None,
    *,
    extra_seconds: float = 0.0,
    what: str = "",
) -> Iterator[Line]:
    """From the crossing, as the witness dates it, to the patch, as the operator's log dates it."""
    at = crossed.at_seconds if isinstance(crossed, Sample) else crossed
    if not acted or at is None:
        yield Line(False, f"{kind} patched in time: nothing to measure")
        return
    took = acted[0]["at"] - at
    limit = extra_seconds + ALLOWED_SECONDS
    decided = float(acted[0]["decided_at"]) - at
    yield Line(
        took <= limit + WITNESS_SECONDS,
        f"{kind}: decided {decided:.1f} s and patched {took:.1f} s after the crossing "
        f"(allowed: {what}scrape interval {INTERVAL_SECONDS:.0f} s + 1 s)",
    )


def _above_target(sample: Sample) -> bool:
    """The load is above the target by more than the tolerance of 10 %."""
    return (sample.mean_running or 0) > FOLLOWS_SCHEDULE.target_running_requests * 1.1


def _first_move(record: FleetRecord, length: int, *, after_seconds: float = 0.0) -> float | None:
    moves = {(pod.name, *move) for sample in record.samples for pod in sample.pods for move in pod.moves}
    times = sorted(at for _, at, to in moves if to == length and at >= after_seconds)
    return times[0] if times else None


def _direction(summary: str) -> int:
    match = re.match(r"replicas (\d+) -> (\d+)", summary)
    return int(match[2]) - int(match[1]) if match else 0


def _wrote(written: Sequence[dict[str, Any]]) -> str:
    what = ", ".join(str(item["what"]) for item in written) or "nothing"
    return f"the operator wrote the engine's schedule once, by a rollout: {what}"


def _clock(at_seconds: float | None) -> str:
    return "" if at_seconds is None else f" ({datetime.fromtimestamp(at_seconds).astimezone():%H:%M:%S})"


STORIES = {FOLLOWS_SCHEDULE.name: follows_schedule, NEEDS_RESTART.name: needs_restart}
