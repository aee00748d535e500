"""Codes as products want them: tiles of outputs, each with its columns in groups before its rows.

A group's columns share a scale. Few rows of activations are multiplied with the codes themselves,
group by group, and the sums are scaled: a code is unpacked, made wide and multiplied, no more. For
many rows the tile is made dense.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from node.engine.layouts.coded import (
    FLOAT8_SCALE,
    UPPER_BITS,
    CodedWeight,
    SelectedLinear,
    in_bytes,
    wide_float8,
)
from node.engine.layouts.tiles import TiledLinear
from node.engine.linear import Linear
from node.engine.tensor_bytes import num_bytes
from plait.models.coded import CodeKind

_EIGHT_BYTES = 0x0101010101010101
"""Bytes are masked and moved eight at a time: torch has no such loop for single ones."""

_OUTPUTS_MULTIPLE = 32
_FEW_SHARE = 2
"""Rows are few up to this share of a group's columns: beyond, scaling sums costs more."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """Outputs [start, end) of G groups of C columns, padded to n. low: uint8 (G, C or C / 2, n),
    high: (G, C / 8 or C / 4, n); scales and the rest: (groups of theirs, n)."""

    start: int
    end: int
    low: Tensor
    high: Tensor | None
    scale: Tensor
    scale_codes: Tensor | None
    least: Tensor | None
    least_codes: Tensor | None

    @property
    def num_bytes(self) -> int:
        return num_bytes(
            self.low, self.high, self.scale, self.scale_codes, self.least, self.least_codes
        )


class CodedLinear:
    """y = x Wᵀ + b over codes in tiles of about `tile_elements`."""

    __slots__ = ("_bias", "_columns", "_kind", "_num_groups", "_num_out", "_offset", "_tiles")

    def __init__(self, weight: CodedWeight, bias: Tensor | None, *, tile_elements: int) -> None:
        assert fits_tiles(weight), "its groups can be packed"
        self._num_out, self._columns = weight.shape
        self._kind = weight.kind
        self._offset = weight.offset
        self._bias = bias
        self._num_groups = count_groups(weight)
        stride = max(1, tile_elements // self._columns // _OUTPUTS_MULTIPLE) * _OUTPUTS_MULTIPLE
        self._tiles = tuple(
            _tile(weight, self._num_groups, start, min(start + stride, self._num_out))
            for start in range(0, self._num_out, stride)
        )

    @property
    def weight_bytes(self) -> int:
        return sum(tile.num_bytes for tile in self._tiles) + num_bytes(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        num_rows, num_groups = len(rows), self._num_groups
        group = self._columns // num_groups
        product = rows.new_empty((num_rows, self._num_out))
        widest = self._tiles[0].low.shape[-1]
        space = torch.empty(self._columns * widest, dtype=torch.float32, device=rows.device)
        codes = torch.empty(self._columns * widest, dtype=torch.uint8, device=rows.device)
        is_few = _FEW_SHARE * num_rows <= group
        if is_few:
            asked = rows.float().view(num_rows, num_groups, group).transpose(0, 1).contiguous()
            sums = asked.sum(-1).t()
        for tile in self._tiles:
            width = tile.low.shape[-1]
            shape = (num_groups, group, width)
            scale, least = self._scales(tile)
            wide = space[: self._columns * width].view(shape)
            self._make_wide(tile, codes[: self._columns * width].view(shape), wide)
            if is_few:
                out = torch.bmm(asked, wide).mul_(scale.unsqueeze(1)).sum(0)
                if least is not None:
                    out.addmm_(sums, least)
            else:
                wide.mul_(scale.unsqueeze(1))
                if least is not None:
                    wide.add_(least.unsqueeze(1))
                out = torch.mm(rows, wide.view(self._columns, width).to(rows.dtype))
            product[:, tile.start : tile.end] = out[:, : tile.end - tile.start]
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)

    def _scales(self, tile: _Tile) -> tuple[Tensor, Tensor | None]:
        """(groups, n) float32 both: w = scale * number + least, codes' offset in `least`."""
        scale = _times(tile.scale, tile.scale_codes)
        least: Tensor | None = None
        if tile.least is not None:
            least = _times(tile.least, tile.least_codes)
        elif tile.least_codes is not None:
            least = _times(scale, tile.least_codes).neg_()
        scale = _spread(scale, self._num_groups)
        if least is not None:
            least = _spread(least, self._num_groups)
        if self._offset and self._kind not in (CodeKind.INT8, CodeKind.FLOAT8):
            least = scale * -self._offset if least is None else least - scale * self._offset
        return (scale * FLOAT8_SCALE if self._kind is CodeKind.FLOAT8 else scale), least

    def _make_wide(self, tile: _Tile, codes: Tensor, wide: Tensor) -> None:
        """Codes, without their offset, as float32 into `wide` (groups, columns, n)."""
        if self._kind is CodeKind.INT8:
            wide.copy_(tile.low.view(torch.int8))
            return
        if self._kind is CodeKind.FLOAT8:
            wide.copy_(wide_float8(tile.low))
            return
        half = codes.shape[1] // 2
        low, eights = tile.low.view(torch.int64), codes.view(torch.int64)
        nibbles = 15 * _EIGHT_BYTES
        torch.bitwise_and(low, nibbles, out=eights[:, :half])
        torch.bitwise_right_shift(low, 4, out=eights[:, half:])
        eights[:, half:].bitwise_and_(nibbles)
        if tile.high is not None:
            bits = UPPER_BITS[self._kind]
            mask = ((1 << bits) - 1) * _EIGHT_BYTES
            high = tile.high.view(torch.int64)
            for place, field in enumerate(eights.chunk(8 // bits, dim=1)):
                field.bitwise_or_((high >> bits * place).bitwise_and_(mask).bitwise_left_shift_(4))
        wide.copy_(codes)


def fits_tiles(weight: CodedWeight) -> bool:
    """Whether its groups are nested in each other and as wide as bytes are packed."""
    num_groups = count_groups(weight)
    nested = all(num_groups % count == 0 for count in _group_counts(weight))
    group, bits = weight.shape[1] // num_groups, UPPER_BITS.get(weight.kind)
    packed = 1 if weight.kind.bits == 8 else 2 if bits is None else 8 // bits
    return nested and weight.shape[1] % num_groups == 0 and group % packed == 0


def count_groups(weight: CodedWeight) -> int:
    """The narrowest: how many there are in a row."""
    return max(_group_counts(weight))


def _group_counts(weight: CodedWeight) -> list[int]:
    every = (weight.scale, weight.scale_codes, weight.least, weight.least_codes)
    return [tensor.shape[1] for tensor in every if tensor is not None]


def _tile(weight: CodedWeight, num_groups: int, start: int, end: int) -> _Tile:
    def turned(tensor: Tensor | None) -> Tensor | None:
        """(outputs, groups) to (groups, outputs), padded."""
        return None if tensor is None else _padded(tensor[start:end].t())

    codes = weight.codes(start, end)
    codes = _padded(codes.view(end - start, num_groups, -1).permute(1, 2, 0))
    low, high = in_bytes(codes, weight.kind, dim=1)
    scale = turned(weight.scale)
    assert scale is not None
    return _Tile(
        start,
        end,
        low.contiguous(),
        high,
        scale,
        turned(weight.scale_codes),
        turned(weight.least),
        turned(weight.least_codes),
    )


def _padded(tensor: Tensor) -> Tensor:
    """(..., outputs) with zeros up to a multiple, contiguous."""
    missing = -tensor.shape[-1] % 8
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros((*tensor.shape[:-1], missing))], dim=-1)
    return tensor.contiguous()


def _times(coarse: Tensor, codes: Tensor | None) -> Tensor:
    """(groups, n) float32, one for each of the narrower groups."""
    values = coarse.float()
    return values if codes is None else _spread(values, len(codes)) * codes


def _spread(values: Tensor, num_groups: int) -> Tensor:
    """A row for each of the narrower groups."""
    times = num_groups // len(values)
    return values if times == 1 else values.repeat_interleave(times, dim=0)


def coded_linear(weight: CodedWeight, bias: Tensor | None, *, tile_elements: int) -> Linear:
    """y = x Wᵀ + b, wide `tile_elements` at a time."""
    linear: Linear
    if fits_tiles(weight):
        linear = CodedLinear(weight, bias, tile_elements=tile_elements)
    else:
        linear = TiledLinear(weight, bias, tile_elements=tile_elements)
    return linear if weight.columns is None else SelectedLinear(linear, weight.columns)
