"""Schedules: from running requests to draft length, as ((running requests from, draft tokens), ...), ascending."""

from __future__ import annotations

from collections.abc import Sequence

Schedule = tuple[tuple[int, int], ...]


def of_threshold(disable_above: int, draft_tokens: int, *, zero_is_safe: bool) -> Schedule:
    """Full length up to the threshold; off (or 1 where a scheduled 0 is not safe) from the next request on."""
    return compact(((1, draft_tokens), (disable_above + 1, 0 if zero_is_safe else 1)))


def compact(schedule: Schedule) -> Schedule:
    """Without entries that change nothing."""
    kept: list[tuple[int, int]] = []
    for start, draft in schedule:
        if not kept or kept[-1][1] != draft:
            kept.append((start, draft))
    return tuple(kept)


def draft_at(schedule: Schedule, running_requests: float) -> int | None:
    """Draft length at this batch; None below the first key and for an empty schedule."""
    return next((draft for start, draft in reversed(schedule) if running_requests >= start), None)


def same(asked: Schedule, found: Schedule, padding: Sequence[int]) -> bool:
    """Whether ``found``, read back from a template, is what the engine makes of ``asked``.

    An engine that pads the batch to captured CUDA-graph sizes before it looks a key up gets keys moved up to such a
    size: a key may stand at most two captured sizes above the one asked for, so that it never acts early.
    """
    asked, found = compact(asked), compact(found)
    if [draft for _, draft in asked] != [draft for _, draft in found]:
        return False
    return all(
        there == here or (here < there and there in padding and sum(here <= size < there for size in padding) <= 1)
        for (here, _), (there, _) in zip(asked, found, strict=True)
    )


def describe(schedule: Schedule) -> str:
    """``"draft 3 up to 32 running requests, 0 above"``."""
    if not schedule:
        return "no schedule"
    last = schedule[-1][1]
    if len(schedule) == 1:
        return f"draft {last} at any load"
    parts = [f"{draft} up to {schedule[position + 1][0] - 1}" for position, (_, draft) in enumerate(schedule[:-1])]
    return f"draft {', '.join(parts)} running requests, {last} above"
