"""What no metric tells: how long a step of the emulated hardware takes and how good the draft is."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from crossover.decide.step_model import PRESETS, UNVALIDATED, StepModel

MODELS: dict[str, StepModel] = {**PRESETS, **UNVALIDATED}
SURE = 0.98
"""No draft position is accepted more often than this."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The hidden truth of one server."""

    model: StepModel = field(default_factory=lambda: PRESETS["8b-h100"])
    acceptance: tuple[float, ...] = (0.67,)
    """Probability that a position is accepted once those before it were; the last one goes on for ever."""
    acceptance_spread: float = 0.1
    """Requests differ: coefficient of variation of their acceptance."""
    forced_acceptance_length: float | None = None
    """Set by the engine's own test switch: every step emits this many tokens on average, whatever the draft."""
    step_noise: float = 0.0
    """Log-normal scatter of step times, as a share."""
    zero_costs_as: int | None = None
    """A gated engine at draft length 0 pays for this draft length all the same (seen in some builds)."""
    zero_is_free: bool = False
    """At draft length 0 the draft is not even extended."""
    zero_gap_acceptance: float = 1.0
    """Factor on the acceptance of requests that lived through a step at 0: their draft KV has a hole."""

    def request_factor(self, draw: random.Random) -> float:
        """One request's acceptance relative to the mean."""
        best = max(self.acceptance)
        factor = 1 + draw.gauss(0.0, self.acceptance_spread)
        return min(SURE, max(0.0, best * factor)) / best if best else 1.0

    def conditionals(self, draft: int) -> tuple[float, ...]:
        """Acceptance of each of ``draft`` positions."""
        given = self.acceptance[:draft]
        return (*given, *[self.acceptance[-1]] * (draft - len(given)))

    def step_seconds(
        self,
        requests: int,
        draft: int,
        kv_tokens: int,
        draw: random.Random,
        *,
        speculates: bool,
        drafts_free: bool,
        verified: int,
        prefill_tokens: int = 0,
    ) -> float:
        """A decode step of ``requests`` requests, with ``prefill_tokens`` of prompts in the same batch."""
        if speculates and draft == 0:
            if self.zero_costs_as is not None:
                draft, verified = self.zero_costs_as, self.zero_costs_as + 1
            elif self.zero_is_free:
                drafts_free = True
        seconds = self.model.step_seconds(
            requests,
            draft,
            kv_tokens,
            off=not speculates,
            drafts_free=drafts_free,
            verified_tokens=verified,
            prefill_tokens=prefill_tokens,
        )
        return self.noisy(seconds, draw)

    def noisy(self, seconds: float, draw: random.Random) -> float:
        return seconds * math.exp(draw.gauss(0.0, self.step_noise)) if self.step_noise else seconds
