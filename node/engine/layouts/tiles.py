"""Products with weights that are made dense a few rows at a time, as they are used.

Any format can be held so, in exactly its own bytes. It is the layout of formats, and of machines,
that no kernel of torch's serves: right, and several times slower for single tokens.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor

from node.engine.tensor_bytes import num_bytes

TILE_ELEMENTS = 1 << 18
"""Dense at once: 1 MiB of float32, which a core's own cache holds."""


class Tiles(Protocol):
    """A weight (out, in) whose rows can be had one stretch at a time."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def weight_bytes(self) -> int: ...

    def dense(self, start: int, end: int) -> Tensor:
        """Rows [start, end) as float32 (end - start, in), where activations are."""
        ...


class TiledLinear:
    """y = x Wᵀ + b over a weight that is made dense tile by tile."""

    __slots__ = ("_bias", "_tiles")

    def __init__(self, tiles: Tiles, bias: Tensor | None = None) -> None:
        self._tiles = tiles
        self._bias = bias

    @property
    def weight_bytes(self) -> int:
        return self._tiles.weight_bytes + num_bytes(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        num_out, num_in = self._tiles.shape
        stride = max(1, TILE_ELEMENTS // num_in)
        product = rows.new_empty((len(rows), num_out))
        for start in range(0, num_out, stride):
            end = min(start + stride, num_out)
            dense = self._tiles.dense(start, end).to(rows.dtype)
            product[:, start:end] = F.linear(rows, dense)
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, rows: Tensor, residual: Tensor) -> Tensor:
        return self(rows).add_(residual)


class HalfTiles:
    """A float16 weight."""

    __slots__ = ("_weight",)

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.to(torch.float16)

    @property
    def shape(self) -> tuple[int, int]:
        return self._weight.shape[0], self._weight.shape[1]

    @property
    def weight_bytes(self) -> int:
        return num_bytes(self._weight)

    def dense(self, start: int, end: int) -> Tensor:
        return self._weight[start:end].float()


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

    def dense(self, start: int, end: int) -> Tensor:
        codes, scale = self._codes[start:end], self._scale[start:end].float()
        if self._least is None:
            return codes.float().mul_(scale)
        pairs = torch.stack((codes & 15, codes >> 4), dim=-1)
        grouped = pairs.view(len(codes), scale.shape[1], -1).float()
        grouped.mul_(scale.unsqueeze(-1)).add_(self._least[start:end].float().unsqueeze(-1))
        return grouped.view(len(codes), -1)
