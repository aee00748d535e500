"""Tensors to and from the bytes that frames and weight files carry: row-major, little endian."""

import ctypes
import sys

import numpy as np
import torch
from torch import Tensor

from node.engine.device import torch_dtype
from node.engine.kernels.rows import row_kernels
from plait.types import DType

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError("plait's engine needs a little-endian machine")

_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_LIKE = {dtype: torch.empty(0, dtype=torch_dtype(dtype)) for dtype in _FLOATS}
_NUMPY_KNOWS = frozenset({torch.float32, torch.float16})


def tensor_from_bytes(buffer: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A new CPU tensor with a copy of `buffer`, whose length must be the shape's.

    Raises ValueError on another length.
    """
    target = _LIKE[dtype].new_empty(shape)
    length = len(buffer) if isinstance(buffer, bytes) else buffer.nbytes
    if length != target.nbytes:
        raise ValueError(f"{length} bytes for shape {shape} of {dtype}: {target.nbytes} needed")
    if isinstance(buffer, bytes):  # a frame's: one call, as a step that waits for a row makes few
        ctypes.memmove(target.data_ptr(), buffer, length)
    else:
        raw = target.view(-1).view(torch.uint8).numpy()
        raw[:] = np.frombuffer(buffer, dtype=np.uint8)
    return target


def bytes_of(tensor: Tensor) -> bytes:
    """A copy of a CPU tensor's bytes."""
    whole = tensor.contiguous()  # has to live until its bytes are copied
    return ctypes.string_at(whole.data_ptr(), whole.nbytes)


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are. Of few on a CPU numpy knows in a tenth of torch's time."""
    kernels = row_kernels(tensor.numel(), tensor.dtype, tensor.device)
    if kernels is not None and tensor.is_contiguous():
        return kernels.is_finite(tensor)
    if tensor.is_cpu and tensor.dtype in _NUMPY_KNOWS:
        return bool(np.isfinite(tensor.numpy()).all())
    return bool(torch.isfinite(tensor).all())


def num_bytes(*tensors: Tensor | None) -> int:
    """Bytes of their elements together; None counts nothing."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
