"""plait: one LLM service over many volunteers' GPUs.

`plait.Client` and `plait.AsyncClient` talk to a network; `plait.errors` is what they raise. All are
loaded when they are first used, so that `import plait` costs next to nothing.
"""

import importlib

TYPE_CHECKING = False  # as type checkers know it; the module `typing` would take longest here
if TYPE_CHECKING:
    from plait import errors as errors
    from plait.sdk import AsyncClient as AsyncClient
    from plait.sdk import Client as Client
    from plait.sdk import Completion as Completion
    from plait.sdk import Delta as Delta

__all__ = ["AsyncClient", "Client", "Completion", "Delta", "errors"]
_LAZY = frozenset({"AsyncClient", "Client", "Completion", "Delta"})


if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(importlib.import_module("plait.sdk"), name)
        if name == "errors":
            return importlib.import_module("plait.errors")
        raise AttributeError(f"module 'plait' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
