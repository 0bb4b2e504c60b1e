"""The `crossover` command: one module per subcommand in `crossover.commands`, imported only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "run": ("Run the operator against the current cluster.", "crossover.commands.run"),
    "crds": ("Print the CustomResourceDefinitions, generated from the models.", "crossover.commands.crds"),
    "inspect": ("Show what Crossover sees in one pod.", "crossover.commands.inspect"),
    "render": ("Show a schedule in an engine's own dialect.", "crossover.commands.render"),
    "explain": ("Show why a fleet is as it is and what would change it.", "crossover.commands.explain"),
    "fit": ("Fit calibration points: crossover, schedule, capacity, plot.", "crossover.commands.fit"),
    "simulate": ("Replay a load trace under several policies, side by side.", "crossover.commands.simulate"),
    "calibrate": ("Measure the crossover on a running server.", "crossover.commands.calibrate"),
    "emulate": ("Start a stand-in inference server with real wire formats.", "crossover.commands.emulate"),
}


class LazyGroup(TyperGroup):
    """Imports a subcommand's module when it is run, so that `crossover run` never pays for numpy."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(COMMANDS[name][1]) is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(COMMANDS[cmd_name][1])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Draft length and replicas of LLM fleets, decided together from what is measured.",
)


@app.callback()
def root() -> None:
    """Draft length and replicas of LLM fleets, decided together from what is measured."""


def main() -> None:
    """Console script. Exit status: 0 good, 1 the answer is no, 2 the input could not be used."""
    try:
        app(prog_name="crossover")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
