"""What a machine is seen to do: the port that rules are watched through, and readings from a file.

`node.owner.machine` reads the machine itself.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Protocol

FILE_VARIABLE: Final = "PLAIT_HARDWARE_FILE"
"""Readings come from this file instead, to try rules without the hardware."""
BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareReading:
    """One look at the machine. None: it cannot be told here.

    Attributes:
        other_gpu_process_mb: GPU memory that other programs hold together, MiB.
        is_on_battery: whether no mains supplies the machine.
        user_idle_s: seconds since somebody used the machine.
        is_fullscreen: whether the window in front fills a screen.
        gpu_temp_c: of the GPU that the node uses.
        power_w: what this GPU draws.
        vram_total_mb, vram_free_mb: of this GPU, MiB.
    """

    other_gpu_process_mb: float | None = None
    is_on_battery: bool | None = None
    user_idle_s: float | None = None
    is_fullscreen: bool | None = None
    gpu_temp_c: float | None = None
    power_w: float | None = None
    vram_total_mb: float | None = None
    vram_free_mb: float | None = None


class Hardware(Protocol):
    """Looks at the machine. Called in a thread, several times a second; may take a while."""

    def read(self) -> HardwareReading:
        """Never raises for what the machine lacks."""
        ...

    def set_power_limit(self, limit_w: float) -> str:
        """Hold the GPU to this power; "" where it does, else why it cannot be."""
        ...


class FileHardware:
    """Readings as a JSON object in a file, by the names of `HardwareReading`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = HardwareReading()

    def read(self) -> HardwareReading:
        """The last one where the file is half written or gone."""
        known = {field.name for field in fields(HardwareReading)}
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(BYTES_MAX))
            self._last = HardwareReading(**{k: v for k, v in content.items() if k in known})
        except (OSError, ValueError, AttributeError):
            pass
        return self._last

    def set_power_limit(self, limit_w: float) -> str:
        return "readings come from a file"
