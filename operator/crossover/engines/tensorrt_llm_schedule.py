"""TensorRT-LLM's `draft_len_schedule`: which build honours it, what its keys mean there, what the engine would refuse.

The keys turned round between 1.2 (lower bounds: {1: 4, 8: 0} = 4 from 1, off from 8) and 1.3 (upper bounds: {4: 4, 32: 1} = 4
to 4, 1 to 32, off above). Without the version nothing is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from crossover.api.fleet import Capability, ScheduleDialect
from crossover.engines.contract import Refusal, Schedule

Version = tuple[int, int, int, int]
"""Major, minor, patch, release candidate (`RELEASE` for none)."""


RELEASE = 10**6


SCHEDULE_SINCE: Version = (1, 2, 0, 0)


FIRST_1_3: Version = (1, 3, 0, 0)


UPPER_BOUNDS_SURE_SINCE: Version = (1, 3, 0, 16)
"""The keys turned round in a candidate of March 2026; which number it has is not recorded. From this one on it is sure."""


LENGTH, SCHEDULE_KEY, CONCURRENCY = "max_draft_len", "draft_len_schedule", "max_concurrency"


GATES = ("acceptance_window", "acceptance_rate_window_size")


TWO_MODEL = ("NGRAM", "DRAFT_TARGET")
"""Where a Drafter object exists in 1.2 and earlier; one-model Eagle3 and MTP accept a schedule and ignore it."""


HONOURED_SINCE_1_3 = ("EAGLE3", "EAGLE", "MTP", "MTP_EAGLE", "PARD", "DFLASH", "DRAFT_TARGET", "SA", "NGRAM")


_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?rc(\d+))?")


def version_of(text: object) -> Version | None:
    match = _VERSION.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch or 0), RELEASE if candidate is None else int(candidate)


def version_text(version: Version | None) -> str | None:
    if version is None:
        return None
    number = ".".join(str(part) for part in version[:3])
    return number if version[3] == RELEASE else f"{number}rc{version[3]}"


def method_of(config: Mapping[str, Any]) -> str | None:
    method = config.get("decoding_type")
    return str(method).upper() if method else None


def schedule_of(config: Mapping[str, Any] | None, batch: int | None, version: Version | None = None) -> Schedule:
    """The schedule that stands there; () = none, or no table of numbers. ``batch``: max_batch_size.

    Without the version the dialect is told by its shape: lower bounds must name key 1, and upper bounds name it only for a
    band of a single request.
    """
    table = config.get(SCHEDULE_KEY) if config is not None else None
    if not isinstance(table, dict) or not table:
        return ()
    try:
        rows = sorted((int(key), int(value)) for key, value in table.items())
    except (TypeError, ValueError):
        return ()
    lower = rows[0][0] == 1 if version is None else version < FIRST_1_3
    if lower:
        return tuple(rows)
    starts = [1, *(key + 1 for key, _ in rows[:-1])]
    bands = [(start, draft) for start, (_, draft) in zip(starts, rows, strict=True)]
    last = rows[-1][0]
    return tuple(bands) if batch is not None and last >= batch else (*bands, (last + 1, 0))


def schedule_refusal(version: Version | None, config: Mapping[str, Any] | None) -> str | None:
    """Why this server cannot follow a schedule, in its own rules; None = it can."""
    if config is None:
        return "the server runs without speculation"
    if version is None:
        return f"the server has not told its version, and {SCHEDULE_KEY} means the opposite before 1.3"
    method = method_of(config)
    if any(config.get(gate) for gate in GATES):
        return "the acceptance gate switches speculation off for good until a restart: take it out first"
    if version < SCHEDULE_SINCE:
        return f"{SCHEDULE_KEY} is an unknown key before 1.2 and stops the server, this is {version_text(version)}"
    if FIRST_1_3 <= version < UPPER_BOUNDS_SURE_SINCE:
        return f"whether keys of {SCHEDULE_KEY} are lower or upper bounds is not known for {version_text(version)}"
    if version < FIRST_1_3 and not honours(version, config):
        also = f", as it does max_concurrency {config[CONCURRENCY]}" if config.get(CONCURRENCY) else ""
        return (
            f"TensorRT-LLM {version_text(version)} accepts {SCHEDULE_KEY} for one-model {method} and ignores it{also}"
        )
    if not honours(version, config):
        return f"{SCHEDULE_KEY} does not work with {method}"
    return None


def honours(version: Version, config: Mapping[str, Any]) -> bool:
    """Whether this build looks at schedule and max_concurrency in this mode at all."""
    method = method_of(config)
    if version >= FIRST_1_3:
        return method in HONOURED_SINCE_1_3
    two_model_eagle = method in ("EAGLE3", "EAGLE") and config.get("eagle3_one_model") is False
    return method in TWO_MODEL or two_model_eagle


def table_of(schedule: Schedule, able: Capability, batch: int | None) -> dict[int, int]:
    """Keys and values in the dialect of this version, with the engine's own rules applied. ``batch``: max_batch_size."""
    keys = [key for key, _ in schedule]
    if not schedule or keys[0] != 1 or keys != sorted(set(keys)) or any(draft < 0 for _, draft in schedule):
        raise Refusal(
            "InvalidSchedule",
            "keys must be 1 or more and ascend from 1, and lengths must be 0 or more.",
            field="schedule",
            fix="Write it as 1:3,33:1.",
        )
    if able.schedule_dialect is None:
        raise Refusal(
            "ScheduleUnsupported",
            f"{able.schedule_refusal or 'this server cannot follow a schedule'}.",
            field="spec.speculation.lever",
            fix="Use lever Restart or Auto.",
        )
    if max(draft for _, draft in schedule) != schedule[0][1]:
        raise Refusal(
            "InvalidSchedule",
            "the value of the smallest key must be max_draft_len, the longest of all.",
            field="schedule",
            fix="Let lengths fall with the batch.",
        )
    if schedule[0][1] == 0:
        raise Refusal(
            "InvalidSchedule",
            "max_draft_len must be greater than 0.",
            field="schedule",
            fix="Leave speculation out instead of scheduling 0 everywhere.",
        )
    if able.zero_is_safe is not True:
        schedule = tuple((key, max(1, draft)) for key, draft in schedule)
    if able.schedule_dialect is ScheduleDialect.TENSORRT_LLM_LOWER_BOUND:
        return dict(schedule)
    return _upper_bounds(schedule, batch)


def _upper_bounds(schedule: Schedule, batch: int | None) -> dict[int, int]:
    """{32: 3, 256: 1}: 3 up to 32, 1 up to 256, off above the largest key; a last band of 0 needs no key."""
    table = {schedule[position + 1][0] - 1: draft for position, (_, draft) in enumerate(schedule[:-1])}
    last = schedule[-1][1]
    if last > 0:
        if batch is None:
            raise Refusal(
                "LimitUnknown",
                "the last band needs an upper bound: above the largest key the engine drafts nothing.",
                field="spec.template.spec.containers[].args",
                fix="Set max_batch_size in the YAML.",
            )
        table[max(batch, schedule[-1][0])] = last
    return table
