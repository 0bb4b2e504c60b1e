"""What all models share: camelCase on the wire, unknown fields refused, CEL rules kept beside the fields."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Rule:
    """One cross-field rule: CEL for the API server, the same in Python for everybody else."""

    def __init__(self, cel: str, message: str, field: str) -> None:
        self.cel, self.message, self.field = cel, message, field

    def as_validation(self) -> dict[str, Any]:
        return {"rule": self.cel, "message": self.message, "fieldPath": self.field}


class Resource(BaseModel):
    """Base of every model in the API."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules of this object, in CEL, with paths relative to it."""
