"""What rows may look at in a cache of int8: blocks small enough to be made wide beside a core."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from node.engine.kv_cache import KvPool
from plait.prefixes import BLOCK_TOKENS

_WIDE_MAX = {"cpu": 1 << 17, "cuda": 1 << 25}
"""Numbers of keys, or of values, that are float32 at once."""

_SCORES_MAX = {"cpu": 1 << 19, "cuda": 1 << 26}

Pieces = list[tuple[int, int]]
"""(first slot, end) of one sequence, in the order of positions."""


class CodedBlock(NamedTuple):
    """Some tokens of every sequence of a sight. Codes (kv heads * sequences, tokens, head_dim),
    scales (kv heads * sequences, 1, tokens). `hidden`, which goes with (kv heads, sequences, group,
    rows, tokens), is True where a row must not look; None: nowhere."""

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor
    hidden: Tensor | None


class CodedSight:
    """Rows from `row` on of some sequences, `num_tokens` of each, and the tokens they look at.

    Blocks are cut by position, wherever the slots lie: how a table came to be changes no bit of a
    result.
    """

    __slots__ = ("_pieces", "num_blocks", "num_sequences", "num_tokens", "row", "wide_numbers")

    def __init__(
        self,
        pool: KvPool,
        sequences: list[Pieces],
        *,
        row: int,
        num_tokens: int,
        num_heads: int,
        hidden: Tensor | None,
        wide_max: int | None = None,
    ) -> None:
        """`hidden` is (sequences, 1, 1, all tokens), or (rows, all tokens) of one sequence. At most
        about `wide_max` numbers are wide at once."""
        device, num_sequences = pool.cells.device, len(sequences)
        self.row = row
        self.num_tokens = num_tokens
        self.num_sequences = num_sequences
        width = num_sequences * pool.num_kv_heads * pool.cells.shape[-1]
        most = min(
            (wide_max or _WIDE_MAX[device.type]) // width,
            _SCORES_MAX[device.type] // (num_sequences * num_heads * num_tokens),
        )
        stride = max(1, most // BLOCK_TOKENS) * BLOCK_TOKENS
        slots = _slots_of(sequences)
        length = slots.shape[1]
        self._pieces: list[tuple[_Adjacent | _Scattered, Tensor | None]] = []
        for begin in range(0, length, stride):
            part = slots[:, begin : begin + stride]
            unseen = None if hidden is None else hidden[..., begin : begin + stride]
            self._pieces.append((_part_of(pool, part), unseen))
        self.num_blocks = len(self._pieces)
        self.wide_numbers = width * min(stride, length)
        """Of the keys, or of the values, of the largest block."""

    @property
    def num_rows(self) -> int:
        """Of all its sequences."""
        return self.num_sequences * self.num_tokens

    def blocks(self, layer: int) -> Iterator[CodedBlock]:
        """In the order of positions."""
        for piece, hidden in self._pieces:
            yield CodedBlock(*piece.read(layer), hidden)


_Read = tuple[Tensor, Tensor, Tensor, Tensor]


class _Adjacent:
    """Slots [first, end) of one sequence: views of every layer."""

    __slots__ = ("_key_scales", "_keys", "_value_scales", "_values")

    def __init__(self, pool: KvPool, scales: Tensor, first: int, end: int) -> None:
        cells, scales = pool.cells[:, :, first:end], scales[:, :, None, first:end]
        self._keys, self._values = (
            part.unbind(0) for part in torch.split(cells, pool.num_kv_heads, dim=1)
        )
        self._key_scales, self._value_scales = (
            part.unbind(0) for part in torch.split(scales, pool.num_kv_heads, dim=1)
        )

    def read(self, layer: int) -> _Read:
        return (
            self._keys[layer],
            self._key_scales[layer],
            self._values[layer],
            self._value_scales[layer],
        )


class _Scattered:
    """Any slots (sequences, tokens): copies."""

    __slots__ = ("_cells", "_num_kv_heads", "_scales", "_slots")

    def __init__(self, pool: KvPool, scales: Tensor, slots: Tensor) -> None:
        self._cells = pool.layers
        self._scales = scales
        self._num_kv_heads = pool.num_kv_heads
        self._slots = slots.to(pool.cells.device)

    def read(self, layer: int) -> _Read:
        codes, scales = self._cells[layer][:, self._slots], self._scales[layer][:, self._slots]
        keys, values = torch.split(codes, self._num_kv_heads)
        key_scales, value_scales = torch.split(scales, self._num_kv_heads)
        return (
            keys.flatten(0, 1),
            key_scales.flatten(0, 1).unsqueeze(1),
            values.flatten(0, 1),
            value_scales.flatten(0, 1).unsqueeze(1),
        )


def _part_of(pool: KvPool, slots: Tensor) -> _Adjacent | _Scattered:
    assert pool.scales is not None, "a cache of int8 has scales"
    first, last = int(slots[0, 0]), int(slots[0, -1])
    is_run = last - first + 1 == slots.shape[1] and bool((slots[0].diff() == 1).all())
    if len(slots) == 1 and is_run:
        return _Adjacent(pool, pool.scales, first, last + 1)
    return _Scattered(pool, pool.scales, slots)


def _slots_of(sequences: list[Pieces]) -> Tensor:
    """(sequences, tokens); what is shorter goes on with its own first slot."""
    length = max(sum(end - first for first, end in pieces) for pieces in sequences)
    table = torch.empty((len(sequences), length), dtype=torch.int64)
    for row, pieces in enumerate(sequences):
        slots = torch.cat([torch.arange(first, end) for first, end in pieces])
        table[row, : len(slots)] = slots
        table[row, len(slots) :] = slots[0]
    return table
