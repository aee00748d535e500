"""Kernels over codes, compiled once for each kind of matrix."""

import ctypes
from dataclasses import dataclass
from functools import cache

from node.engine.kernels.processor import CompiledCode, num_registers
from node.engine.layouts.kernel_code import FEW_ROWS, CodeShape, kernel_text

_FEW = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
_MANY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The functions of `kernel_code.kernel_text`; both run without Python's lock. `_code` owns
    them."""

    _code: CompiledCode
    _few: tuple["ctypes._CFunctionType", ...]
    _many: "ctypes._CFunctionType"

    def __call__(
        self,
        fields: int,
        rows: int,
        products: int,
        tiles: range,
        *,
        count: int,
        num_tiles: int,
        space: int,
    ) -> None:
        """Some of `num_tiles` tiles for `count` rows. The rest are addresses: of the matrix's
        description, of rows (count, in), of products (count, outputs of all tiles), of a space that
        is this call's own: (WIDE_COLUMNS or a group's if there are more, TILE_OUTPUTS) float32."""
        first, end = tiles.start, tiles.stop
        if count <= FEW_ROWS:
            self._few[count - 1](fields, rows, products, first, end, num_tiles)
        else:
            self._many(fields, rows, products, first, end, count, num_tiles, space)


@cache
def compiled(shape: CodeShape) -> Kernel:
    """Takes a quarter of a second, once."""
    code = CompiledCode(kernel_text(shape, num_registers()))
    few = tuple(_FEW(code.address(f"few{count}")) for count in range(1, FEW_ROWS + 1))
    return Kernel(code, few, _MANY(code.address("many")))
