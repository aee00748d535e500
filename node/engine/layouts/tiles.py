"""Products with weights that are made dense a few rows at a time, as they are used.

Any format can be held so, in exactly its own bytes. It is the layout of formats, and of machines,
that no kernel of torch's serves: right, and several times slower for single tokens.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes

TILE_ELEMENTS = 1 << 17
"""Dense at once: half a MiB of float32, which a core's own cache holds beside the codes."""


class Tiles(Protocol):
    """A weight (out, in) whose rows can be had one stretch at a time."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def weight_bytes(self) -> int: ...

    def dense(self, start: int, end: int, space: Tensor) -> Tensor:
        """Rows [start, end) as float32 (end - start, in), where activations are; may be in `space`
        (end - start, in) float32, which keeps a step from asking for memory at every tile."""
        ...


class TiledLinear:
    """y = x Wᵀ + b over a weight that is made dense tile by tile."""

    __slots__ = ("_bias", "_tile_elements", "_tiles")

    def __init__(
        self, tiles: Tiles, bias: Tensor | None = None, *, tile_elements: int = TILE_ELEMENTS
    ) -> None:
        self._tiles = tiles
        self._bias = bias
        self._tile_elements = tile_elements

    @property
    def weight_bytes(self) -> int:
        return self._tiles.weight_bytes + num_bytes(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        num_out, num_in = self._tiles.shape
        stride = max(1, self._tile_elements // num_in)
        product = rows.new_empty((len(rows), num_out))
        space = rows.new_empty((min(stride, num_out), num_in), dtype=torch.float32)
        for start in range(0, num_out, stride):
            end = min(start + stride, num_out)
            dense = self._tiles.dense(start, end, space[: end - start]).to(rows.dtype)
            product[:, start:end] = F.linear(rows, dense)
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


class HalfTiles:
    """A weight of 16 bits: float16, or bfloat16 as it is."""

    __slots__ = ("_weight",)

    def __init__(self, weight: Tensor) -> None:
        is_half = weight.dtype is torch.bfloat16
        self._weight = weight if is_half else weight.to(torch.float16)

    @property
    def shape(self) -> tuple[int, int]:
        return self._weight.shape[0], self._weight.shape[1]

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._weight)

    def dense(self, start: int, end: int, space: Tensor) -> Tensor:
        return space.copy_(self._weight[start:end])


class CodeTiles:
    """Integer codes (out, in) with a scale for each row (out, 1), as in int8, or codes of 4 bits,
    two in a byte, with scale and least value for each group."""

    __slots__ = ("_codes", "_least", "_scale", "shape")

    def __init__(self, codes: Tensor, scale: Tensor, least: Tensor | None) -> None:
        self._codes = codes
        self._scale = scale
        self._least = least
        columns = codes.shape[1] if least is None else 2 * codes.shape[1]
        self.shape = (codes.shape[0], columns)

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._codes, self._scale, self._least)

    def dense(self, start: int, end: int, space: Tensor) -> Tensor:
        codes, scale = self._codes[start:end], self._scale[start:end].float()
        if self._least is None:
            return space.copy_(codes).mul_(scale)
        pairs = torch.stack((codes & 15, codes >> 4), dim=-1)
        grouped = pairs.view(len(codes), scale.shape[1], -1).float()
        grouped.mul_(scale.unsqueeze(-1)).add_(self._least[start:end].float().unsqueeze(-1))
        return grouped.view(len(codes), -1)
