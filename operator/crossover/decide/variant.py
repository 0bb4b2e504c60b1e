"""What a scheduler can run as: a draft length, "gated" or "off"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One way to decode, with its own step-time curve.

    Two zeros: ``Variant(0)`` is a speculating engine whose schedule says 0 ("gated": draft weights, draft KV and some
    extra work stay), ``Variant(0, off=True)`` a process started without speculation ("off").
    """

    draft_tokens: int
    off: bool = False

    @property
    def name(self) -> str:
        """``"draft-3"``, ``"gated"`` or ``"off"``: the key of corrections in memory and status."""
        if self.off:
            return "off"
        return f"draft-{self.draft_tokens}" if self.draft_tokens else "gated"

    @property
    def shown(self) -> str:
        """``"draft 3"``, ``"draft 0"`` or ``"off"``, for messages."""
        return "off" if self.off else f"draft {self.draft_tokens}"


OFF = Variant(0, off=True)
GATED = Variant(0)
