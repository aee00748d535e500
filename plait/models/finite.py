"""NaN and infinity have no place in weights, and no format checks for them."""

from typing import Final

import numpy as np

from plait.errors import WeightsError
from plait.types import DType

_CHUNK_ELEMENTS: Final = 2**22
_EXPONENT_BITS: Final = {
    DType.FLOAT32: 0x7F800000,
    DType.FLOAT16: 0x7C00,
    DType.BFLOAT16: 0x7F80,
}


def require_finite(buffer: memoryview, dtype: DType, *, name: str, where: str) -> None:
    """Raises WeightsError(reason="weights_not_finite") naming tensor and file."""
    mask = _EXPONENT_BITS[dtype]
    bits = np.frombuffer(buffer, dtype="<u4" if dtype.num_bytes == 4 else "<u2")
    for start in range(0, len(bits), _CHUNK_ELEMENTS):
        exponents = bits[start : start + _CHUNK_ELEMENTS] & mask
        if bool((exponents == mask).any()):
            raise WeightsError(
                f"{where}: tensor {name} has NaN or infinite values; the file is damaged, pull it "
                "again",
                reason="weights_not_finite",
            )
