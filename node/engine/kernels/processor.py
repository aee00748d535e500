"""What this processor can run, and LLVM's text made into code for it."""

import platform
from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

_X86 = ("avx2", "f16c", "fma")
_NEEDED = {"x86_64": _X86, "amd64": _X86, "aarch64": ("neon",), "arm64": ()}
"""Without these a vector's multiplication or its 16 bits are calls of a function."""

_OPTIMIZATION = 1
"""Of the text, whose vectors and unrolled loops are as they should be: more takes longer and gains
nothing."""


@cache
def has_kernels() -> bool:
    """Whether this processor has what the kernels are made of."""
    return can_run(platform.machine(), llvm.get_host_cpu_features())


def can_run(machine: str, features: Mapping[str, bool]) -> bool:
    """Whether a processor that calls itself `machine` and has `features` runs kernels at speed."""
    needed = _NEEDED.get(machine.lower())
    return needed is not None and all(features.get(name, False) for name in needed)


@cache
def num_registers() -> int:
    """How many vectors of eight floats this processor's registers hold."""
    return 32 if llvm.get_host_cpu_features().get("avx512vl", False) else 16


class CompiledCode:
    """A module's functions; they are gone when this is."""

    def __init__(self, text: str) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            jit=True,
        )
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
        options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Of a function."""
        address: int = self._engine.get_function_address(name)
        return address
