"""MXFP4: blocks of 32 four-bit floats with one power of two, as gpt-oss is stored.

OCP Microscaling Formats Specification v1.0 (2023), sections 5.3 and 6.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_VALUES: Final = np.array(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0],
    dtype=np.float32,
)
_PAIRS: Final = np.stack([_VALUES[np.arange(256) & 15], _VALUES[np.arange(256) >> 4]], axis=1)
_EXPONENT_BIAS: Final = 127


def dequantised(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(rows, blocks, 16) pairs, the lower half first, and (rows, blocks) exponents to (rows, 32 *
    blocks)."""
    values = _PAIRS[blocks].reshape(*scales.shape, -1)
    exponents = scales.astype(np.int32) - _EXPONENT_BIAS
    scaled: NDArray[np.float32] = np.ldexp(values, exponents[..., None])
    return scaled.reshape(len(blocks), -1)
