"""The engine that a node's settings ask for: by itself, or over the ranks of a group."""

import os
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from node.choices import too_small
from node.config import NodeConfig
from node.core.effects import Exit
from node.core.events import ModelOffered
from node.engine.device import Device
from node.engine.held import OpenSource
from node.engine.host import ThreadedEngineHost
from node.engine.parallel.group import RankGroup
from node.engine.parallel.host import GroupEngineHost
from node.engine.parallel.local_ranks import InvitedRanks, LocalRanks
from node.engine.parallel.split import require_even
from plait.crypto.files import read_private
from plait.errors import ConfigError, ModelError
from plait.types import Reason
from plait.wire.reach import Address

RANK_DRAIN_MS: Final = 2_000
"""How long requests may take to move when a rank is gone: none of their steps can run here."""

RANK_LOST: Final = 4
RANK_MODULE: Final = "node.rank"
INVITED_JOIN_S: Final = 600.0
SECRET_BYTES_MIN: Final = 16


async def open_engine(
    config: NodeConfig, device: Device, open_source: OpenSource, memory_bytes: int | None
) -> ThreadedEngineHost:
    """Not started yet; where it is a group's, formed. Raises PlaitError where that fails."""
    if config.tensor_parallel == 1:
        return ThreadedEngineHost(
            device,
            open_source,
            memory_bytes=memory_bytes,
            kv_tokens_max=config.kv_tokens_max,
            num_threads=config.num_threads,
            chunks_prompts=config.chunks_prompts,
            measure_s=config.measure_s,
        )
    num_ranks = config.tensor_parallel
    is_local = not config.rank_listen
    sharing = num_ranks if is_local and device.kind == "cpu" else 1
    if is_local and memory_bytes is not None and sharing == 1:
        memory_bytes //= num_ranks
    num_threads = config.num_threads
    if num_threads is None and sharing > 1:
        num_threads = max(1, (os.cpu_count() or 1) // num_ranks)
    make_host = partial(
        GroupEngineHost,
        open_source=open_source,
        memory_bytes=memory_bytes,
        kv_tokens_max=config.kv_tokens_max,
        num_threads=num_threads,
        chunks_prompts=config.chunks_prompts,
        measure_s=config.measure_s,
        sharing=sharing,
    )
    if is_local:
        members = LocalRanks(
            _devices(device, num_ranks)[1:],
            RANK_MODULE,
            dtype=device.compute_dtype,
            num_threads=num_threads,
            memory_bytes=memory_bytes,
            sharing=sharing,
        )
        group = RankGroup(num_ranks, device, members, secret=secrets.token_bytes(32))
    else:
        place = Address.parse(config.rank_listen)
        group = RankGroup(
            num_ranks,
            device,
            InvitedRanks(),
            secret=read_secret(config.secret_file),
            listen=(place.host, place.port),
            join_s=INVITED_JOIN_S,
        )
    host = make_host(group)
    await host.form()
    return host


def unfit(config: NodeConfig, device: Device, models: Sequence[ModelOffered]) -> Reason | None:
    """Why a network with these models cannot be served by this node at all; None: it can."""
    for offer in models:
        try:
            require_even(offer.spec, config.tensor_parallel)
        except ModelError as error:
            return Reason(
                code=error.code,
                message=f"{error.message} (--tensor-parallel); or leave this model out with "
                "models_allow in node.toml",
            )
    return too_small(config, device, models)


def rank_lost(why: str) -> Exit:
    """How a node ends whose group is broken."""
    message = f"{why}; start the node again to form the group anew"
    return Exit(RANK_LOST, Reason(code="rank_lost", message=message))


def read_secret(path: Path | None) -> bytes:
    """Raises ConfigError where there is none, one that others can read, or too short a one."""
    if path is None:
        raise ConfigError("--secret-file is needed where ranks of other machines join")
    secret = read_private(path).strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{path} holds {len(secret)} bytes, a group's secret needs {SECRET_BYTES_MIN}: make "
            f"one with `openssl rand -hex 32 > {path}`",
            reason="secret_short",
        )
    return secret


def _devices(device: Device, num_ranks: int) -> list[str]:
    """One for each rank: GPUs from the node's own on, or the one CPU."""
    if device.kind == "cpu":
        return ["cpu"] * num_ranks
    first, count = device.torch_device.index or 0, torch.cuda.device_count()
    if first + num_ranks > count:
        raise ConfigError(
            f"--tensor-parallel {num_ranks} needs as many GPUs from cuda:{first} on, and "
            f"there are {count} in all"
        )
    return [f"cuda:{first + rank}" for rank in range(num_ranks)]
