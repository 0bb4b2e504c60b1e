"""Lengths of requests as the spec of a Calibration tells them."""

from __future__ import annotations

from crossover.api.resources.calibration import PercentileSpec, WorkloadSpec
from crossover.calibrate.workload import Workload


def lengths_of(wanted: WorkloadSpec) -> Workload:
    """As the spec tells them, without a trace. Raises `WorkloadError`."""
    if wanted.input_percentiles is None and wanted.output_percentiles is None:
        return Workload.fixed(wanted.input_tokens, wanted.output_tokens)

    def quantiles(given: list[PercentileSpec] | None, fixed: int) -> list[tuple[float, float]]:
        return [(item.percentile / 100, item.tokens) for item in given] if given else [(0.5, fixed)]

    return Workload.of_quantiles(
        quantiles(wanted.input_percentiles, wanted.input_tokens),
        quantiles(wanted.output_percentiles, wanted.output_tokens),
    )


def mean_output_tokens(wanted: WorkloadSpec) -> float | None:
    """None = a trace knows."""
    return lengths_of(wanted).mean_output_tokens if wanted.trace_ref is None else None
