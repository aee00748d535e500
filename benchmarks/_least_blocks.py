"""What the best scale of a symmetric 4-bit block would leave, by trying every one that differs."""

from typing import Final

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from plait.models import open_source
from plait.models.gguf_rounding import rounded
from plait.models.source import TensorData
from plait.types import DType, ModelSource

Floats = NDArray[np.float32]

BLOCK: Final = 32
_LEVELS: Final = 8
_MATRICES: Final = 8
_BLOCKS: Final = 500
"""Of each matrix."""


def least_errors(values: Floats) -> Floats:
    """(blocks, 32) to (blocks,): the least squared error of codes -8 to 7 times any scale.

    Codes change where a value is half a code from one: between two such scales they are fixed, and
    the best scale is that of least squares. All of these are tried, of either sign.
    """
    best = np.full(len(values), np.inf, np.float32)
    halves = np.arange(-_LEVELS, _LEVELS - 1, dtype=np.float32) + np.float32(0.5)
    for signed in (values, -values):
        changes = (signed[:, :, None] / halves).reshape(len(values), -1)
        changes = np.sort(np.where(changes > 0, changes, np.inf), axis=1)
        first, last = changes[:, :1] / 2, changes[:, :-1]
        for scale in np.concatenate([first, (last + changes[:, 1:]) / 2], axis=1).T:
            there = np.isfinite(scale) & (scale > 0)
            units = np.where(there, scale, 1.0).astype(np.float32)[:, None]
            codes = np.clip(np.rint(signed / units), -_LEVELS, _LEVELS - 1)
            norm, inner = np.square(codes).sum(axis=1), (codes * signed).sum(axis=1)
            fitted = np.divide(inner, norm, out=np.zeros_like(inner), where=norm > 0)
            error = np.square(codes * fitted[:, None] - signed).sum(axis=1)
            best = np.where(there & (error < best), error, best)
    least: Floats = np.minimum(best, np.square(values).sum(axis=1))
    return least


def error_over_least(source: ModelSource) -> float:
    """Squared error of Q4_0 as plait writes it over the least possible, on blocks of some of the
    model's matrices."""
    opened, rng = open_source(source), np.random.default_rng(0)
    try:
        names = sorted(n for n in opened.tensor_names() if n.endswith("proj.weight"))
        blocks = [
            _values(opened.read(name)).reshape(-1, BLOCK)
            for name in names[:: max(1, len(names) // _MATRICES)]
        ]
    finally:
        opened.close()
    values = np.concatenate([b[rng.choice(len(b), _BLOCKS)] for b in blocks])
    stored = dequantize(rounded(values, GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0)
    return float(np.square(stored - values).sum() / least_errors(values).sum())


def _values(tensor: TensorData) -> Floats:
    """Of a GGUF, dequantised."""
    halves = tensor.dtype is DType.FLOAT16
    found = np.frombuffer(tensor.buffer, np.dtype("<f2" if halves else "<f4"))
    return found.astype(np.float32)
