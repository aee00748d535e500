"""Tensors to and from the bytes that frames and weight files carry: row-major, little endian."""

import sys

import numpy as np
import torch
from torch import Tensor

from node.engine.device import torch_dtype
from plait.types import DType

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError("plait's engine needs a little-endian machine")


def tensor_from_bytes(buffer: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A new CPU tensor with a copy of `buffer`, whose length must be the shape's.

    Raises ValueError on another length.
    """
    target = torch.empty(shape, dtype=torch_dtype(dtype))
    source = np.frombuffer(buffer, dtype=np.uint8)
    if len(source) != target.nbytes:
        raise ValueError(
            f"{len(source)} bytes for shape {shape} of {dtype}: {target.nbytes} needed"
        )
    if target.dtype is torch.float32:
        target.numpy()[...] = source.view(np.float32).reshape(shape)
    else:
        target.view(-1).view(torch.uint8).numpy()[:] = source
    return target


def bytes_of(tensor: Tensor) -> bytes:
    """A copy of a contiguous CPU tensor's bytes."""
    if tensor.dtype is torch.float32:
        return tensor.numpy().tobytes()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are. Of few on a CPU numpy knows in a tenth of torch's time."""
    if tensor.device.type == "cpu" and tensor.dtype is torch.float32:
        return bool(np.isfinite(tensor.numpy()).all())
    return bool(torch.isfinite(tensor).all())


def num_bytes(*tensors: Tensor | None) -> int:
    """Bytes of their elements together; None counts nothing."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
