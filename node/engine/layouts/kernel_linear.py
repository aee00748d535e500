"""Products with codes by kernels that are compiled for them; see decision 199."""

import torch
from torch import Tensor

from node.engine.kernels.processor import has_kernels
from node.engine.kernels.threads import in_threads
from node.engine.layouts.coded import CodedWeight, SelectedLinear, in_bytes
from node.engine.layouts.coded_tiles import count_groups, fits_tiles
from node.engine.layouts.kernel_code import TILE_OUTPUTS, WIDE_COLUMNS, CodeShape, Shared
from node.engine.layouts.kernels import compiled
from node.engine.linear import Linear
from node.engine.tensor_bytes import num_bytes
from plait.models.coded import CodeKind

_CUT_OUTPUTS = 64 * TILE_OUTPUTS
"""Outputs that are brought into tiles at once."""

_SHARED_KINDS = {
    torch.float16: "half",
    torch.float32: "float",
    torch.int8: "i8",
    torch.uint8: "u8",
}


class KernelLinear:
    """y = x Wᵀ + b over codes, float32. Each row comes out the same bit for bit, whoever stands
    beside it and however many threads there are."""

    __slots__ = ("_bias", "_fields", "_kernel", "_num_out", "_num_tiles", "_space", "_tensors")

    def __init__(self, weight: CodedWeight, bias: Tensor | None) -> None:
        assert fits_kernels(weight), "a kernel can be made for it"
        self._num_out, width = weight.shape
        self._num_tiles = -(-self._num_out // TILE_OUTPUTS)
        self._bias = bias
        num_groups = count_groups(weight)
        group = width // num_groups
        self._kernel = compiled(_shape_of(weight, num_groups))
        self._space = max(group, WIDE_COLUMNS) * TILE_OUTPUTS
        self._tensors = (
            *_tiled_codes(weight, num_groups),
            *(None if groups is None else _tiled(groups) for groups in _shared(weight)),
        )
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in self._tensors]
        self._fields = torch.tensor([*addresses, num_groups], dtype=torch.int64)

    @property
    def weight_bytes(self) -> int:
        return num_bytes(*self._tensors, self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        count, width = rows.shape
        product = rows.new_empty((count, self._num_tiles * TILE_OUTPUTS))
        if count == 0:
            return product[:, : self._num_out]
        fields, begin, end = self._fields.data_ptr(), rows.data_ptr(), product.data_ptr()

        def multiply(tiles: range) -> None:
            space = torch.empty(self._space, dtype=torch.float32)
            self._kernel(
                fields,
                begin,
                end,
                tiles,
                count=count,
                num_tiles=self._num_tiles,
                space=space.data_ptr(),
            )

        in_threads(multiply, self._num_tiles, numbers=count * width * self._num_out)
        if product.shape[1] != self._num_out:
            product = product[:, : self._num_out].contiguous()
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


def fits_kernels(weight: CodedWeight) -> bool:
    """Whether a kernel can be compiled for these codes on this processor."""
    groups = [tensor for tensor in _shared(weight) if tensor is not None]
    return (
        weight.kind is not CodeKind.FLOAT8
        and weight.low.device.type == "cpu"
        and all(tensor.dtype in _SHARED_KINDS for tensor in groups)
        and fits_tiles(weight)
        and has_kernels()
    )


def kernel_linear(weight: CodedWeight, bias: Tensor | None) -> Linear:
    """A product over codes that fit, their columns in whatever order."""
    linear = KernelLinear(weight, bias)
    return linear if weight.columns is None else SelectedLinear(linear, weight.columns)


def _shared(weight: CodedWeight) -> tuple[Tensor | None, ...]:
    """(out, groups) each, in the order of `kernel_code.FIELDS`."""
    return weight.scale, weight.scale_codes, weight.least, weight.least_codes


def _shape_of(weight: CodedWeight, num_groups: int) -> CodeShape:
    def shared(groups: Tensor) -> Shared:
        return Shared(kind=_SHARED_KINDS[groups.dtype], groups=num_groups // groups.shape[1])

    scale, *others = _shared(weight)
    assert scale is not None
    scale_codes, least, least_codes = (None if g is None else shared(g) for g in others)
    return CodeShape(
        kind=weight.kind,
        group=weight.shape[1] // num_groups,
        offset=weight.offset,
        scale=shared(scale),
        scale_codes=scale_codes,
        least=least,
        least_codes=least_codes,
    )


def _tiled_codes(weight: CodedWeight, num_groups: int) -> tuple[Tensor, Tensor | None]:
    """Lower and upper bits, (tiles, groups, columns or fewer, outputs of a tile)."""
    low: list[Tensor] = []
    high: list[Tensor] = []
    for start in range(0, weight.shape[0], _CUT_OUTPUTS):
        codes = _whole(weight.codes(start, min(start + _CUT_OUTPUTS, weight.shape[0])))
        tiles = codes.view(-1, TILE_OUTPUTS, num_groups, weight.shape[1] // num_groups)
        lower, upper = in_bytes(tiles.permute(0, 2, 3, 1), weight.kind, dim=2)
        low.append(lower.contiguous())
        if upper is not None:
            high.append(upper.contiguous())
    return torch.cat(low), torch.cat(high) if high else None


def _tiled(groups: Tensor) -> Tensor:
    """(out, groups) to (tiles, groups, outputs of a tile)."""
    return _whole(groups).view(-1, TILE_OUTPUTS, groups.shape[1]).transpose(1, 2).contiguous()


def _whole(rows: Tensor) -> Tensor:
    """With rows of zeros up to a whole tile."""
    missing = -len(rows) % TILE_OUTPUTS
    if missing:
        rows = torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])
    return rows.contiguous()
