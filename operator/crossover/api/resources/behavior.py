"""`spec.replicas.behavior`: HorizontalPodAutoscalerBehavior of autoscaling/v2, with its names, bounds and defaults."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from crossover.api import intent
from crossover.api.resources.base import Resource, Rule

_TOLERANCE_PATTERN = r"^(0(\.[0-9]{1,4})?|1(\.0{1,4})?|[0-9]{1,4}m)$"


def _tolerance(text: str) -> str:
    tolerance_share(text)
    return text


def tolerance_share(text: str) -> float:
    """A Quantity as a share: ``"0.1"`` and ``"100m"`` are 10 %. Raises ValueError."""
    try:
        share = Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except InvalidOperation:
        raise ValueError("tolerance is a share such as 0.1 or 100m") from None
    return float(share)


class HPAScalingPolicy(Resource):
    """One policy: how many pods, or what share of them, may come or go in a period."""

    type: intent.PolicyType = Field(description="Pods or Percent.")
    value: Annotated[int, Field(ge=1, le=10000)] = Field(
        description="Pods, or percent of the replicas at the period's start."
    )
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = Field(description="Length of the period.")


class HPAScalingRules(Resource):
    """Rules of one direction."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        None, description="Window over which recommendations must agree. Default: 0 up, 300 down."
    )
    select_policy: intent.SelectPolicy = Field(
        intent.SelectPolicy.MAX,
        description="Which policy counts: the one with most change, least change, or none at all.",
    )
    policies: Annotated[list[HPAScalingPolicy], Field(max_length=10)] | None = Field(
        None, description="Default up: 100 percent or 4 pods in 15 s, whichever is more; down: 100 percent in 15 s."
    )
    tolerance: Annotated[str, Field(pattern=_TOLERANCE_PATTERN, max_length=8), AfterValidator(_tolerance)] | None = (
        Field(
            None, description="Share by which the load may be off target without a change, such as 0.1 (the default)."
        )
    )

    def resolved(self, default: intent.ScalingRules) -> intent.ScalingRules:
        """With defaults filled in, as plain data."""
        window = self.stabilization_window_seconds
        policies = tuple(intent.ScalingPolicy(p.type, p.value, p.period_seconds) for p in self.policies or ())
        return intent.ScalingRules(
            default.stabilization_window_seconds if window is None else window,
            self.select_policy,
            policies or default.policies,
            default.tolerance if self.tolerance is None else tolerance_share(self.tolerance),
        )


class HorizontalPodAutoscalerBehavior(Resource):
    """How fast replicas may follow the load."""

    cel_rules: ClassVar[tuple[Rule, ...]] = ()
    scale_up: HPAScalingRules | None = Field(None, description="Rules for more replicas.")
    scale_down: HPAScalingRules | None = Field(None, description="Rules for fewer replicas.")
