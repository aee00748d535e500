"""`plait node install` and `uninstall`: the system starts the node by itself."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from plait.cli.node_owner import Home, Limits, Sets, owner_settings
from plait.cli.node_service import (
    Service,
    ServiceKind,
    service_text,
    start_commands,
    stop_commands,
    unit_path,
)
from plait.errors import ConfigError

CALL_S: Final = 60.0
_BY_PLATFORM: Final = {"linux": "systemd", "darwin": "launchd", "win32": "windows"}
_KEPT: Final = ("PLAIT_HOME", "PLAIT_MODELS", "HF_HOME", "CUDA_VISIBLE_DEVICES")

Kind = Annotated[str, typer.Option(help="systemd, launchd or windows; auto: this system's.")]
ServiceName = Annotated[str, typer.Option("--service", help="Its name in the system.")]
File = Annotated[
    Path | None, typer.Option("--file", help="Write it there instead, and start nothing.")
]


def install(
    options: Annotated[
        list[str] | None,
        typer.Argument(help="Options of `plait node join`, after --: install -- --threads 4"),
    ] = None,
    kind: Kind = "auto",
    service: ServiceName = "plait-node",
    file: File = None,
    home: Home = None,
    limits: Limits = None,
    sets: Sets = None,
) -> None:
    """Have the system start this node at log-in, and again when it fails.

    The node must have joined once: no token is written down.
    """
    from node.agent.identity import has_credentials, node_home

    chosen = _kind(kind)
    folder = (home if home is not None else node_home()).absolute()
    owner_settings(folder, limits, sets)  # what is wrong with them is said now
    if not has_credentials(folder):
        raise ConfigError(
            f"no node is enrolled in {folder}: join once with the operator's line "
            "(`plait node join COORDINATOR --token TOKEN`), stop it, then install it",
            reason="not_enrolled",
        )
    words = [*_plait(), "node", "join", "--home", str(folder)]
    words += ["--limits", str(limits.absolute())] if limits is not None else []
    words += [word for one in sets or () for word in ("--set", one)]
    text = service_text(
        chosen,
        Service(
            name=service,
            words=[*words, *(options or ())],
            environment={key: os.environ[key] for key in _KEPT if key in os.environ},
            log_path=str(folder / "node.log"),
        ),
    )
    path = file if file is not None else unit_path(chosen, service, Path.home())
    _write(path, text)
    typer.echo(f"written: {path}")
    commands = start_commands(chosen, service, path)
    if file is not None or chosen.value != _BY_PLATFORM.get(sys.platform):
        typer.echo("to start it:\n" + "\n".join(f"  {' '.join(words)}" for words in commands))
        return
    _run(commands)
    typer.echo("it runs, and starts by itself from now on; `plait node status` says how it does")
    if chosen is ServiceKind.SYSTEMD:
        typer.echo("to have it run while nobody is logged in: loginctl enable-linger")


def uninstall(kind: Kind = "auto", service: ServiceName = "plait-node", file: File = None) -> None:
    """Stop the node in order and have the system forget it. Papers and weights stay."""
    chosen = _kind(kind)
    path = file if file is not None else unit_path(chosen, service, Path.home())
    if not path.exists():
        raise ConfigError(f"there is no {path}: nothing was installed under this name")
    if file is None and chosen.value == _BY_PLATFORM.get(sys.platform):
        with contextlib.suppress(ConfigError):  # it may not run, or the system knows it no more
            _run(stop_commands(chosen, service, path))
    path.unlink()
    typer.echo(f"removed: {path}")


def _kind(word: str) -> ServiceKind:
    word = _BY_PLATFORM.get(sys.platform, "systemd") if word == "auto" else word
    if word not in tuple(ServiceKind):
        raise ConfigError(f"--kind {word!r}: choose auto, {', '.join(ServiceKind)}")
    return ServiceKind(word)


def _plait() -> list[str]:
    """This very installation, whatever the service's PATH is."""
    return [sys.executable, "-m", "plait.cli.main"]


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _run(commands: tuple[tuple[str, ...], ...]) -> None:
    """Raises ConfigError that names the command to run by hand."""
    for words in commands:
        line = " ".join(words)
        if shutil.which(words[0]) is None:
            raise ConfigError(
                f"{words[0]} is not installed here: nothing starts the node by itself"
            )
        try:
            ended = subprocess.run(
                words, capture_output=True, text=True, timeout=CALL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"`{line}` failed: {error}") from None
        if ended.returncode != 0:
            why = (ended.stderr or ended.stdout).strip().splitlines()
            raise ConfigError(f"`{line}` failed: {why[-1] if why else ended.returncode}")
