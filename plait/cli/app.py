"""The `plait` command. Each subcommand is a module with `app`, a Typer; heavy imports happen
inside its functions, so that `--help` stays quick."""

import importlib
import importlib.util
import os
import sys
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.lifeline import hold_on
from plait.errors import PlaitError

GROUPS: Final = (
    "demo",
    "coordinator",
    "node",
    "ask",
    "chat",
    "status",
    "top",
    "plan",
    "simulate",
    "request",
    "model",
    "token",
)

app = typer.Typer(
    name="plait",
    help="One LLM service over many volunteers' GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(part: typer.Typer, name: str) -> None:
    """A module with commands becomes a group; one that is a single command, that command."""
    only = part.registered_callback
    if part.registered_commands or only is None or only.callback is None:
        app.add_typer(part, name=name)
    else:
        app.command(name, short_help=str(part.info.help))(only.callback)


for _name in GROUPS:
    if importlib.util.find_spec(f"plait.cli.{_name}") is not None:
        _add(importlib.import_module(f"plait.cli.{_name}").app, _name)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"plait {version('plait')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """One LLM service over many volunteers' GPUs."""


def run() -> None:
    """What failed is one line that says what helps, not a traceback."""
    hold_on()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write to our terminal
    try:
        app()
    except PlaitError as error:
        Console(stderr=True).print(f"[bold red]error[/]: {escape(error.message)}")
        sys.exit(1)
