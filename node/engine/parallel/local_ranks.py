"""Ranks of a group as processes of this machine, started by its first one and ended with it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from node.engine.parallel.channel import LOST
from plait.errors import UnavailableError

STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """What a rank's process is told on its standard input, which holds it to its parent: where that
    ends, it ends too. `memory_bytes` caps what the rank uses (None: its share of what is free),
    `sharing` is how many ranks use one device."""

    address: str
    secret: str
    device: str
    dtype: str
    num_threads: int | None
    memory_bytes: int | None
    sharing: int
    log_level: str = "warning"

    def to_line(self) -> bytes:
        named = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(named).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> "RankSettings":
        return RankSettings(**json.loads(line))


class LocalRanks:
    """One process for each of `devices`. `module` is what Python runs in it."""

    def __init__(
        self,
        devices: Sequence[str],
        module: str,
        *,
        dtype: str,
        num_threads: int | None,
        memory_bytes: int | None,
        sharing: int,
    ) -> None:
        self._devices = tuple(devices)
        self._module = module
        self._dtype = dtype
        self._num_threads = num_threads
        self._memory_bytes = memory_bytes
        self._sharing = sharing
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self, address: str, secret: bytes) -> None:
        """Start all; they join at `address`."""
        for device in self._devices:
            settings = RankSettings(
                address=address,
                secret=secret.hex(),
                device=device,
                dtype=self._dtype,
                num_threads=self._num_threads,
                memory_bytes=self._memory_bytes,
                sharing=self._sharing,
            )
            environment = dict(os.environ)
            if self._num_threads is not None:
                environment["OMP_NUM_THREADS"] = str(self._num_threads)
            process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a Ctrl-C is the parent's, which ends them in order
            )
            self._processes.append(process)
            assert process.stdin is not None, "a pipe was asked for"
            process.stdin.write(settings.to_line())
            process.stdin.flush()

    def check(self) -> None:
        """Raises UnavailableError where one has ended."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise UnavailableError(
                    f"a rank's process ended with {code} before the group was formed", reason=LOST
                )

    def stop(self) -> None:
        """End all; those that do not go by themselves at the end of their input are killed."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


class InvitedRanks:
    """Ranks of other machines: their owners start them, with the address and the secret."""

    def start(self, address: str, secret: bytes) -> None:
        return

    def check(self) -> None:
        return

    def stop(self) -> None:
        return
