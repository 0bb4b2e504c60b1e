"""`crossover run`: the operator."""

from __future__ import annotations

import asyncio

import typer
from pydantic import ValidationError

from crossover.api.faults import ClusterError
from crossover.api.invalid import explain
from crossover.cluster.login import LoginError
from crossover.controller.operator import run as run_operator
from crossover.controller.settings import OperatorSettings
from crossover.report.log import configure

app = typer.Typer()


@app.command()
def run() -> None:
    """Run the operator against the cluster of KUBECONFIG, or of the pod it runs in.

    Configured by environment variables (the chart sets them): CROSSOVER_WATCH_NAMESPACES, CROSSOVER_METRICS_PORT,
    CROSSOVER_LOG_LEVEL, CROSSOVER_LOG_FORMAT, CROSSOVER_LEADER_ELECTION, CROSSOVER_LEASE_NAMESPACE and others; see
    docs/reference. Exit status: 0 after SIGTERM, 1 when the lease or a watch was lost (start it again), 2 when it could
    not start.
    """
    try:
        settings = OperatorSettings()
    except ValidationError as error:
        for item in explain(error):
            typer.echo(f"CROSSOVER_{item.path.upper()}: {item.value}: {item.fix}", err=True)
        raise typer.Exit(2) from None
    configure(settings.log_level, human=settings.log_format == "text")
    try:
        raise typer.Exit(asyncio.run(run_operator(settings)))
    except (LoginError, ClusterError) as error:
        typer.echo(f"cannot start: {error}", err=True)
        raise typer.Exit(2) from None
