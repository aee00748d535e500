"""GGUF's blocks as codes and scales. Formats: github.com/ggml-org/ggml, src/ggml-common.h."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from plait.models.coded import CodedMatrix, CodeKind

Bytes = NDArray[np.uint8]
"""Blocks of a matrix: (out, blocks in a row, bytes of a block)."""

Quant: TypeAlias = GGMLQuantizationType
_ONE, _THREE, _FOUR, _SIX = np.uint8(1), np.uint8(3), np.uint8(4), np.uint8(6)


def coded_from_blocks(rows: Bytes, quant: Quant) -> CodedMatrix | None:
    """Stored rows (out, bytes of a row) as codes; None for an element type without any here."""
    read = _READERS.get(quant)
    if read is None:
        return None
    return read(rows.reshape(len(rows), -1, GGML_QUANT_SIZES[quant][1]))


def _q4_0(blocks: Bytes) -> CodedMatrix:
    codes = _rows(_halves(blocks[..., 2:]))
    return CodedMatrix(kind=CodeKind.UINT4, codes=codes, offset=8, scale=_half(blocks, 0))


def _q4_1(blocks: Bytes) -> CodedMatrix:
    codes = _rows(_halves(blocks[..., 4:]))
    scale, least = _half(blocks, 0), _half(blocks, 2)
    return CodedMatrix(kind=CodeKind.UINT4, codes=codes, scale=scale, least=least)


def _q5_0(blocks: Bytes) -> CodedMatrix:
    codes = _rows(_halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]))
    return CodedMatrix(kind=CodeKind.UINT5, codes=codes, offset=16, scale=_half(blocks, 0))


def _q5_1(blocks: Bytes) -> CodedMatrix:
    codes = _rows(_halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8]))
    scale, least = _half(blocks, 0), _half(blocks, 2)
    return CodedMatrix(kind=CodeKind.UINT5, codes=codes, scale=scale, least=least)


def _q8_0(blocks: Bytes) -> CodedMatrix:
    return CodedMatrix(kind=CodeKind.INT8, codes=_rows(blocks[..., 2:]), scale=_half(blocks, 0))


def _q4_k(blocks: Bytes) -> CodedMatrix:
    return _with_minimums(blocks, CodeKind.UINT4, _chunked_halves(blocks[..., 16:]))


def _q5_k(blocks: Bytes) -> CodedMatrix:
    """Bit g of byte j is the fifth of element j in the block's group g."""
    bits = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & _ONE
    high: Bytes = bits.reshape(*blocks.shape[:2], 256) << _FOUR
    return _with_minimums(blocks, CodeKind.UINT5, _chunked_halves(blocks[..., 48:]) | high)


def _q6_k(blocks: Bytes) -> CodedMatrix:
    """Each half of a block: 64 bytes of lower bits, two elements each, and 32 of upper ones, four
    elements each."""
    ahead = blocks.shape[:2]
    low = blocks[..., :128].reshape(*ahead, 2, 64)
    low = np.concatenate([low & 15, low >> _FOUR], axis=-1)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    fields = (blocks[..., 128:192].reshape(*ahead, 2, 1, 32) >> shifts) & _THREE
    high: Bytes = fields.reshape(*ahead, 2, 128)
    return CodedMatrix(
        kind=CodeKind.UINT6,
        codes=_rows(low | high << _FOUR),
        offset=32,
        scale=_half(blocks, 208),
        scale_codes=_rows(blocks[..., 192:208]).view(np.int8),
    )


def _with_minimums(blocks: Bytes, kind: CodeKind, codes: Bytes) -> CodedMatrix:
    """Q4_K and Q5_K: eight groups of 32, whose scales and minimums are six bits each."""
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> _SIX) << _FOUR], axis=-1)
    minimums = np.concatenate([second & 63, (third >> _FOUR) | (second >> _SIX) << _FOUR], axis=-1)
    return CodedMatrix(
        kind=kind,
        codes=_rows(codes),
        scale=_half(blocks, 0),
        scale_codes=_rows(scales),
        least=-_half(blocks, 2),
        least_codes=_rows(minimums),
    )


def _halves(packed: Bytes) -> Bytes:
    """Lower halves of all bytes, then the upper ones."""
    return np.concatenate([packed & 15, packed >> _FOUR], axis=-1)


def _chunked_halves(packed: Bytes) -> Bytes:
    """The same within each 32 bytes."""
    chunks = packed.reshape(*packed.shape[:2], -1, 32)
    return _halves(chunks).reshape(*packed.shape[:2], -1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Four bytes, the lowest bit first, as 16 for each of 32 elements."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << _FOUR


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """The float16 at a place of each block: (out, blocks)."""
    found: NDArray[np.float16] = np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]
    return found


def _rows(parts: Bytes) -> Bytes:
    """(out, blocks, n) to (out, blocks * n)."""
    return np.ascontiguousarray(parts).reshape(len(parts), -1)


_READERS: Final[Mapping[Quant, Callable[[Bytes], CodedMatrix]]] = {
    Quant.Q4_0: _q4_0,
    Quant.Q4_1: _q4_1,
    Quant.Q5_0: _q5_0,
    Quant.Q5_1: _q5_1,
    Quant.Q8_0: _q8_0,
    Quant.Q4_K: _q4_k,
    Quant.Q5_K: _q5_k,
    Quant.Q6_K: _q6_k,
}
CODED_QUANTS: Final = frozenset(_READERS)
"""Element types whose blocks are codes here."""
