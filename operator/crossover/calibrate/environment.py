"""What a calibration is valid for. When one of these differs, its numbers are of another machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Environment:
    """Where points were measured. None = not told. Arguments: the container's own, without the speculation settings that
    the sweep changes and without secrets."""

    engine: str | None = None
    engine_version: str | None = None
    image: str | None = None
    """Image name as in the template."""
    image_digest: str | None = None
    """``sha256:...`` of what that name pointed to, where the kubelet tells it."""
    model: str | None = None
    draft_model: str | None = None
    speculative_algorithm: str | None = None
    gpu: str | None = None
    """What the template asks for per replica."""
    gpu_product: str | None = None
    """Of the nodes where it was measured, where they tell it."""
    arguments: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """16 hex digits, the same for the same environment."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differs(self, now: Environment) -> tuple[str, ...]:
        """Names of the fields that make points measured here stale there. A field that one side does not tell counts as
        equal: unknown is not changed."""
        changed = []
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(now, field.name)
            if before not in (None, ()) and after not in (None, ()) and before != after:
                changed.append(field.name)
        return tuple(changed)
