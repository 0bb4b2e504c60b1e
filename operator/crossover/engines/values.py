"""Values out of a server's answer: what is no number, negative or endless is unknown, and no document can raise."""

from __future__ import annotations

import json
import math
from typing import Any

import yaml


def document(body: bytes) -> Any:
    """A JSON body; None when it is none (also when it nests too deeply)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def mapping(value: object) -> dict[str, Any]:
    """A JSON object; empty when it is something else."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A finite number of at least 0, no boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def count(value: object) -> int | None:
    """A whole number of at least 1, no boolean."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return int(value) if good else None  # type: ignore[call-overload]


def yaml_object(text: str) -> dict[str, Any] | None:
    """A file of options: empty is an empty object; None = no YAML, or no object."""
    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None
