"""Kernels for what a layer does beside its products, a row of float32 at a time.

Each row is computed by itself, in one order, whatever stands beside it and wherever its tokens lie
in the cache: no bit of it depends on either.
"""

from collections.abc import Iterator

from node.engine.kernels.text import (
    INTEGERS,
    LANES,
    VECTOR,
    ZEROS,
    FunctionText,
    integers,
    module_text,
    number,
    numbers,
)

BLOCK_TOKENS = 32
"""Of a cache, whose values meet all queries of a head before the next ones are read."""

_SUMS_MAX = 8
"""Vectors of sums that stay in registers."""

_SHAPE = ("i64 %queries", "i64 %kv_heads", "i64 %slots")

_EXP_LEAST, _EXP_MOST = -86.0, 88.0
_ROUNDING = 12582912.0
"""1.5 * 2**23: added and taken away again, it leaves a whole number."""

_EXP_TERMS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Of exp(r) - 1 - r over r * r, |r| <= ln(2) / 2: Moshier's Cephes library, `expf`."""


def heads_text(head_dim: int) -> str:
    """Functions `place` and `attend`, for heads of this width."""
    return module_text([_place(head_dim), _attend(head_dim)])


def rows_text() -> str:
    """Functions `norm`, `gate` and `spoilt`."""
    return module_text([_norm(), _gate(), _spoilt()])


def _place(head_dim: int) -> FunctionText:
    """place(heads, rotations, cells, table, rows, query heads, kv heads, slots): queries and keys
    turn where there are rotations, keys and values go into the cache.

    A row of the table: its row of rotations, and its slot.
    """
    parameters = ["ptr %heads", "ptr %turns", "ptr %cells", "ptr %table", "i64 %rows"]
    code = FunctionText("place", [*parameters, *_SHAPE])
    turned = code.add("%queries", "%kv_heads")
    all_heads = code.add(turned, "%kv_heads")
    turns_any = code.let("icmp ne ptr %turns, null")
    with code.loop(0, "%rows") as row:
        turn = code.times(_entry(code, "%table", row, 2, 0), head_dim)
        slot = code.times(_entry(code, "%table", row, 2, 1), head_dim)
        first = code.times(code.times(row, all_heads), head_dim)
        with code.where(turns_any), code.loop(0, turned) as head:
            begin = code.add(first, code.times(head, head_dim))
            for at in range(0, head_dim, LANES):
                address = code.at("float", "%heads", code.add(begin, at))
                pairs = code.load(VECTOR, address)
                angles = code.load(VECTOR, code.at("float", "%turns", code.add(turn, at)))
                code.store(VECTOR, _turned(code, pairs, angles), address)
        with code.loop("%queries", all_heads) as head:
            begin = code.add(first, code.times(head, head_dim))
            cell = code.times(code.times(code.minus(head, "%queries"), "%slots"), head_dim)
            cell = code.add(cell, slot)
            for at in range(0, head_dim, LANES):
                values = code.load(VECTOR, code.at("float", "%heads", code.add(begin, at)))
                code.store(VECTOR, values, code.at("float", "%cells", code.add(cell, at)))
    return code


