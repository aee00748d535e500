"""Weights as codes of few bits with scales, in a file's own bits; made dense a tile at a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from node.engine.linear import Linear
from node.engine.tensor_bytes import num_bytes
from plait.models.coded import CodedMatrix, CodeKind
from plait.types import ModelSpec

_NIBBLE = 15
_GROUP_COLUMNS = 32
FLOAT8_SCALE = 256.0
"""A float8's bits inside a float16 are 2 ** (15 - 7) times too small: the biases differ."""

UPPER_BITS = {CodeKind.UINT5: 1, CodeKind.UINT6: 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodedWeight:
    """`plait.models.coded.CodedMatrix` packed, on a device. Every tensor has a row for each output.

    low: uint8; codes of 8 bits one a byte, lower four bits of others two a byte: column j beside
    column j + in / 2. high: upper one or two bits of codes of five or six, eight or four a byte,
    spread likewise. Scales and least values as there; `columns` int32.
    """

    kind: CodeKind
    offset: int
    low: Tensor
    high: Tensor | None
    scale: Tensor
    scale_codes: Tensor | None
    least: Tensor | None
    least_codes: Tensor | None
    columns: Tensor | None

    @staticmethod
    def of(matrix: CodedMatrix, device: torch.device) -> "CodedWeight":
        """Packs the codes; copies the rest as it is."""

        def moved(array: "np.typing.NDArray[np.generic] | None") -> Tensor | None:
            if array is None:
                return None
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        scale = moved(matrix.scale)
        assert scale is not None
        codes = torch.from_numpy(np.ascontiguousarray(matrix.codes))
        low, high = in_bytes(codes, matrix.kind, dim=1)
        columns = moved(matrix.columns)
        return CodedWeight(
            kind=matrix.kind,
            offset=matrix.offset,
            low=low.to(device),
            high=None if high is None else high.to(device),
            scale=scale,
            scale_codes=moved(matrix.scale_codes),
            least=moved(matrix.least),
            least_codes=moved(matrix.least_codes),
            columns=columns,
        )

    @property
    def shape(self) -> tuple[int, int]:
        per_byte = 1 if self.kind.bits == 8 else 2
        return self.low.shape[0], per_byte * self.low.shape[1]

    @property
    def weight_bytes(self) -> int:
        return num_bytes(*_tensors(self), self.columns)

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "CodedWeight":
        """Other rows, or rows in another order: `change` is called with each tensor."""
        low, high, scale, scale_codes, least, least_codes = (
            None if tensor is None else change(tensor).contiguous() for tensor in _tensors(self)
        )
        assert low is not None and scale is not None
        return replace(
            self,
            low=low,
            high=high,
            scale=scale,
            scale_codes=scale_codes,
            least=least,
            least_codes=least_codes,
        )

    def is_like(self, other: "CodedWeight") -> bool:
        """Whether both could be one weight, one below the other."""
        if (self.kind, self.offset) != (other.kind, other.offset):
            return False
        for mine, its in zip(_tensors(self), _tensors(other), strict=True):
            if (mine is None) != (its is None):
                return False
            if mine is None or its is None:
                continue
            if mine.shape[1] != its.shape[1] or mine.dtype is not its.dtype:
                return False
        if self.columns is None or other.columns is None:
            return self.columns is other.columns
        return torch.equal(self.columns, other.columns)

    def above(self, other: "CodedWeight") -> "CodedWeight":
        """Both as one weight. `other` is like this one."""
        pairs = iter(_tensors(other))

        def with_other(mine: Tensor) -> Tensor:
            its = next(tensor for tensor in pairs if tensor is not None)
            return torch.cat([mine, its])

        return self.map_rows(with_other)

    def dense(self, start: int, end: int, space: Tensor) -> Tensor:
        """Rows [start, end) as float32, in `space`; columns as they are stored: those of
        `columns`."""
        scale = _product(self.scale[start:end], _rows(self.scale_codes, start, end))
        values = self._numbers(start, end, space)
        if self.kind is CodeKind.FLOAT8:
            _grouped(values, scale * FLOAT8_SCALE, torch.Tensor.mul_)
        else:
            _grouped(values, scale, torch.Tensor.mul_)
        least_codes = _rows(self.least_codes, start, end)
        if self.least is not None:
            least = _product(self.least[start:end], least_codes)
            _grouped(values, least, torch.Tensor.add_)
        elif least_codes is not None:
            _grouped(values, _product(scale, least_codes), torch.Tensor.sub_)
        return values

    def codes(self, start: int, end: int) -> Tensor:
        """Of rows [start, end), one a byte, uint8 (rows, in)."""
        low = self.low[start:end]
        if self.kind.bits == 8:
            return low
        half = low.shape[1]
        codes = torch.empty((len(low), 2 * half), dtype=torch.uint8, device=low.device)
        torch.bitwise_and(low, _NIBBLE, out=codes[:, :half])
        torch.bitwise_right_shift(low, 4, out=codes[:, half:])
        if self.high is not None:
            _add_upper(codes, self.high[start:end], UPPER_BITS[self.kind])
        return codes

    def _numbers(self, start: int, end: int, space: Tensor) -> Tensor:
        low = self.low[start:end]
        if self.kind is CodeKind.INT8:
            return space.copy_(low.view(torch.int8))
        if self.kind is CodeKind.FLOAT8:
            return space.copy_(wide_float8(low))
        codes = self.codes(start, end)
        if self.offset == 0:
            return space.copy_(codes)
        return space.copy_(codes.view(torch.int8).sub_(self.offset))


def wide_float8(low: Tensor) -> Tensor:
    """Bits of float8 (uint8) as float16, `FLOAT8_SCALE` times too small."""
    # The sign spreads over bits 7 to 15, and is wanted in 15 alone: 14 is the exponent's.
    bits = low.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16)


