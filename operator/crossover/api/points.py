"""Calibration points: what one measurement of one server at one load says. The input of `decide.profile`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """Steady state at ``running_requests`` with draft length ``draft_tokens`` on one replica.

    ``off`` tells a process started without speculation from draft length 0 inside a speculating engine ("gated"):
    they have separate curves. At least one of ``step_seconds`` and ``output_tokens_per_second`` is known; with the
    acceptance length each gives the other: S = b * AL / t (design note 0002).
    """

    running_requests: float
    draft_tokens: int
    off: bool = False
    context_tokens: float | None = None
    """Mean KV tokens per request; times ``running_requests`` = KV tokens in use."""
    step_seconds: float | None = None
    output_tokens_per_second: float | None = None
    acceptance_length: float | None = None
    """Tokens per request and step, bonus included; 1 without speculation."""
    acceptance_by_position: tuple[float, ...] = ()
    """Marginal acceptance of position 1..K."""
    relative_error: float | None = None
    """One standard error of the measured value, as a share of it."""
    verified_tokens: int | None = None
    """Tokens verified per request and step where it is not draft_tokens + 1 (trees)."""
    asked_running_requests: int | None = None
    """Requests kept in flight by the load generator; ``running_requests`` is the decode batch that came of it. None = the
    same, or not measured by Crossover."""
    acceptance_error: float | None = None
    """One standard error of ``acceptance_length``, as a share of it; None = as ``relative_error``."""
    interpolated: bool = False
    """Not measured: the draft length lies between measured ones (`crossover.calibrate.between`)."""
