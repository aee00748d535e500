"""`plait node`: a machine joins a network and serves layers."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from plait.cli.durations import milliseconds
from plait.cli.extras import needs
from plait.errors import ConfigError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.core.effects import Exit
    from node.ports import ProgressSink

app = typer.Typer(help="Lend this machine to a network.", no_args_is_help=True)

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DTYPES: Final = ("auto", "float32", "bfloat16")
_WEIGHTS: Final = ("auto", "fp32", "fp16", "int8", "int4")
TOKEN_PREFIX: Final = "plait1."

Home = Annotated[Path | None, typer.Option(help="Folder of this node's papers.")]
Name = Annotated[str, typer.Option(help="What the operator sees.")]


@app.command("join")
def join_network(
    coordinator: Annotated[
        str, typer.Argument(help="HOST[:PORT] of the coordinator, or the token itself.")
    ] = "",
    token: Annotated[
        str | None, typer.Option(envvar="PLAIT_TOKEN", help="Needed the first time only.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Read the token from this file, which may appear a little later."),
    ] = None,
    name: Name = "",
    memory: Annotated[
        str | None, typer.Option(help="Cap on weights and KV together, e.g. 2GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    weights: Annotated[
        str,
        typer.Option(help="Serve models in these numbers only: auto, fp32, fp16, int8, int4."),
    ] = "auto",
    listen: Annotated[
        str, typer.Option(help="Where neighbours are let in; port 0 is any free one.")
    ] = "0.0.0.0:0",
    advertise: Annotated[
        list[str] | None,
        typer.Option(help="HOST[:PORT] where neighbours reach this node; may be repeated."),
    ] = None,
    kv_tokens: Annotated[int, typer.Option(min=1, help="Most KV slots to keep.")] = 32_768,
    chunk_prompts: Annotated[
        bool,
        typer.Option(
            "--chunk-prompts/--whole-prompts",
            help="Cut prompts so that tokens of other requests do not wait for them.",
        ),
    ] = True,
    drain_s: Annotated[
        float, typer.Option(min=0, help="How long running requests may take to end on leaving.")
    ] = 10.0,
    home: Home = None,
    telemetry: Annotated[bool, typer.Option(help="Publish figures over MQTT.")] = True,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Join a network and serve until stopped. Ctrl-C leaves in order; twice leaves at once."""
    needs("node")
    from node.agent.identity import node_home
    from node.config import NodeConfig
    from plait import log
    from plait.types import DType

    if coordinator.startswith(TOKEN_PREFIX):
        coordinator, token = "", token or coordinator
    if token is not None and token_file is not None:
        raise ConfigError("--token and --token-file: give one of them")
    if dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype!r}: choose one of {', '.join(_DTYPES)}")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):  # before the token is spent
        raise ConfigError(f"--device {device!r}: use auto, cpu, cuda or cuda:N, e.g. cuda:0")
    if weights not in _WEIGHTS:
        raise ConfigError(f"--weights {weights!r}: choose one of {', '.join(_WEIGHTS)}")
    log.configure(level=_log_level(log_level))
    home = home if home is not None else node_home()
    config = NodeConfig(
        home=home,
        coordinator=coordinator,
        token=token,
        token_file=token_file,
        display_name=name,
        listen=_listen(listen),
        advertise=tuple(advertise or ()),
        memory_bytes=parse_bytes(memory) if memory is not None else None,
        num_threads=threads,
        device=device,
        compute_dtype=None if dtype == "auto" else DType(dtype),
        weights=weights,
        kv_tokens_max=kv_tokens,
        chunks_prompts=chunk_prompts,
        has_telemetry=telemetry,
        drain_ms=milliseconds(drain_s, flag="--drain-s"),
    )
    _end(_run(config))


