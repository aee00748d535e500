"""Watches the machine and its owner's rules, and says when the machine is lent and when not.

Hardware is read in a thread of its own: a driver that hangs costs its readings, never the node.
"""

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from node.owner.hardware import Hardware, HardwareReading
from node.owner.pause import PauseFile
from node.owner.rules import OwnerRules, WhyPaused, unwatched
from node.owner.settings import OwnerSettings
from node.owner.usage import TrafficMeter
from plait import log
from plait.clock import Clock

READ_S: Final = 0.25
LOOK_S: Final = 0.2
FIRST_READ_S: Final = 2.0

_log = log.get("owner")


class OwnerWatch:
    """One node's owner. `start` it, then `look` or `run`; `stop` at the end."""

    def __init__(
        self, settings: OwnerSettings, home: Path, hardware: Hardware, clock: Clock
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self._hardware = hardware
        self._clock = clock
        self._rules = OwnerRules(settings)
        self._pause_file = PauseFile(home)
        self._weights_bytes = 0
        self._frame_bytes: Callable[[], int] = lambda: 0
        self._traffic = TrafficMeter(home, self._total_bytes, local_time(clock))
        self._reading = HardwareReading()
        self._is_read = threading.Event()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.why: WhyPaused | None = None
        self.notes: tuple[str, ...] = ()

    @property
    def reading(self) -> HardwareReading:
        """The last look at the machine."""
        return self._reading

    @property
    def month_bytes(self) -> int:
        """Traffic of this month so far."""
        return self._traffic.month_bytes(local_time(self._clock), self._clock.monotonic_ms())

    def count_frames(self, total_bytes: Callable[[], int]) -> None:
        """Traffic of frames, as the transport counts it since its start."""
        self._frame_bytes = total_bytes

    def count_weights(self, num_bytes: int) -> None:
        """Weights have come from the network; any thread may say so."""
        self._weights_bytes += num_bytes

    async def start(self) -> None:
        """Read the machine for the first time, and set what its driver enforces itself."""
        self._thread = threading.Thread(target=self._read, name="plait-owner", daemon=True)
        self._thread.start()
        await asyncio.to_thread(self._is_read.wait, FIRST_READ_S)
        self.notes = unwatched(self.settings, self._reading)
        for note in self.notes:
            _log.warning("rule_not_watched", note=note)

    def stop(self) -> None:
        """Idempotent."""
        self._is_stopped.set()
        self._traffic.save()

    def look(self) -> WhyPaused | None:
        """Why the machine is its owner's alone now; None where it is lent."""
        self.why = self._rules.why(
            self._reading,
            now_ms=self._clock.monotonic_ms(),
            local=local_time(self._clock),
            pause=self._pause_file.read(self._clock.unix_ms()),
            traffic_bytes=self.month_bytes,
        )
        return self.why

    async def looked(self) -> None:
        """Until the machine was read once more."""
        self._is_read.clear()
        await asyncio.to_thread(self._is_read.wait, FIRST_READ_S)

    async def run(self, changed: Callable[[WhyPaused | None], None]) -> None:
        """Tell every change until cancelled, the first time in any case."""
        told: WhyPaused | None = None
        is_first = True
        while True:
            why = self.look()
            if is_first or why != told:
                if (why is None) != (told is None) or is_first:
                    _log.info("owner", paused=why.code if why is not None else "no")
                told, is_first = why, False
                changed(why)
            await asyncio.sleep(LOOK_S)

    def _read(self) -> None:
        limit_w = self.limits.power_limit_w
        if limit_w is not None:
            problem = self._hardware.set_power_limit(limit_w)
            if problem:
                _log.warning("power_limit_by_rests", why=problem)
        while not self._is_stopped.is_set():
            try:
                self._reading = self._hardware.read()
            except Exception as error:  # root of the thread: one look is lost, the next may work
                _log.warning("hardware_not_read", error=repr(error))
            self._is_read.set()
            self._is_stopped.wait(READ_S)

    def _total_bytes(self) -> int:
        return self._frame_bytes() + self._weights_bytes


def local_time(clock: Clock) -> datetime:
    """The owner's wall clock."""
    return datetime.fromtimestamp(clock.unix_ms() / 1_000).astimezone()
