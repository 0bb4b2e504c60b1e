"""Validation errors in words a user can act on: field, value, fix."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

MAX_VALUE = 60


@dataclass(frozen=True, slots=True)
class InvalidField:
    """``path``: as in the manifest, ``spec.replicas.min``. ``value``: shortened. ``fix``: what would be right."""

    path: str
    value: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: {self.fix}"


def explain(error: ValidationError) -> list[InvalidField]:
    """One entry per fault, in the order of the manifest."""
    found = []
    for item in error.errors(include_url=False, include_context=False):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
        value = repr(item["input"])
        shown = value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}..."
        found.append(InvalidField(path or "(object)", shown, item["msg"].removeprefix("Value error, ")))
    return found
