"""Options and settings that all of `plait node` shares."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.errors import ConfigError

if TYPE_CHECKING:
    from node.owner.settings import OwnerSettings

Home = Annotated[Path | None, typer.Option(help="Folder of this node's papers.")]
Limits = Annotated[
    Path | None,
    typer.Option(
        "--limits", help="The owner's limits and rules; without it node.toml in the node's folder."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE as in node.toml, e.g. up_mbit=8; may be repeated."),
]


def owner_settings(home: Path, limits: Path | None, sets: list[str] | None) -> "OwnerSettings":
    """From `node.toml`, PLAIT_NODE_... and --set. Raises ConfigError(reason="bad_limits")."""
    from node.owner.settings import FILE, read_settings

    return read_settings(
        limits if limits is not None else home / FILE,
        environ=os.environ,
        flags=sets or (),
        is_required=limits is not None,
    )


def allowed_device(device: str, settings: "OwnerSettings") -> str:
    """The device asked for, where it reads as one and the owner allows it. Raises ConfigError."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):  # before the token is spent
        raise ConfigError(f"--device {device!r}: use auto, cpu, cuda or cuda:N, e.g. cuda:0")
    allowed = settings.limits.devices
    names = {device, device.replace("cuda:0", "cuda"), device.replace("cuda", "cuda:0", 1)}
    if device != "auto" and allowed and not names & set(allowed):
        raise ConfigError(
            f"--device {device}: {settings.named('devices')} allows {', '.join(allowed)} alone"
        )
    return device


def gpu_index(device: str, settings: "OwnerSettings") -> int | None:
    """Which GPU is watched: the one that is used; None where only the CPU is."""
    names = (device,) if device != "auto" else settings.limits.devices or ("cuda",)
    for name in names:
        if name.startswith("cuda"):
            return int(name.partition(":")[2] or 0)
    return None
