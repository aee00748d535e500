"""Where the rows of one step belong: positions, slots and the cache each row may look at."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from node.engine.blocks import Run
from node.engine.coded_sight import CodedSight
from node.engine.kernels.rows import RowPlaces, RowTable
from node.engine.kv_cache import KvPool

NO_COPY_PARTS_MAX = 4
"""Up to so many runs the products go run by run; over more, copying is cheaper."""

KERNEL_ROWS_MAX = 8
"""Up to so many rows of a sequence look into the cache one by one where kernels do it: guesses are
judged by the very numbers that would have drawn them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one sequence in a step: first row, its position, and the sequence's slots in the
    order of its positions. `rotation_row` is where the rotations of its position 0 are."""

    row: int
    num_tokens: int
    position: int
    runs: tuple[Run, ...]
    rotation_row: int = 0

    def pieces(self, begin: int) -> list[tuple[int, int]]:
        """(first slot, end) of positions from `begin` to the chunk's end, run by run."""
        end = self.position + self.num_tokens
        pieces: list[tuple[int, int]] = []
        at = 0
        for slot, length in self.runs:
            low, high = max(begin, at), min(end, at + length)
            if low < high:
                pieces.append((slot + low - at, slot + high - at))
            at += length
        assert at >= end, f"positions up to {end} in {at} slots"
        return pieces


class Seen(NamedTuple):
    """What a chunk sees of one layer: keys (kv heads, cached tokens, head_dim), the same
    transposed, and values."""

    keys: Tensor
    keys_t: Tensor
    values: Tensor


class AttendedChunk:
    """A chunk and what it may look at: its cached keys and values, with its own, which are written
    before they are read.

    `mask` (tokens, cached tokens) is True where a row may look; None where all may be seen, or
    where `is_causal` says it.
    """

    __slots__ = (
        "_cells",
        "_num_kv_heads",
        "_parts",
        "_slots",
        "is_causal",
        "mask",
        "num_tokens",
        "row",
    )

    def __init__(self, chunk: Chunk, pool: KvPool, window_tokens: int | None) -> None:
        end = chunk.position + chunk.num_tokens
        begin = 0 if window_tokens is None else max(0, chunk.position + 1 - window_tokens)
        pieces = chunk.pieces(begin)
        self.row = chunk.row
        self.num_tokens = chunk.num_tokens
        self._cells = pool.layers
        self._num_kv_heads = pool.num_kv_heads
        self._parts: list[_Views] = []
        self._slots: Tensor | None = None
        is_short = chunk.num_tokens == 1 and len(pieces) <= NO_COPY_PARTS_MAX
        if len(pieces) == 1 or is_short:
            self._parts = [_Views(pool, first, last) for first, last in pieces]
        if len(pieces) > 1:
            ranges = [torch.arange(first, last) for first, last in pieces]
            self._slots = torch.cat(ranges).to(pool.cells.device)
        self.is_causal = False
        self.mask: Tensor | None = None
        if chunk.num_tokens == 1:
            return
        if begin == 0 and chunk.position == 0 and (window_tokens is None or end <= window_tokens):
            self.is_causal = True
        else:
            self.mask = _mask(chunk.position, begin, end, window_tokens, pool.cells.device)

    def seen(self, layer: int) -> Seen:
        """All at once: a view where the slots are one run, else a copy."""
        if self._slots is None:
            return self._parts[0].seen(layer)
        copied = self._cells[layer].index_select(1, self._slots)
        keys = copied[: self._num_kv_heads]
        return Seen(keys, keys.transpose(1, 2), copied[self._num_kv_heads :])

    def parts(self, layer: int) -> list[Seen]:
        """Piece by piece in the order of positions, as views where they are few."""
        if not self._parts:
            return [self.seen(layer)]
        return [part.seen(layer) for part in self._parts]

    def full_mask(self) -> Tensor:
        """The mask of several rows, said in full where it is causal."""
        if self.mask is not None:
            return self.mask
        return _mask(0, 0, self.num_tokens, None, self._cells[0].device)


class _Views:
    """Slots [first, end) of every layer."""

    __slots__ = ("_keys", "_keys_t", "_values")

    def __init__(self, pool: KvPool, first: int, end: int) -> None:
        seen = pool.cells[:, :, first:end]
        keys = seen[:, : pool.num_kv_heads]
        self._keys = keys.unbind(0)
        self._keys_t = keys.transpose(2, 3).unbind(0)
        self._values = seen[:, pool.num_kv_heads :].unbind(0)

    def seen(self, layer: int) -> Seen:
        return Seen(self._keys[layer], self._keys_t[layer], self._values[layer])


