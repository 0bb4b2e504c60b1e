"""The custom resources as pydantic models: the one source of the CRDs, of validation and of the reference page."""

from crossover.api.resources.autoscaler import ModelAutoscaler, ModelAutoscalerSpec
from crossover.api.resources.calibration import (
    Calibration,
    CalibrationSpec,
    CalibrationStatus,
    ResultStatus,
    WhenStale,
)
from crossover.api.resources.status import ModelAutoscalerStatus

GROUP = "crossover.dev"
VERSION = "v1alpha1"

__all__ = [
    "GROUP",
    "VERSION",
    "Calibration",
    "CalibrationSpec",
    "CalibrationStatus",
    "ModelAutoscaler",
    "ModelAutoscalerSpec",
    "ModelAutoscalerStatus",
    "ResultStatus",
    "WhenStale",
]
