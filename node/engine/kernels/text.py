"""Text of LLVM's intermediate language, written line by line."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LANES = 8
"""Floats of one vector; a processor with wider ones is not asked for more."""

VECTOR = f"<{LANES} x float>"
INTEGERS = f"<{LANES} x i32>"
ZEROS = "zeroinitializer"


class FunctionText:
    """One function. Values are names that are given once; what changes lies in a slot."""

    def __init__(self, name: str, parameters: Sequence[str], *, gives: str = "void") -> None:
        self._head = f"define {gives} @{name}({', '.join(parameters)}) #0 {{"
        self._end = "ret void"
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        lines = [self._head, "entry:", *self._slots, *self._lines, f"  {self._end}", "}"]
        return "\n".join(lines)

    def end_with(self, kind: str, value: str) -> None:
        """What the function gives back, of the kind that it says it gives."""
        self._end = f"ret {kind} {value}"

    def let(self, value: str) -> str:
        """A name for `value`."""
        name = f"%v{self._fresh()}"
        self._lines.append(f"  {name} = {value}")
        return name

    def do(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def slot(self, kind: str) -> str:
        """A variable of this kind."""
        name = f"%s{self._fresh()}"
        self._slots.append(f"  {name} = alloca {kind}")
        return name

    def load(self, kind: str, address: str) -> str:
        return self.let(f"load {kind}, ptr {address}, align 1")

    def store(self, kind: str, value: str, address: str) -> None:
        self.do(f"store {kind} {value}, ptr {address}, align 1")

    def add(self, one: str, other: str | int) -> str:
        return self.let(f"add nsw i64 {one}, {other}")

    def times(self, one: str, other: str | int) -> str:
        return self.let(f"mul nsw i64 {one}, {other}")

    def minus(self, one: str, other: str | int) -> str:
        return self.let(f"sub nsw i64 {one}, {other}")

    def over(self, one: str, other: str | int) -> str:
        """Divided; neither is negative."""
        return self.let(f"udiv i64 {one}, {other}")

    def at_most(self, one: str, limit: int) -> str:
        """The smaller of both."""
        is_less = self.let(f"icmp slt i64 {one}, {limit}")
        return self.let(f"select i1 {is_less}, i64 {one}, i64 {limit}")

    def at(self, kind: str, base: str, index: str) -> str:
        """The address of the number `index` of those that begin at `base`."""
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def splat(self, number: str, kind: str = "float") -> str:
        """A vector of one number."""
        vector = f"<{LANES} x {kind}>"
        first = self.let(f"insertelement {vector} poison, {kind} {number}, i64 0")
        return self.let(f"shufflevector {vector} {first}, {vector} poison, <{LANES} x i32> {ZEROS}")

    def fma(self, one: str, other: str, total: str) -> str:
        """one * other + total, rounded once."""
        three = f"{VECTOR} {one}, {VECTOR} {other}, {VECTOR} {total}"
        return self.let(f"call {VECTOR} @llvm.fma.v{LANES}f32({three})")

    def total(self, vector: str) -> str:
        """The sum of a vector's numbers."""
        return self.let(
            f"call reassoc float @llvm.vector.reduce.fadd.v{LANES}f32("
            f"float {number(0.0)}, {VECTOR} {vector})"
        )

    def lesser(self, one: str, other: str) -> str:
        """Of each two numbers. NaN where `one` is."""
        return self._chosen("ogt", one, other)

    def greater(self, one: str, other: str) -> str:
        """Of each two numbers. NaN where `one` is."""
        return self._chosen("olt", one, other)

    def _chosen(self, other_if: str, one: str, other: str) -> str:
        does = self.let(f"fcmp {other_if} {VECTOR} {one}, {other}")
        kinds = f"<{LANES} x i1> {does}, {VECTOR} {other}, {VECTOR} {one}"
        return self.let(f"select {kinds}")

    def shuffled(self, vector: str, lanes: Sequence[int]) -> str:
        """Its numbers in another order."""
        order = f"<{', '.join(f'i32 {lane}' for lane in lanes)}>"
        return self.let(
            f"shufflevector {VECTOR} {vector}, {VECTOR} poison, <{LANES} x i32> {order}"
        )

    @contextmanager
    def loop(
        self, first: str | int, end: str | int, step: int = 1, *, unrolls: bool = False
    ) -> Iterator[str]:
        """`with ... as i` for i from `first` below `end`. Unrolled, it is quicker, and takes longer
        to compile."""
        number = self._fresh()
        slot = self.slot("i64")
        self.do(f"store i64 {first}, ptr {slot}")
        self.do(f"br label %head{number}")
        self._lines.append(f"head{number}:")
        index = self.let(f"load i64, ptr {slot}")
        goes_on = self.let(f"icmp slt i64 {index}, {end}")
        self.do(f"br i1 {goes_on}, label %body{number}, label %after{number}")
        self._lines.append(f"body{number}:")
        yield index
        self.do(f"store i64 {self.add(index, step)}, ptr {slot}")
        self.do(f"br label %head{number}" + ("" if unrolls else ", !llvm.loop !0"))
        self._lines.append(f"after{number}:")

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What is written inside happens where `condition` (i1) holds."""
        number = self._fresh()
        self.do(f"br i1 {condition}, label %then{number}, label %past{number}")
        self._lines.append(f"then{number}:")
        yield
        self.do(f"br label %past{number}")
        self._lines.append(f"past{number}:")

    def _fresh(self) -> int:
        self._count += 1
        return self._count


def number(value: float) -> str:
    """A float32 as LLVM reads it."""
    (single,) = struct.unpack("f", struct.pack("f", value))
    return "0x" + struct.pack(">d", single).hex().upper()


def numbers(*values: float) -> str:
    """A vector of as many numbers as it has lanes, or of one again and again."""
    lanes = values if len(values) == LANES else values * LANES
    return f"<{', '.join(f'float {number(value)}' for value in lanes)}>"


def integers(value: int) -> str:
    """A vector of one integer again and again."""
    return f"<{', '.join([f'i32 {value}'] * LANES)}>"


def module_text(functions: Sequence[FunctionText]) -> str:
    declared = (
        f"declare {VECTOR} @llvm.fma.v{LANES}f32({VECTOR}, {VECTOR}, {VECTOR})\n"
        f"declare float @llvm.vector.reduce.fadd.v{LANES}f32(float, {VECTOR})\n"
        f"declare {VECTOR} @llvm.sqrt.v{LANES}f32({VECTOR})"
    )
    told = (
        'attributes #0 = { nounwind }\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'
    )
    return "\n\n".join([declared, *(f.text() for f in functions), told])