class GatheredDecodes:
    """Single rows of several sequences, attended to in one call over copies padded to one length.

    One call costs a GPU less than one per sequence. `slots` (sequences, cached tokens), `mask`
    (sequences, 1, 1, cached tokens); padding repeats a sequence's own first slot and is masked.
    """

    __slots__ = ("mask", "num_rows", "slots")

    def __init__(self, chunks: list[Chunk], device: torch.device, window: int | None) -> None:
        lengths = [
            c.position + 1 if window is None else min(c.position + 1, window) for c in chunks
        ]
        pieces = [c.pieces(c.position + 1 - n) for c, n in zip(chunks, lengths, strict=True)]
        offsets = torch.arange(max(lengths))
        seen = offsets < torch.tensor(lengths).unsqueeze(1)
        begins = torch.tensor([of_one[0][0] for of_one in pieces])
        slots = begins.unsqueeze(1) + offsets * seen
        for row, of_one in enumerate(pieces):
            if len(of_one) > 1:
                ranges = [torch.arange(first, end) for first, end in of_one]
                slots[row, : lengths[row]] = torch.cat(ranges)
        self.num_rows = len(chunks)
        self.slots = slots.to(device)
        self.mask = seen[:, None, None, :].to(device)


class Sight:
    """What the rows of a step may look at in layers of one window (None: everything): decodes that
    are gathered, `rows` that kernels look for one by one, and all other chunks; or, all of them,
    `coded`, where the cache is int8."""

    __slots__ = ("attended", "coded", "gathered", "rows")

    def __init__(
        self,
        chunks: list[Chunk],
        pool: KvPool,
        window_tokens: int | None,
        *,
        num_heads: int,
        gather_decodes: bool,
        by_kernels: bool,
    ) -> None:
        self.attended: list[AttendedChunk] = []
        self.rows: RowTable | None = None
        self.coded: list[CodedSight] = []
        self.gathered: GatheredDecodes | None = None
        singles = 0
        while singles < len(chunks) and chunks[singles].num_tokens == 1:
            singles += 1
        if pool.scales is not None:
            if gather_decodes and singles > 1:
                self.coded = [_coded_decodes(chunks[:singles], pool, window_tokens, num_heads)]
                chunks = chunks[singles:]
            self.coded += [_coded_chunk(chunk, pool, window_tokens, num_heads) for chunk in chunks]
            return
        if by_kernels:
            few = [chunk for chunk in chunks if chunk.num_tokens <= KERNEL_ROWS_MAX]
            if few:
                self.rows = RowTable(
                    list(chain.from_iterable(_rows(c, window_tokens) for c in few))
                )
            chunks = [chunk for chunk in chunks if chunk.num_tokens > KERNEL_ROWS_MAX]
        elif gather_decodes and singles > 1:
            self.gathered = GatheredDecodes(chunks[:singles], pool.cells.device, window_tokens)
            chunks = chunks[singles:]
        self.attended = [AttendedChunk(chunk, pool, window_tokens) for chunk in chunks]


