"""`plait node doctor`: what would keep this machine from serving, before anything is downloaded."""

import asyncio
import json
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.amounts import parse_bytes, parse_listen
from plait.cli.extras import needs
from plait.cli.node_owner import Home, Limits, Sets, allowed_device, gpu_index, owner_settings

if TYPE_CHECKING:
    from node.doctor_checks import Check
    from node.doctor_machine import Machine
    from node.owner.settings import OwnerSettings

TOKEN_PREFIX: Final = "plait1."
_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}


def doctor(
    coordinator: Annotated[
        str, typer.Argument(help="HOST[:PORT] of the coordinator, or the token itself.")
    ] = "",
    token: Annotated[
        str | None, typer.Option(envvar="PLAIT_TOKEN", help="It is looked at, not used.")
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where neighbours would be let in; port 0 is any free one.")
    ] = "0.0.0.0:0",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    memory: Annotated[str | None, typer.Option(help="As for join.")] = None,
    home: Home = None,
    limits: Limits = None,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say before any download what would fail, and what to do; exit code 1 where something would.

    Nothing is changed and no token spent.
    """
    needs("node")
    from node.agent.identity import node_home
    from node.agent.local_status import read_local_status
    from node.doctor import examine
    from node.doctor_machine import Patient
    from plait.clock import SystemClock
    from plait.config import models_dir

    if coordinator.startswith(TOKEN_PREFIX):
        coordinator, token = "", token or coordinator
    folder, clock = home if home is not None else node_home(), SystemClock()
    settings = owner_settings(folder, limits, sets)
    device = allowed_device(device, settings)
    is_running = read_local_status(folder, clock) is not None
    host, _, port = parse_listen(listen).rpartition(":")
    patient = Patient(
        home=folder,
        coordinator=coordinator,
        token=token,
        settings=settings,
        machine=_machine(device, settings),
        models_dir=models_dir(),
        memory_bytes=parse_bytes(memory) if memory is not None else None,
        listen=None if is_running else (host.strip("[]"), int(port)),
        clock=clock,
        now_s=perf_counter,
    )
    checks = asyncio.run(examine(patient))
    has_failed = any(check.verdict == "fail" for check in checks)
    if as_json:
        typer.echo(
            json.dumps(
                {"is_ready": not has_failed, "checks": [asdict(c) for c in checks]}, indent=1
            )
        )
    else:
        _print(checks)
    if has_failed:
        raise typer.Exit(1)


def _machine(device: str, settings: "OwnerSettings") -> "Machine":
    import psutil

    from node.doctor_machine import Machine, torch_version
    from node.owner.nvidia import NvidiaGpu

    index = gpu_index(device, settings)
    gpu = NvidiaGpu(index) if index is not None else None
    reading = gpu.read() if gpu is not None else None
    names = (device,) if device != "auto" else settings.limits.devices
    return Machine(
        memory_free_bytes=int(psutil.virtual_memory().available),
        gpu=gpu.driver() if gpu is not None else None,
        vram_free_bytes=reading.free_bytes if reading is not None else 0,
        wants_gpu=bool(names) and all(name.startswith("cuda") for name in names),
        may_use_gpu=index is not None,
        torch=torch_version(),
    )


def _print(checks: "list[Check]") -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for check in checks:
        mark = f"[{_STYLES[check.verdict]}]{check.verdict:<7}[/]"
        console.print(f"{mark} [bold]{check.name}[/]: {escape(check.found)}", soft_wrap=True)
        if check.help:
            console.print(f"        {escape(check.help)}", soft_wrap=True)
