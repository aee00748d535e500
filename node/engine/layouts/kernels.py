"""Compiles kernels for this processor, once for each kind of matrix."""

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from node.engine.layouts.kernel_code import FEW_ROWS, CodeShape, kernel_text

_FEW = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
_MANY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4, ctypes.c_void_p)

_X86 = ("avx2", "f16c", "fma")
_NEEDED = {"x86_64": _X86, "amd64": _X86, "aarch64": ("neon",), "arm64": ()}
"""Without these a vector's multiplication or its 16 bits are calls of a function."""

_OPTIMIZATION = 1
"""Of the text, whose vectors and unrolled loops are as they should be: more takes longer and gains
nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The functions of `kernel_code.kernel_text`; both run without Python's lock. `_engine` owns
    their code."""

    _engine: object
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
def has_kernels() -> bool:
    """Whether this processor has what the kernels are made of."""
    return can_run(platform.machine(), llvm.get_host_cpu_features())


def can_run(machine: str, features: Mapping[str, bool]) -> bool:
    """Whether a processor that calls itself `machine` and has `features` runs kernels at speed."""
    needed = _NEEDED.get(machine.lower())
    return needed is not None and all(features.get(name, False) for name in needed)


@cache
def compiled(shape: CodeShape) -> Kernel:
    """Takes a quarter of a second, once."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    module = llvm.parse_assembly(kernel_text(shape))
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    few = tuple(
        _FEW(engine.get_function_address(f"few{count}")) for count in range(1, FEW_ROWS + 1)
    )
    return Kernel(engine, few, _MANY(engine.get_function_address("many")))