class StepPlan:
    """All that the layers of one step need to know about its rows.

    rotations: (rows, 1, head_dim / 2) complex64 a table, one for all where `num_rows` is 1, pool:
    the cache, attended_rows: a buffer (rows, heads, head_dim). `chunks` says whose the rows are.
    Rows past `num_rows` are padding: computed, never stored or read.

    Where the pool has kernels they are told what is otherwise in `rotations` and `write`: by
    `tables` of all positions, and `places`: a row of those, and a slot, for each row.
    """

    __slots__ = (
        "_gather_decodes",
        "_sights",
        "_slots",
        "_written",
        "attended_rows",
        "chunks",
        "num_rows",
        "places",
        "pool",
        "rotations",
        "tables",
    )

    def __init__(
        self,
        chunks: list[Chunk],
        pool: KvPool,
        rotations: tuple[Tensor, ...],
        *,
        num_heads: int,
        rows_min: int,
        gather_decodes: bool,
    ) -> None:
        rotation_rows: list[int] = []
        slots: list[int] = []
        for chunk in chunks:
            row = chunk.rotation_row + chunk.position
            rotation_rows.extend(range(row, row + chunk.num_tokens))
            for first, end in chunk.pieces(chunk.position):
                slots.extend(range(first, end))
        self.num_rows = len(slots)
        padding = [0] * (rows_min - len(rotation_rows))
        self.tables = rotations
        self.rotations: tuple[Tensor, ...] = ()
        self._slots: Tensor | None = None
        self._written: tuple[Tensor, ...] = ()
        shape = (self.num_rows + len(padding), num_heads, pool.cells.shape[-1])
        make = pool.cells.new_zeros if padding else pool.cells.new_empty
        self.attended_rows = make(shape, dtype=pool.rows_dtype)
        self.chunks = chunks
        self.pool = pool
        self._gather_decodes = gather_decodes
        self._sights: dict[tuple[int | None, bool], Sight] = {}
        if pool.kernels is not None:
            self.places = RowPlaces(zip(rotation_rows, slots, strict=True))
        else:
            self._tell_torch(slots, [*rotation_rows, *padding])

    def _tell_torch(self, slots: list[int], rotation_rows: list[int]) -> None:
        """What torch is told of each row, padding too."""
        device = self.pool.cells.device
        if self.num_rows == 1 and self.pool.scales is None:
            self._written = self.pool.cells[:, :, slots[0] : slots[0] + 1].unbind(0)
        else:
            self._slots = torch.tensor(slots, device=device)
        if self.num_rows == 1:  # a view costs half of what rows by number do; padding turns alike
            row = rotation_rows[0]
            self.rotations = tuple(table[row : row + 1].unsqueeze(1) for table in self.tables)
        else:
            at = torch.tensor(rotation_rows, device=device)
            self.rotations = tuple(table[at].unsqueeze(1) for table in self.tables)

    def write(self, layer: int, rows: Tensor) -> None:
        """Keys and values (2 * kv heads, num_rows, head_dim) of the step's rows into the cache."""
        if self._slots is None:
            self._written[layer].copy_(rows)
        else:
            self.pool.write(layer, self._slots, rows)

    def sight(self, window_tokens: int | None, *, by_kernels: bool) -> Sight:
        """What layers with this window look at, by kernels where there are some and the layer lets
        them; made for the first of them."""
        by_kernels = by_kernels and self.pool.kernels is not None
        sight = self._sights.get((window_tokens, by_kernels))
        if sight is None:
            sight = Sight(
                self.chunks,
                self.pool,
                window_tokens,
                num_heads=self.attended_rows.shape[1],
                gather_decodes=self._gather_decodes,
                by_kernels=by_kernels,
            )
            self._sights[window_tokens, by_kernels] = sight
        return sight


def _rows(chunk: Chunk, window: int | None) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Each row of a chunk, and the pieces of the cache that it sees."""
    for number in range(chunk.num_tokens):
        position = chunk.position + number
        one = replace(chunk, row=chunk.row + number, num_tokens=1, position=position)
        yield one.row, one.pieces(0 if window is None else max(0, position + 1 - window))


def _coded_chunk(chunk: Chunk, pool: KvPool, window: int | None, num_heads: int) -> CodedSight:
    """One sequence's rows, of which several may not see each other."""
    end = chunk.position + chunk.num_tokens
    begin = 0 if window is None else max(0, chunk.position + 1 - window)
    is_many = chunk.num_tokens > 1
    return CodedSight(
        pool,
        [chunk.pieces(begin)],
        row=chunk.row,
        num_tokens=chunk.num_tokens,
        num_heads=num_heads,
        hidden=~_mask(chunk.position, begin, end, window, pool.cells.device) if is_many else None,
    )


def _coded_decodes(
    chunks: list[Chunk], pool: KvPool, window: int | None, num_heads: int
) -> CodedSight:
    """A row of each of several sequences."""
    begins = [0 if window is None else max(0, c.position + 1 - window) for c in chunks]
    pieces = [c.pieces(begin) for c, begin in zip(chunks, begins, strict=True)]
    lengths = torch.tensor(
        [c.position + 1 - begin for c, begin in zip(chunks, begins, strict=True)]
    )
    hidden = torch.arange(int(lengths.max())) >= lengths.unsqueeze(1)
    return CodedSight(
        pool,
        pieces,
        row=chunks[0].row,
        num_tokens=1,
        num_heads=num_heads,
        hidden=hidden[:, None, None].to(pool.cells.device),
    )


def _mask(
    position: int, begin: int, end: int, window_tokens: int | None, device: torch.device
) -> Tensor:
    rows = torch.arange(position, end, device=device).unsqueeze(1)
    columns = torch.arange(begin, end, device=device)
    mask = columns <= rows
    if window_tokens is not None:
        mask &= columns > rows - window_tokens
    return mask