class SelectedLinear:
    """A product over rows whose columns are brought into another order first."""

    __slots__ = ("_columns", "_inner")

    def __init__(self, inner: Linear, columns: Tensor) -> None:
        self._inner = inner
        self._columns = columns

    @property
    def weight_bytes(self) -> int:
        return self._inner.weight_bytes

    def __call__(self, rows: Tensor) -> Tensor:
        return self._inner(rows.index_select(1, self._columns))

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self._inner.plus(rows.index_select(1, self._columns), residual)


def stored_kind(spec: ModelSpec) -> CodeKind | None:
    """Codes of about as many bits as a file's weights have; None where it has 16 or more."""
    bits = spec.stored_layer_bits or 16.0
    limits = {
        CodeKind.UINT4: 5.3,
        CodeKind.UINT5: 6.2,
        CodeKind.UINT6: 7.5,
        CodeKind.INT8: 12.0,
    }
    return next((kind for kind, most in limits.items() if bits <= most), None)


def random_coded(kind: CodeKind, num_out: int, width: int, device: torch.device) -> CodedWeight:
    """Any weight of such codes, to measure with. `width` is a multiple of 8."""
    rng = np.random.default_rng(0)
    num_groups = width // math.gcd(width, _GROUP_COLUMNS)
    matrix = CodedMatrix(
        kind=kind,
        codes=rng.integers(0, 1 << min(kind.bits, 6), (num_out, width), dtype=np.uint8),
        scale=np.full((num_out, num_groups), 0.001, dtype=np.float16),
        least=np.full((num_out, num_groups), -0.008, dtype=np.float16),
    )
    return CodedWeight.of(matrix, device)


def _tensors(weight: CodedWeight) -> Sequence[Tensor | None]:
    """Those with a row for each output."""
    return (
        weight.low,
        weight.high,
        weight.scale,
        weight.scale_codes,
        weight.least,
        weight.least_codes,
    )


def in_bytes(codes: Tensor, kind: CodeKind, *, dim: int) -> tuple[Tensor, Tensor | None]:
    """Codes, one a byte, whose columns lie along `dim`, as lower bits, two of four in a byte, and
    upper ones, of as many columns as fit."""
    if kind.bits == 8:
        return codes, None
    left, right = (codes & _NIBBLE).chunk(2, dim=dim)
    low = left | right << 4
    bits = UPPER_BITS.get(kind)
    if bits is None:
        return low, None
    fields = (codes >> 4).chunk(8 // bits, dim=dim)
    high = torch.zeros_like(fields[0])
    for place, field in enumerate(fields):
        high |= field << (bits * place)
    return low, high


def _add_upper(codes: Tensor, high: Tensor, width: int) -> None:
    """Into `codes` (rows, in), in place."""
    mask = (1 << width) - 1
    for place, field in enumerate(codes.chunk(8 // width, dim=1)):
        field |= (high >> (width * place) & mask) << 4


def _rows(tensor: Tensor | None, start: int, end: int) -> Tensor | None:
    return None if tensor is None else tensor[start:end]


def _product(coarse: Tensor, codes: Tensor | None) -> Tensor:
    """(rows, groups) float32, one for each of the narrower groups."""
    values = coarse.float()
    if codes is None:
        return values
    wide = codes.float()
    _grouped(wide, values, torch.Tensor.mul_)
    return wide


def _grouped(values: Tensor, groups: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`change` each group's columns of `values` (rows, in) by its one of `groups`, in place."""
    change(values.view(*groups.shape, -1), groups.unsqueeze(-1))
