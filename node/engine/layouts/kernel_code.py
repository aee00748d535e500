"""Kernels over codes: what is compiled for matrices of one kind.

A matrix lies in tiles of `TILE_OUTPUTS` outputs, each with its columns in groups before its rows:
(groups, columns of a group, outputs). A code is read, made a float32 of exactly the value that it
means, and multiplied: y = x0 w0 + x1 w1 + ..., column after column, each added with one rounding.
A few rows do so from the codes; more from a block of columns that is made wide once. All add the
same numbers in the same order: no bit of a row depends on how many there are.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

from node.engine.kernels.text import (
    INTEGERS,
    LANES,
    VECTOR,
    ZEROS,
    FunctionText,
    integers,
    module_text,
    numbers,
)
from node.engine.layouts.coded import UPPER_BITS
from plait.models.coded import CodeKind

TILE_OUTPUTS = 32
WIDE_COLUMNS = 128
"""About so many columns of a tile are wide at once: 16 KiB, half of a core's nearest cache."""

FEW_ROWS = 4
"""Up to so many rows meet the codes themselves."""

_VECTORS = TILE_OUTPUTS // LANES
_BLOCK_ROWS = 6
_STRIP_VECTORS = 2
"""Sums of 6 rows and 16 outputs stay in 16 registers."""

_MANY_REGISTERS = 32
"""With so many, sums of `FEW_ROWS` rows and all outputs of a tile do."""

_EXACT_BITS = 24
"""A product of numbers of so many bits together is a float32 as it is."""

_BITS = {
    "half": 11,
    "i8": 8,
    "u8": 8,
    CodeKind.UINT4: 4,
    CodeKind.UINT5: 5,
    CodeKind.UINT6: 6,
    CodeKind.INT8: 8,
}

FIELDS = ("low", "high", "scale", "scale_codes", "least", "least_codes", "groups")
"""What a matrix is described by, an int64 each: addresses, and how many groups there are."""

_BYTES = f"<{LANES} x i8>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Numbers that groups share, one for each output: float16 or float32 ("half", "float"), or
    codes ("i8", "u8"). `groups`: how many neighbouring groups share one."""

    kind: str
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShape:
    """All that a kernel has to know beforehand. `group`: columns of the narrowest group."""

    kind: CodeKind
    group: int
    offset: int
    scale: Shared
    scale_codes: Shared | None
    least: Shared | None
    least_codes: Shared | None

    @property
    def num_places(self) -> int:
        """Columns whose lower or upper bits lie in one byte, of the one with most."""
        bits = UPPER_BITS.get(self.kind)
        return 8 // bits if bits is not None else 1 if self.kind is CodeKind.INT8 else 2

    @property
    def has_least(self) -> bool:
        """Whether something is added to a scaled code."""
        return self.least is not None or self.least_codes is not None

    @property
    def shifts(self) -> bool:
        """Whether the offset's share, -offset * scale, can be added after scaling: a power of two
        times a number is exact, and so both ways round once."""
        is_power = self.offset > 0 and self.offset & (self.offset - 1) == 0
        return is_power and not self.has_least

    @property
    def is_exact(self) -> bool:
        """Whether a code times its scale needs no rounding, so that it may be scaled and added to
        in one operation."""
        factors = [self.scale.kind, self.kind]
        if self.scale_codes is not None:
            factors.append(self.scale_codes.kind)
        return sum(_BITS.get(factor, _EXACT_BITS) for factor in factors) <= _EXACT_BITS


def kernel_text(shape: CodeShape, num_registers: int) -> str:
    """Functions `few1`, ... for up to `FEW_ROWS` rows, and `many`, for a processor with so many
    registers of `LANES` floats."""
    strips = [_VECTORS] + [_STRIP_VECTORS] * (FEW_ROWS - 1)
    if num_registers >= _MANY_REGISTERS:
        strips = [_VECTORS] * FEW_ROWS
    few = [_few(shape, count, num_vectors) for count, num_vectors in enumerate(strips, start=1)]
    return module_text([*few, _many(shape)])


def _few(shape: CodeShape, count: int, num_vectors: int) -> FunctionText:
    """few{count}(fields, rows, products, first tile, end, tiles of all), so many vectors at once:
    with all of a tile's it is read once, as the memory likes it."""
    parameters = ["ptr %a", "ptr %x", "ptr %y", "i64 %first", "i64 %end", "i64 %tiles"]
    code = FunctionText(f"few{count}", parameters)
    matrix = _Matrix(code, shape, num_vectors)
    sums = [[code.slot(VECTOR) for _ in range(num_vectors)] for _ in range(count)]
    width = code.times(matrix.groups, shape.group)
    outputs = code.times("%tiles", TILE_OUTPUTS)
    with (
        code.loop("%first", "%end") as tile,
        code.loop(0, TILE_OUTPUTS, num_vectors * LANES) as strip,
    ):
        for total in chain.from_iterable(sums):
            code.store(VECTOR, ZEROS, total)
        with code.loop(0, matrix.groups) as group:
            matrix.begin_group(tile, group, strip)
            begin = code.times(group, shape.group)
            for number, weights in matrix.columns():
                column = code.add(begin, number)
                for row, totals in enumerate(sums):
                    place = code.add(code.times(width, row), column)
                    factor = code.splat(code.load("float", code.at("float", "%x", place)))
                    for total, weight in zip(totals, weights, strict=True):
                        added = code.fma(factor, weight, code.load(VECTOR, total))
                        code.store(VECTOR, added, total)
        output = code.add(code.times(tile, TILE_OUTPUTS), strip)
        for row, totals in enumerate(sums):
            place = code.add(code.times(outputs, row), output)
            for index, total in enumerate(totals):
                product = code.at("float", "%y", code.add(place, index * LANES))
                code.store(VECTOR, code.load(VECTOR, total), product)
    return code


