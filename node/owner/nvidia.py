"""One NVIDIA GPU, by the driver's own library."""

import contextlib
import os
from dataclasses import dataclass
from typing import Final

import psutil
import pynvml

from plait import log

_MILLI: Final = 1_000

_log = log.get("hardware")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Bytes, degrees and watts. None: the driver does not tell."""

    total_bytes: int
    free_bytes: int
    others_bytes: int
    temp_c: float | None
    power_w: float | None


class NvidiaGpu:
    """Opens the library when it is first asked; a machine without one reads as None."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._handle: object | None = None
        self._is_missing = False

    def read(self) -> GpuReading | None:
        if not self._open():
            return None
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
            return GpuReading(
                total_bytes=int(memory.total),
                free_bytes=int(memory.free),
                others_bytes=self._others_bytes(),
                temp_c=self._temp_c(),
                power_w=self._power_w(),
            )
        except pynvml.NVMLError as error:
            _log.info("gpu_not_read", why=str(error))
            return None

    def set_power_limit(self, limit_w: float) -> str:
        """ "" where the driver holds it from now on, else why it does not."""
        if not self._open():
            return "no NVIDIA driver answers"
        try:
            low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
            if not low <= limit_w * _MILLI <= high:
                return f"this GPU takes {low / _MILLI:.0f} to {high / _MILLI:.0f} W"
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(limit_w * _MILLI))
        except pynvml.NVMLError as error:
            return f"the driver refuses ({error}); as root, `nvidia-smi -pl {limit_w:g}` sets it"
        return ""

    def driver(self) -> tuple[str, str] | None:
        """(GPU's name, driver's version); None without either."""
        if not self._open():
            return None
        try:
            name, version = (
                pynvml.nvmlDeviceGetName(self._handle),
                pynvml.nvmlSystemGetDriverVersion(),
            )
        except pynvml.NVMLError:
            return None
        return str(name), str(version)

    def _open(self) -> bool:
        if self._handle is None and not self._is_missing:
            try:
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
            except pynvml.NVMLError:
                self._is_missing = True
        return self._handle is not None

    def _others_bytes(self) -> int:
        """Of processes that are neither this one nor started by it. In containers the driver may
        name none: then what is in use and not this process's own is not counted."""
        own = {os.getpid()}
        with contextlib.suppress(psutil.Error):
            own |= {child.pid for child in psutil.Process().children(recursive=True)}
        held: dict[int, int] = {}
        for ask in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            try:
                for process in ask(self._handle):
                    held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
            except pynvml.NVMLError:
                continue
        return sum(size for pid, size in held.items() if pid not in own)

    def _temp_c(self) -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU))
        except pynvml.NVMLError:
            return None

    def _power_w(self) -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / _MILLI
        except pynvml.NVMLError:
            return None
