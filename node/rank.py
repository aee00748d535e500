"""A rank of a tensor-parallel group, as a process: of this machine's node, or of another's.

`python -m node.rank` is what a node starts; it reads what to do from its standard input, and ends
with it. `plait node rank` calls `serve_rank`.
"""

import os
import socket
import sys
import threading
from functools import partial
from typing import Final

import torch

from node.agent.weights import open_weights
from node.engine.device import Device, pick_device
from node.engine.parallel.channel import RankChannel
from node.engine.parallel.local_ranks import RankSettings
from node.engine.parallel.rank import Rank
from plait import log
from plait.clock import Clock, SystemClock
from plait.errors import PlaitError, UnavailableError, plain_cause
from plait.types import DType
from plait.wire.reach import Address

CONNECT_S: Final = 10.0
RETRY_S: Final = 1.0
_LINE_BYTES_MAX: Final = 4096
_log = log.get("rank")


def serve_rank(
    address: str,
    secret: bytes,
    device: Device,
    *,
    num_threads: int | None,
    memory_bytes: int | None,
    sharing: int = 1,
    join_s: float = CONNECT_S,
) -> None:
    """Join the group that is formed at `address`, within `join_s`, and take part until its node
    leaves. Blocks.

    Raises UnavailableError where nobody is there any more, AuthenticationError, ConfigError.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    connection = _connect(Address.parse(address), join_s, SystemClock())
    hostname = str(connection.getsockname()[0])
    Rank(
        RankChannel.join(connection, secret),
        device,
        open_weights,
        hostname=hostname,
        usable_bytes=partial(_usable_bytes, device, memory_bytes, sharing),
    ).run()


def _connect(place: Address, join_s: float, clock: Clock) -> socket.socket:
    """A node may be started after its ranks."""
    deadline_ms = clock.monotonic_ms() + int(1e3 * join_s)
    pause = threading.Event()
    while True:
        try:
            return socket.create_connection((place.host, place.port), CONNECT_S)
        except OSError as error:
            if clock.monotonic_ms() + 1e3 * RETRY_S > deadline_ms:
                raise UnavailableError(
                    f"no group is formed at {place}: {plain_cause(error)}"
                ) from error
        pause.wait(RETRY_S)


def _usable_bytes(device: Device, memory_bytes: int | None, sharing: int) -> int:
    """A rank's share of what is free, at most its cap."""
    free = device.free_bytes() // sharing
    return free if memory_bytes is None else min(free, memory_bytes)


def main() -> int:
    """Exit status 0 where the node left in order."""
    settings = RankSettings.from_line(_first_line())
    threading.Thread(target=_hold_on, name="lifeline", daemon=True).start()
    log.configure(level=settings.log_level)
    try:
        serve_rank(
            settings.address,
            bytes.fromhex(settings.secret),
            pick_device(settings.device, DType(settings.dtype)),
            num_threads=settings.num_threads,
            memory_bytes=settings.memory_bytes,
            sharing=settings.sharing,
        )
    except PlaitError as error:
        _log.warning("rank_ended", reason=error.code, message=error.message)
        return 1
    return 0


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX:
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)  # the node has gone already
        line += byte
    return line


def _hold_on() -> None:
    """The node holds the other end of standard input: without it, nobody needs this process."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # unloading the engine's libraries would take seconds