@app.command("status")
def status(
    home: Home = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only whether it serves or stands by: exit code 0."),
    ] = False,
) -> None:
    """What the node on this machine does, its papers, and whether they reach the coordinator."""
    import asyncio

    from node.agent.identity import load_credentials, node_home
    from node.agent.local_status import read_local_status
    from plait.clock import SystemClock

    folder = home if home is not None else node_home()
    local = read_local_status(folder, SystemClock())
    does = f"{local.phase}: {local.detail}" if local is not None else "not running"
    if quiet:
        if local is None or not local.is_healthy:
            typer.echo(does, err=True)
            raise typer.Exit(1)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from plait.crypto.certificates import COORDINATOR_NAME, expires_unix_ms
    from plait.errors import PlaitError
    from plait.wire.reach import Address, check_reachable

    credentials = load_credentials(folder)
    problem = ""
    try:
        asyncio.run(
            check_reachable(
                Address.parse(credentials.coordinator_address),
                ca_pem=credentials.ca_pem,
                target_name=COORDINATOR_NAME,
            )
        )
    except PlaitError as error:
        problem = error.message
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("node", credentials.node_id)
    table.add_row("name", credentials.display_name or "-")
    table.add_row("does", escape(does))
    table.add_row("network", credentials.network_id)
    table.add_row("coordinator", credentials.coordinator_address)
    table.add_row("reachable", f"no: {problem}" if problem else "yes")
    table.add_row("certificate until", _date(expires_unix_ms(credentials.tls.certificate_pem)))
    table.add_row("papers", str(credentials.home))
    Console().print(table)
    if problem:
        raise typer.Exit(1)


@app.command("drain")
def drain(
    name: Annotated[
        str,
        typer.Argument(
            help="A node's name or id, for the operator; here: the one on this machine."
        ),
    ] = "here",
    limit_s: Annotated[
        float, typer.Option(min=0.1, help="How long what runs may take, for the operator.")
    ] = 10.0,
    home: Home = None,
) -> None:
    """Take a node out in order: running requests end or move, no client notices, it exits with 0.

    The node on this machine takes as long as its own --drain-s says.
    """
    from plait.cli.node_drain import HERE, drain_here, drain_named

    if name == HERE:
        from node.agent.identity import node_home

        drain_here(home if home is not None else node_home(), wait_s=limit_s)
        return
    milliseconds(limit_s, flag="--limit-s")
    drain_named(name, limit_s=limit_s)


def parse_bytes(text: str) -> int:
    """Bytes in "2GiB", "512M", "1.5 GB" (units are powers of two). Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(?:i?[bB])?\s*", text)
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if size <= 0:
        raise ConfigError(f"{text!r} is not an amount of memory: write it like 2GiB or 512MiB")
    return size


def _listen(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen {text!r}: write HOST:PORT, port 0 for any free one")
    return f"{host or '0.0.0.0'}:{port}"


def _log_level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"--log-level {text!r}: choose debug, info, warning or error")
    return text.lower()


def _date(unix_ms: int) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _end(code: int) -> None:
    """Out at once: everything is closed, and unloading the engine's libraries takes a second of
    processor time, many seconds on a machine whose owner wants it back."""
    import os
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(config: "NodeConfig") -> int:
    import asyncio

    from rich.console import Console

    from plait.cli.node_view import NodeScreen

    console = Console(stderr=True, highlight=False)
    # The first line before the engine's libraries, which take seconds.
    console.print("[dim]plait node: starting; loading the engine takes a few seconds[/]")
    with NodeScreen(console) as screen:
        leaving = asyncio.run(_join_and_serve(config, screen.show))
    if leaving.code != 0:
        raise ConfigError(leaving.reason.message or leaving.reason.code, reason=leaving.reason.code)
    return leaving.code


async def _join_and_serve(config: "NodeConfig", progress: "ProgressSink") -> "Exit":
    """Papers first: what is wrong with them shows before the engine's libraries are loaded."""
    import asyncio

    from node.agent.joining import check_config, join
    from plait.crypto.ownership import sole_owner

    await asyncio.to_thread(check_config, config)
    with sole_owner(config.home, role="node", flag="--home"):
        credentials = await join(config)
        from node.main import run

        return await run(config, credentials, progress)
