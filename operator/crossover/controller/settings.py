"""The operator's own configuration, from environment variables (`CROSSOVER_*`) that the chart sets."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OperatorSettings(BaseSettings):
    """Every field is an environment variable: `CROSSOVER_METRICS_PORT=8080` and so on."""

    model_config = SettingsConfigDict(env_prefix="CROSSOVER_")

    watch_namespaces: str = Field("", description="Comma-separated; empty = all namespaces.")
    metrics_address: str = Field("0.0.0.0", description="Where /metrics, /healthz and /readyz listen.")  # noqa: S104
    metrics_port: int = Field(8080, ge=0, le=65535, description="0 = any free port.")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR.")
    log_format: str = Field("json", pattern="^(json|text)$")
    leader_election: bool = Field(True, description="Act only while holding the Lease.")
    lease_name: str = "crossover"
    lease_namespace: str = Field("", description="Empty = the pod's own namespace.")
    identity: str = Field("", description="Holder identity of the Lease; empty = the host name.")
    scrape_timeout_seconds: float = Field(2.0, gt=0, le=30)
    scrape_concurrency: int = Field(200, ge=1, le=2000)
    workers: int = Field(32, ge=1, le=256, description="Fleets looked at side by side.")

    calibrations: int = Field(4, ge=1, le=64, description="Calibrations measured side by side.")
    calibration_relative_error: float = Field(
        0.005, gt=0, le=0.2, description="Standard error at which a point is good enough."
    )
    calibration_least_seconds: float = Field(4.0, gt=0, le=600, description="Shortest window of a point.")
    calibration_most_seconds: float = Field(90.0, gt=0, le=3600, description="Longest time for a point.")

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.watch_namespaces.split(",") if name.strip())