def _turned(code: FunctionText, pairs: str, angles: str) -> str:
    """Pairs (a, b) times (cos, sin), as complex numbers."""
    lanes = range(LANES)
    cosines = code.shuffled(angles, [lane & ~1 for lane in lanes])
    sines = code.shuffled(angles, [lane | 1 for lane in lanes])
    crossed = code.shuffled(pairs, [lane ^ 1 for lane in lanes])
    signs = numbers(*([-1.0, 1.0] * (LANES // 2)))
    across = code.let(f"fmul {VECTOR} {code.let(f'fmul {VECTOR} {crossed}, {sines}')}, {signs}")
    return code.fma(pairs, cosines, across)


def _attend(head_dim: int) -> FunctionText:
    """attend(heads, cells, out, table, space, scale, first unit, end, query heads, kv heads,
    slots): rows of queries over the tokens that each sees. A unit is a row and a kv head.

    A row of the table: the step's row, where its pieces begin in the table, their end, how many
    tokens. A piece: its first slot, and its end. The space has, for each query of a kv head, a
    number for each token, up to whole vectors.
    """
    addresses = ["ptr %heads", "ptr %cells", "ptr %out", "ptr %table", "ptr %space"]
    parameters = ["float %scale", "i64 %unit", "i64 %end"]
    code = FunctionText("attend", [*addresses, *parameters, *_SHAPE])
    group = code.over("%queries", "%kv_heads")
    all_heads = code.add(code.add("%queries", "%kv_heads"), "%kv_heads")
    with code.loop("%unit", "%end") as unit:
        at = code.over(unit, "%kv_heads")
        kv_head = code.minus(unit, code.times(at, "%kv_heads"))
        row, begin, end, tokens = (_entry(code, "%table", at, 4, n) for n in range(4))
        first = code.times(kv_head, group)
        asked = code.times(code.add(code.times(row, all_heads), first), head_dim)
        given = code.times(code.add(code.times(row, "%queries"), first), head_dim)
        room = code.times(code.over(code.add(tokens, LANES - 1), LANES), LANES)
        strip = code.times("%slots", head_dim)
        keys = code.at("float", "%cells", code.times(kv_head, strip))
        values = code.at("float", keys, code.times("%kv_heads", strip))
        head = _Head(
            code,
            head_dim,
            queries=code.at("float", "%heads", asked),
            out=code.at("float", "%out", given),
            group=group,
            room=room,
        )
        pieces = _Pieces(code, head_dim, begin=begin, end=end)
        for block in pieces.blocks(keys):
            head.score(*block)
        head.weigh(tokens)
        for block in pieces.blocks(values):
            head.mix(*block)
    return code


class _Pieces:
    """Where a row's tokens lie: entries [begin, end) of the table."""

    def __init__(self, code: FunctionText, head_dim: int, *, begin: str, end: str) -> None:
        self._code = code
        self._dim = head_dim
        self._begin = begin
        self._end = end
        self._seen = code.slot("i64")

    def blocks(self, cells: str) -> Iterator[tuple[str, str, str]]:
        """Inside a loop over blocks of tokens: where in `cells` one begins, how many tokens it has,
        and how many came before it."""
        code = self._code
        code.do(f"store i64 0, ptr {self._seen}")
        with code.loop(self._begin, self._end, 2) as piece:
            first = code.load("i64", code.at("i64", "%table", piece))
            end = code.load("i64", code.at("i64", "%table", code.add(piece, 1)))
            with code.loop(first, end, BLOCK_TOKENS) as slot:
                count = code.at_most(code.minus(end, slot), BLOCK_TOKENS)
                so_far = code.load("i64", self._seen)
                yield code.at("float", cells, code.times(slot, self._dim)), count, so_far
                code.store("i64", code.add(so_far, count), self._seen)


class _Head:
    """The queries of one row that share a kv head; their weights lie in the space."""

    def __init__(
        self, code: FunctionText, head_dim: int, *, queries: str, out: str, group: str, room: str
    ) -> None:
        self._code = code
        self._dim = head_dim
        self._queries = queries
        self._out = out
        self._group = group
        self._room = room

    def score(self, keys: str, count: str, so_far: str) -> None:
        """Queries times `count` tokens' keys, of which the first is the `so_far`th."""
        code = self._code
        with code.loop(0, self._group) as query:
            asked = code.at("float", self._queries, code.times(query, self._dim))
            scores = code.at("float", "%space", code.add(code.times(query, self._room), so_far))
            with code.loop(0, count) as token:
                key = code.at("float", keys, code.times(token, self._dim))
                sums = [ZEROS, ZEROS]
                for at in range(0, self._dim, LANES):
                    one = code.load(VECTOR, code.at("float", asked, str(at)))
                    other = code.load(VECTOR, code.at("float", key, str(at)))
                    turn = at // LANES % 2
                    sums[turn] = code.fma(one, other, sums[turn])
                both = code.let(f"fadd {VECTOR} {sums[0]}, {sums[1]}")
                score = code.let(f"fmul float {code.total(both)}, %scale")
                code.store("float", score, code.at("float", scores, token))

    def weigh(self, tokens: str) -> None:
        """A softmax over the scores of each query; outputs begin at zero."""
        code = self._code
        most, total = code.slot(VECTOR), code.slot(VECTOR)
        with code.loop(0, self._group) as query:
            scores = code.at("float", "%space", code.times(query, self._room))
            with code.loop(tokens, self._room) as past:
                code.store("float", number(float("-inf")), code.at("float", scores, past))
            code.store(VECTOR, numbers(float("-inf")), most)
            with code.loop(0, self._room, LANES) as at:
                some = code.load(VECTOR, code.at("float", scores, at))
                code.store(VECTOR, code.greater(code.load(VECTOR, most), some), most)
            largest = code.load(VECTOR, most)
            for distance in (1, 2, 4):
                other = code.shuffled(largest, [lane ^ distance for lane in range(LANES)])
                largest = code.greater(largest, other)
            code.store(VECTOR, ZEROS, total)
            with code.loop(0, self._room, LANES) as at:
                address = code.at("float", scores, at)
                less = code.let(f"fsub {VECTOR} {code.load(VECTOR, address)}, {largest}")
                weights = _exp(code, less)
                code.store(VECTOR, weights, address)
                summed = code.let(f"fadd {VECTOR} {code.load(VECTOR, total)}, {weights}")
                code.store(VECTOR, summed, total)
            whole = code.splat(code.total(code.load(VECTOR, total)))
            share = code.let(f"fdiv {VECTOR} {numbers(1.0)}, {whole}")
            with code.loop(0, self._room, LANES) as at:
                address = code.at("float", scores, at)
                shared = code.let(f"fmul {VECTOR} {code.load(VECTOR, address)}, {share}")
                code.store(VECTOR, shared, address)
            out = code.at("float", self._out, code.times(query, self._dim))
            for at_dim in range(0, self._dim, LANES):
                code.store(VECTOR, ZEROS, code.at("float", out, str(at_dim)))

    def mix(self, values: str, count: str, so_far: str) -> None:
        """Add `count` tokens' values, of which the first is the `so_far`th, by their weights."""
        code = self._code
        places = range(0, self._dim, LANES)
        sums = [code.slot(VECTOR) for _ in places[:_SUMS_MAX]]
        with code.loop(0, self._group) as query:
            weights = code.at("float", "%space", code.add(code.times(query, self._room), so_far))
            out = code.at("float", self._out, code.times(query, self._dim))
            for first in range(0, len(places), _SUMS_MAX):
                some = places[first : first + _SUMS_MAX]
                for total, place in zip(sums, some, strict=False):
                    code.store(VECTOR, code.load(VECTOR, code.at("float", out, str(place))), total)
                with code.loop(0, count) as token:
                    weight = code.splat(code.load("float", code.at("float", weights, token)))
                    value = code.at("float", values, code.times(token, self._dim))
                    for total, place in zip(sums, some, strict=False):
                        part = code.load(VECTOR, code.at("float", value, str(place)))
                        added = code.fma(weight, part, code.load(VECTOR, total))
                        code.store(VECTOR, added, total)
                for total, place in zip(sums, some, strict=False):
                    code.store(VECTOR, code.load(VECTOR, total), code.at("float", out, str(place)))


def _norm() -> FunctionText:
    """norm(rows, weights, out, width, share, eps, number of rows): each row times its weights over
    the root of its mean square. `share`: one over the width."""
    parameters = ["ptr %x", "ptr %w", "ptr %y", "i64 %width", "float %share", "float %eps"]
    code = FunctionText("norm", [*parameters, "i64 %rows"])
    total = code.slot(VECTOR)
    with code.loop(0, "%rows") as row:
        begin = code.times(row, "%width")
        rows, out = code.at("float", "%x", begin), code.at("float", "%y", begin)
        code.store(VECTOR, ZEROS, total)
        with code.loop(0, "%width", LANES) as at:
            some = code.load(VECTOR, code.at("float", rows, at))
            code.store(VECTOR, code.fma(some, some, code.load(VECTOR, total)), total)
        square = code.let(f"fmul float {code.total(code.load(VECTOR, total))}, %share")
        root = code.splat(code.let(f"fadd float {square}, %eps"))
        root = code.let(f"call {VECTOR} @llvm.sqrt.v{LANES}f32({VECTOR} {root})")
        scale = code.let(f"fdiv {VECTOR} {numbers(1.0)}, {root}")
        with code.loop(0, "%width", LANES) as at:
            some = code.load(VECTOR, code.at("float", rows, at))
            some = code.let(f"fmul {VECTOR} {some}, {scale}")
            weights = code.load(VECTOR, code.at("float", "%w", at))
            some = code.let(f"fmul {VECTOR} {some}, {weights}")
            code.store(VECTOR, some, code.at("float", out, at))
    return code


def _gate() -> FunctionText:
    """gate(rows, out, width, number of rows): a row's first half's SiLU times its second half, of
    `width` numbers each."""
    code = FunctionText("gate", ["ptr %x", "ptr %y", "i64 %width", "i64 %rows"])
    with code.loop(0, "%rows") as row:
        begin = code.times(row, "%width")
        gates = code.at("float", "%x", code.times(begin, 2))
        ups = code.at("float", gates, "%width")
        out = code.at("float", "%y", begin)
        with code.loop(0, "%width", LANES) as at:
            gate = code.load(VECTOR, code.at("float", gates, at))
            power = _exp(code, code.let(f"fneg {VECTOR} {gate}"))
            below = code.let(f"fadd {VECTOR} {power}, {numbers(1.0)}")
            gated = code.let(f"fdiv {VECTOR} {gate}, {below}")
            up = code.load(VECTOR, code.at("float", ups, at))
            product = code.let(f"fmul {VECTOR} {gated}, {up}")
            code.store(VECTOR, product, code.at("float", out, at))
    return code


def _spoilt() -> FunctionText:
    """spoilt(numbers, how many): NaN where one of them is NaN or infinite, else zero."""
    code = FunctionText("spoilt", ["ptr %x", "i64 %count"], gives="float")
    total = code.slot(VECTOR)
    code.store(VECTOR, ZEROS, total)
    with code.loop(0, "%count", LANES) as at:
        some = code.load(VECTOR, code.at("float", "%x", at))
        nothing = code.let(f"fsub {VECTOR} {some}, {some}")
        summed = code.let(f"fadd {VECTOR} {code.load(VECTOR, total)}, {nothing}")
        code.store(VECTOR, summed, total)
    code.end_with("float", code.total(code.load(VECTOR, total)))
    return code


def _exp(code: FunctionText, powers: str) -> str:
    """e to the power, to about two units in the last place; powers are clamped, NaN stays."""
    powers = code.lesser(code.greater(powers, numbers(_EXP_LEAST)), numbers(_EXP_MOST))
    shifted = code.fma(powers, numbers(1.4426950408889634), numbers(_ROUNDING))
    whole = code.let(f"fsub {VECTOR} {shifted}, {numbers(_ROUNDING)}")
    rest = code.fma(whole, numbers(-0.693359375), powers)
    rest = code.fma(whole, numbers(2.12194440e-4), rest)
    value = numbers(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        value = code.fma(value, rest, numbers(term))
    square = code.let(f"fmul {VECTOR} {rest}, {rest}")
    value = code.fma(value, square, rest)
    value = code.let(f"fadd {VECTOR} {value}, {numbers(1.0)}")
    bits = code.let(f"bitcast {VECTOR} {shifted} to {INTEGERS}")
    bits = code.let(f"shl {INTEGERS} {bits}, {integers(23)}")
    bits = code.let(f"add {INTEGERS} {bits}, {integers(127 << 23)}")
    return code.let(f"fmul {VECTOR} {value}, {code.let(f'bitcast {INTEGERS} {bits} to {VECTOR}')}")


def _entry(code: FunctionText, table: str, row: str, width: int, column: int) -> str:
    place = code.add(code.times(row, width), column)
    return code.load("i64", code.at("i64", table, place))
