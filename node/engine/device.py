"""Which device computes, in which dtype, with how much memory."""

from dataclasses import dataclass

import psutil
import torch

from plait.errors import ConfigError
from plait.types import DType, KvDtype

_TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
}

CPU_MEMORY_SHARE = 0.8
"""Of the free RAM, how much may be used: the rest is for the owner, Python and file caches."""

CUDA_MEMORY_SHARE = 0.92
"""Of the free VRAM, how much may be used: the rest is for CUDA's own workspaces."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's name of a dtype."""
    return _TORCH_DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Device:
    """A torch device, the dtype of weights and activations on it, and what KV is kept in there.
    `reserve_bytes` of its memory are left free for other programs."""

    torch_device: torch.device
    compute_dtype: DType
    reserve_bytes: int = 0
    kv_dtype: KvDtype = KvDtype.NATIVE

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return self.torch_device.type

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(self.compute_dtype)

    @property
    def name(self) -> str:
        """What people call the device."""
        if self.kind == "cuda":
            return str(torch.cuda.get_device_name(self.torch_device))
        return _cpu_name()

    def free_bytes(self) -> int:
        """Memory that weights, KV and buffers may take now."""
        if self.kind == "cuda":
            free, _total = torch.cuda.mem_get_info(self.torch_device)
            reusable = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(
                self.torch_device
            )
            usable = min(
                (free + reusable) * CUDA_MEMORY_SHARE, free + reusable - self.reserve_bytes
            )
            return max(0, int(usable))
        return int(psutil.virtual_memory().available * CPU_MEMORY_SHARE)

    def synchronize(self) -> None:
        """Wait until queued kernels are done; nothing to wait for on a CPU."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)


def pick_device(name: str = "auto", compute_dtype: DType | None = None) -> Device:
    """The device called `name`: "auto", "cpu", "cuda" or "cuda:N".

    Without a dtype a GPU computes in bfloat16 and a CPU in float32. Raises ConfigError.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device: use auto, cpu, cuda or cuda:0") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ConfigError(f"plait computes on cpu and cuda, not on {chosen.type}")
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("no CUDA device is visible here: use --device cpu")
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"there are {torch.cuda.device_count()} CUDA devices, no {name}")
    if compute_dtype is None:
        compute_dtype = DType.BFLOAT16 if chosen.type == "cuda" else DType.FLOAT32
    if compute_dtype is DType.INT8:
        raise ConfigError("int8 is for activations on the wire: nothing is computed in it")
    if chosen.type == "cpu" and compute_dtype is DType.FLOAT16:
        raise ConfigError("a CPU computes in float32 or bfloat16, not in float16")
    return Device(chosen, compute_dtype)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "CPU"
