"""Tensor parallelism on the command line: a node that leads a group, and `plait node rank`."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.amounts import parse_bytes
from plait.cli.extras import needs
from plait.cli.huge_pages import use_huge_pages
from plait.errors import ConfigError

NUM_RANKS_MAX = 64
NumRanks = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        min=1,
        max=NUM_RANKS_MAX,
        help="Ranks that share every layer of this node: processes here, one a GPU.",
    ),
]
Listen = Annotated[
    str,
    typer.Option(help="HOST:PORT where ranks of other machines join (`plait node rank`)."),
]
Secret = Annotated[
    Path | None, typer.Option(help="File with what those ranks must know, 16 bytes or more.")
]


def checked_listen(rank_listen: str, num_ranks: int, secret_file: Path | None) -> str:
    """As given. Raises ConfigError where the flags of a group contradict each other."""
    from plait.wire.reach import Address

    if not rank_listen:
        if secret_file is not None:
            raise ConfigError("--secret-file: for ranks of other machines, with --rank-listen")
        return ""
    if num_ranks == 1:
        raise ConfigError("--rank-listen: say how many ranks there are with --tensor-parallel")
    if secret_file is None:
        raise ConfigError("--rank-listen: give the ranks' secret with --secret-file")
    place = Address.parse(rank_listen)
    if place.host in ("0.0.0.0", "::"):
        raise ConfigError(
            "--rank-listen: give the address of one interface, that of a network you trust: what "
            "ranks compute travels there unencrypted"
        )
    return str(place)


def rank(
    join: Annotated[str, typer.Option(help="HOST:PORT of the node's --rank-listen.")],
    secret_file: Annotated[Path, typer.Option(help="The file that the node has, too.")],
    memory: Annotated[
        str | None, typer.Option(help="Cap on this rank's weights and KV, e.g. 2GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of this rank.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16; the node's.")] = "auto",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Lend this machine to a node of the same LAN: a part of every layer that it holds."""
    needs("node")
    use_huge_pages()
    from node.engine.device import pick_device
    from node.grouping import INVITED_JOIN_S, read_secret
    from node.rank import serve_rank
    from plait import log
    from plait.types import DType

    log.configure(level=log_level)
    secret = read_secret(secret_file)
    compute_dtype = None if dtype == "auto" else DType(dtype)
    typer.echo(f"rank: joining the group at {join}", err=True)
    serve_rank(
        join,
        secret,
        pick_device(device, compute_dtype),
        num_threads=threads,
        memory_bytes=parse_bytes(memory) if memory is not None else None,
        join_s=INVITED_JOIN_S,
    )
    typer.echo("rank: the node has left", err=True)
