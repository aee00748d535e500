"""The `plait` command. Subcommands are imported when they are asked for, so `--help` is quick."""

import importlib
import sys
from collections.abc import Mapping
from typing import Final

import click
import typer
from rich.console import Console
from rich.markup import escape
from typer.main import get_command

from plait.errors import PlaitError

SUBCOMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "demo": (
        "plait.cli.demo",
        "A whole network on this machine: coordinator, three nodes, one answer.",
    ),
    "coordinator": (
        "plait.cli.coordinator",
        "Run a coordinator: scheduler, gateway and dashboard.",
    ),
    "node": ("plait.cli.node", "Lend this machine to a network."),
    "ask": ("plait.cli.ask", "Ask one question; the answer streams."),
    "chat": ("plait.cli.chat", "Talk with a model in the terminal."),
    "status": ("plait.cli.status", "Nodes, layers, requests: what the dashboard shows."),
    "plan": ("plait.cli.plan", "What a pool of nodes could serve, and how."),
    "model": ("plait.cli.model", "Pull, list, verify and remove weights."),
    "token": ("plait.cli.token", "Enrolment tokens for nodes and API keys for clients."),
}


class LazyGroup(click.Group):
    """Looks a subcommand up in SUBCOMMANDS; each module has `app`, a Typer of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = SUBCOMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(entry[0])
        app: typer.Typer = module.app
        command = get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="plait")
def plait() -> None:
    """One LLM service over many volunteers' GPUs."""


def main() -> None:
    """Entry point: what failed is one line that says what helps, not a traceback."""
    try:
        plait()
    except PlaitError as error:
        Console(stderr=True).print(f"[bold red]error[/]: {escape(error.message)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