def _many(shape: CodeShape) -> FunctionText:
    """many(fields, rows, products, first tile, end, number of rows, tiles of all, space)."""
    parameters = ["ptr %a", "ptr %x", "ptr %y", "i64 %first", "i64 %end"]
    code = FunctionText("many", [*parameters, "i64 %count", "i64 %tiles", "ptr %space"])
    matrix = _Matrix(code, shape, _VECTORS)
    width = code.times(matrix.groups, shape.group)
    outputs = code.times("%tiles", TILE_OUTPUTS)
    whole_blocks = code.times(code.over("%count", _BLOCK_ROWS), _BLOCK_ROWS)
    rest = code.minus("%count", whole_blocks)
    stride = max(1, WIDE_COLUMNS // shape.group)
    with (
        code.loop("%first", "%end") as tile,
        code.loop(0, matrix.groups, stride) as group,
    ):
        wide_groups = code.at_most(code.minus(matrix.groups, group), stride)
        with code.loop(0, wide_groups) as number:
            matrix.begin_group(tile, code.add(group, number), "0")
            begin = code.times(number, shape.group)
            for column, weights in matrix.columns():
                place = code.times(code.add(begin, column), TILE_OUTPUTS)
                for index, weight in enumerate(weights):
                    address = code.at("float", "%space", code.add(place, index * LANES))
                    code.store(VECTOR, weight, address)
        block = _Block(
            code,
            tile=tile,
            width=width,
            outputs=outputs,
            first=code.times(group, shape.group),
            length=code.times(wide_groups, shape.group),
        )
        with code.loop(0, whole_blocks, _BLOCK_ROWS) as row:
            block.multiply(row, _BLOCK_ROWS)
        for count in range(1, _BLOCK_ROWS):
            with code.where(code.let(f"icmp eq i64 {rest}, {count}")):
                block.multiply(whole_blocks, count)
    return code


class _Block:
    """Columns [first, first + length) of a tile, wide in the space, and any rows."""

    def __init__(
        self, code: FunctionText, *, tile: str, width: str, outputs: str, first: str, length: str
    ) -> None:
        self._code = code
        self._tile = tile
        self._width = width
        self._outputs = outputs
        self._first = first
        self._length = length
        self._begins = code.let(f"icmp eq i64 {first}, 0")

    def multiply(self, row: str, count: int) -> None:
        """Add to the products of rows [row, row + count)."""
        code = self._code
        step = _STRIP_VECTORS * LANES
        rows = [
            code.at("float", "%x", self._place(row, number, self._width, self._first))
            for number in range(count)
        ]
        with code.loop(0, TILE_OUTPUTS, step) as strip:
            output = code.add(code.times(self._tile, TILE_OUTPUTS), strip)
            products = [
                code.at(
                    "float",
                    "%y",
                    code.add(self._place(row, number, self._outputs, output), index * LANES),
                )
                for number in range(count)
                for index in range(_STRIP_VECTORS)
            ]
            sums = [code.slot(VECTOR) for _ in products]
            for total, product in zip(sums, products, strict=True):
                so_far = code.load(VECTOR, product)
                zeros = f"{VECTOR} {ZEROS}"
                begun = code.let(f"select i1 {self._begins}, {zeros}, {VECTOR} {so_far}")
                code.store(VECTOR, begun, total)
            with code.loop(0, self._length, unrolls=count == _BLOCK_ROWS) as column:
                place = code.add(code.times(column, TILE_OUTPUTS), strip)
                weights = [
                    code.load(VECTOR, code.at("float", "%space", code.add(place, index * LANES)))
                    for index in range(_STRIP_VECTORS)
                ]
                for number, begin in enumerate(rows):
                    factor = code.splat(code.load("float", code.at("float", begin, column)))
                    for index, weight in enumerate(weights):
                        total = sums[number * _STRIP_VECTORS + index]
                        added = code.fma(factor, weight, code.load(VECTOR, total))
                        code.store(VECTOR, added, total)
            for total, product in zip(sums, products, strict=True):
                code.store(VECTOR, code.load(VECTOR, total), product)

    def _place(self, row: str, number: int, stride: str, offset: str) -> str:
        code = self._code
        return code.add(code.times(code.add(row, number), stride), offset)


class _Matrix:
    """Reads weights of the matrix that `%a` describes."""

    def __init__(self, code: FunctionText, shape: CodeShape, num_vectors: int) -> None:
        self._code = code
        self._shape = shape
        self._vectors = range(num_vectors)
        fields = [code.load("i64", code.at("i64", "%a", str(n))) for n in range(len(FIELDS))]
        self.groups = fields[-1]
        self._bases = {
            name: code.let(f"inttoptr i64 {field} to ptr")
            for name, field in zip(FIELDS[:-1], fields[:-1], strict=True)
        }
        self._low = self._high = self._output = ""
        self._scales = [code.slot(VECTOR) for _ in self._vectors]
        self._leasts = [code.slot(VECTOR) for _ in self._vectors]

    def begin_group(self, tile: str, group: str, output: str) -> None:
        """What its columns share, and where they lie, for a tile's outputs from `output` on."""
        code, shape = self._code, self._shape
        self._output = output
        place = code.add(code.times(tile, self.groups), group)
        low_columns = shape.group if shape.kind is CodeKind.INT8 else shape.group // 2
        self._low = self._start("low", place, low_columns * TILE_OUTPUTS)
        if shape.kind in UPPER_BITS:
            self._high = self._start("high", place, shape.group // shape.num_places * TILE_OUTPUTS)
        for index in self._vectors:
            scale = self._shared("scale", shape.scale, tile, group, index)
            scale = self._scaled(scale, "scale_codes", shape.scale_codes, tile, group, index)
            code.store(VECTOR, scale, self._scales[index])
            if shape.least is not None:
                least = self._shared("least", shape.least, tile, group, index)
                least = self._scaled(least, "least_codes", shape.least_codes, tile, group, index)
                code.store(VECTOR, least, self._leasts[index])
            elif shape.least_codes is not None:
                zero = self._scaled(scale, "least_codes", shape.least_codes, tile, group, index)
                code.store(VECTOR, code.let(f"fneg {VECTOR} {zero}"), self._leasts[index])
            elif shape.shifts:
                least = code.let(f"fmul {VECTOR} {scale}, {numbers(-float(shape.offset))}")
                code.store(VECTOR, least, self._leasts[index])

    def columns(self) -> Iterator[tuple[str, list[str]]]:
        """Each column of the group, in order, with its weights; inside a loop."""
        code, shape = self._code, self._shape
        length = shape.group // shape.num_places
        with ExitStack() as loops:
            place = "0"
            if shape.num_places > 1:
                place = loops.enter_context(code.loop(0, shape.num_places))
            number = loops.enter_context(code.loop(0, length, unrolls=True))
            column = code.add(code.times(place, length), number)
            yield column, [self._weight(place, number, column, n) for n in self._vectors]

    def _weight(self, place: str, number: str, column: str, index: int) -> str:
        """Of a column, the `number`th of its place."""
        code, shape = self._code, self._shape
        if shape.kind is CodeKind.INT8:
            value = self._float(self._bytes(self._low, column, index), is_signed=True)
        else:
            value = code.let(f"sitofp {INTEGERS} {self._integer(place, number, index)} to {VECTOR}")
        scale, least = (code.load(VECTOR, of[index]) for of in (self._scales, self._leasts))
        if shape.shifts or (shape.has_least and shape.is_exact):
            return code.fma(value, scale, least)
        value = code.let(f"fmul {VECTOR} {value}, {scale}")
        return code.let(f"fadd {VECTOR} {value}, {least}") if shape.has_least else value

    def _integer(self, place: str, number: str, index: int) -> str:
        """A code of fewer than eight bits, less its offset where that is not to come off later."""
        code, shape = self._code, self._shape
        length, per_half = shape.group // shape.num_places, shape.num_places // 2
        half = code.over(place, per_half)
        row = code.add(code.times(code.minus(place, code.times(half, per_half)), length), number)
        value = self._field(self._bytes(self._low, row, index), code.times(half, 4), 4)
        bits = UPPER_BITS.get(shape.kind)
        if bits is not None:
            upper = self._bytes(self._high, number, index)
            upper = self._field(upper, code.times(place, bits), bits)
            upper = code.let(f"shl {INTEGERS} {upper}, {integers(4)}")
            value = code.let(f"or {INTEGERS} {value}, {upper}")
        if shape.offset and not shape.shifts:
            value = code.let(f"sub {INTEGERS} {value}, {integers(shape.offset)}")
        return value

    def _field(self, codes: str, shift: str, bits: int) -> str:
        """`bits` bits of each byte from bit `shift` on."""
        code = self._code
        wide = code.let(f"zext {_BYTES} {codes} to {INTEGERS}")
        narrow = code.let(f"trunc i64 {shift} to i32")
        shifted = code.let(f"lshr {INTEGERS} {wide}, {code.splat(narrow, 'i32')}")
        return code.let(f"and {INTEGERS} {shifted}, {integers((1 << bits) - 1)}")

    def _bytes(self, base: str, row: str, index: int) -> str:
        code = self._code
        place = code.add(code.add(code.times(row, TILE_OUTPUTS), self._output), index * LANES)
        return code.load(_BYTES, code.at("i8", base, place))

    def _float(self, codes: str, *, is_signed: bool) -> str:
        code = self._code
        wide = code.let(f"{'sext' if is_signed else 'zext'} {_BYTES} {codes} to {INTEGERS}")
        return code.let(f"sitofp {INTEGERS} {wide} to {VECTOR}")

    def _start(self, name: str, place: str, size: int) -> str:
        return self._code.at("i8", self._bases[name], self._code.times(place, size))

    def _shared(self, name: str, shared: Shared, tile: str, group: str, index: int) -> str:
        """(outputs,) float32 that `group` shares with its neighbours."""
        code = self._code
        kind = "i8" if shared.kind == "u8" else shared.kind
        count = code.over(self.groups, shared.groups)
        place = code.add(code.times(tile, count), code.over(group, shared.groups))
        place = code.add(code.add(code.times(place, TILE_OUTPUTS), self._output), index * LANES)
        vector = f"<{LANES} x {kind}>"
        values = code.load(vector, code.at(kind, self._bases[name], place))
        if kind == "float":
            return values
        if kind == "half":
            return code.let(f"fpext {vector} {values} to {VECTOR}")
        return self._float(values, is_signed=shared.kind == "i8")

    def _scaled(
        self, values: str, name: str, codes: Shared | None, tile: str, group: str, index: int
    ) -> str:
        if codes is None:
            return values
        factor = self._shared(name, codes, tile, group, index)
        return self._code.let(f"fmul {VECTOR} {values}, {factor}")
