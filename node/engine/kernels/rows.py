"""What a layer does beside its products, on a CPU in float32: compiled calls for all rows."""

import ctypes
from array import array
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from node.engine.kernels.processor import CompiledCode, has_kernels
from node.engine.kernels.row_code import heads_text, rows_text
from node.engine.kernels.text import LANES
from node.engine.kernels.threads import in_threads

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_PLACE = ctypes.CFUNCTYPE(None, *[_POINTER] * 4, *[_INT] * 4)
_ATTEND = ctypes.CFUNCTYPE(None, *[_POINTER] * 5, _FLOAT, *[_INT] * 5)
_NORM = ctypes.CFUNCTYPE(None, *[_POINTER] * 3, _INT, _FLOAT, _FLOAT, _INT)
_SPOILT = ctypes.CFUNCTYPE(_FLOAT, _POINTER, _INT)
_GATE = ctypes.CFUNCTYPE(None, *[_POINTER] * 2, _INT, _INT)


class HeadKernels:
    """Attention's, for heads of one width. Tensors are float32, on the CPU and contiguous, unless
    it says otherwise. No row depends on another, nor on the number of threads."""

    def __init__(self, head_dim: int) -> None:
        self._code = CompiledCode(heads_text(head_dim))
        self._head_dim = head_dim
        self._place = _PLACE(self._code.address("place"))
        self._attend = _ATTEND(self._code.address("attend"))

    def place(
        self, heads: Tensor, rotations: Tensor | None, cells: Tensor, places: "RowPlaces"
    ) -> None:
        """Turn the queries and keys of heads (R, queries + 2 * kv heads, head_dim), and write keys
        and values into a layer's cells (2 * kv heads, slots, head_dim).

        `rotations` (positions, head_dim / 2) complex64; `places` has a row of them and a slot for
        each of the first rows.
        """
        num_cells, num_slots, _ = cells.shape
        self._place(
            heads.data_ptr(),
            None if rotations is None else rotations.data_ptr(),
            cells.data_ptr(),
            places.address,
            places.num_rows,
            heads.shape[1] - num_cells,
            num_cells // 2,
            num_slots,
        )

    def attend(
        self, heads: Tensor, cells: Tensor, out: Tensor, table: "RowTable", *, scale: float
    ) -> None:
        """For each row of the table softmax(queries * keys * scale) * values into its row of
        out (R, queries, head_dim). The others are as `place` has them."""
        num_queries, num_kv_heads, num_slots = out.shape[1], cells.shape[0] // 2, cells.shape[1]
        space_numbers = num_queries // num_kv_heads * (table.tokens_max + LANES)

        def attend(units: range) -> None:
            space = torch.empty(space_numbers, dtype=torch.float32)
            self._attend(
                heads.data_ptr(),
                cells.data_ptr(),
                out.data_ptr(),
                table.address,
                space.data_ptr(),
                scale,
                units.start,
                units.stop,
                num_queries,
                num_kv_heads,
                num_slots,
            )

        numbers = 2 * table.tokens_sum * num_queries * self._head_dim
        in_threads(attend, table.num_rows * num_kv_heads, numbers=numbers)


class _Numbers:
    """int64 numbers for a kernel. Not a tensor: between a kernel's steps torch is cold, and takes
    fifty microseconds to make one."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = array("q", numbers)

    @property
    def address(self) -> int:
        """Of the first one; they live as long as this."""
        return self._numbers.buffer_info()[0]


class RowPlaces(_Numbers):
    """(row of rotations, slot) of each row."""

    __slots__ = ("num_rows",)

    def __init__(self, places: Iterable[tuple[int, int]]) -> None:
        super().__init__([number for place in places for number in place])
        self.num_rows = len(self._numbers) // 2


class RowTable(_Numbers):
    """Rows that look into the cache one by one, and the pieces (first slot, end) that each sees."""

    __slots__ = ("num_rows", "tokens_max", "tokens_sum")

    def __init__(self, rows: list[tuple[int, list[tuple[int, int]]]]) -> None:
        table: list[int] = []
        pieces: list[int] = []
        lengths: list[int] = []
        for row, of_row in rows:
            tokens = sum(end - first for first, end in of_row)
            begin = 4 * len(rows) + len(pieces)
            table += (row, begin, begin + 2 * len(of_row), tokens)
            lengths.append(tokens)
            for piece in of_row:
                pieces += piece
        self.num_rows = len(rows)
        self.tokens_max = max(lengths)
        self.tokens_sum = sum(lengths)
        super().__init__(table + pieces)


class RowKernels:
    """Those that look at each row by itself. Tensors are as for `HeadKernels`."""

    def __init__(self) -> None:
        self._code = CompiledCode(rows_text())
        self._norm = _NORM(self._code.address("norm"))
        self._gate = _GATE(self._code.address("gate"))
        self._spoilt = _SPOILT(self._code.address("spoilt"))

    def norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """rows (R, width) over the root of their mean square, times `weight` (width,)."""
        out = torch.empty_like(rows)
        count, width = rows.shape
        self._norm(
            rows.data_ptr(), weight.data_ptr(), out.data_ptr(), width, 1.0 / width, eps, count
        )
        return out

    def gate(self, rows: Tensor) -> Tensor:
        """rows (R, 2 * width): silu(first half) * second half, (R, width)."""
        count, width = rows.shape[0], rows.shape[1] // 2
        out = rows.new_empty((count, width))
        self._gate(rows.data_ptr(), out.data_ptr(), width, count)
        return out

    def is_finite(self, rows: Tensor) -> bool:
        """Whether all numbers are; whole vectors of them."""
        nothing: float = self._spoilt(rows.data_ptr(), rows.numel())
        return nothing == 0.0


def head_kernels(head_dim: int, dtype: torch.dtype, device: torch.device) -> HeadKernels | None:
    """Those for such heads; None where there are none."""
    return _for_heads(head_dim) if _fits(head_dim, dtype, device) else None


def row_kernels(width: int, dtype: torch.dtype, device: torch.device) -> RowKernels | None:
    """Those for rows of so many numbers; None where there are none."""
    return _for_rows() if _fits(width, dtype, device) else None


def _fits(width: int, dtype: torch.dtype, device: torch.device) -> bool:
    is_plain = dtype is torch.float32 and device.type == "cpu" and width % LANES == 0
    return is_plain and has_kernels()


@cache
def _for_heads(head_dim: int) -> HeadKernels:
    return HeadKernels(head_dim)


@cache
def _for_rows() -> RowKernels:
    return RowKernels()
