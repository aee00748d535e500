"""Packages that few tests use and that take long to import. Each process that runs tests collects
all files: what they import is imported by all of them, whoever runs them."""

from importlib import import_module
from types import ModuleType


class _Lazily(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # what collecting asks of everything
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def lazily(name: str) -> ModuleType:
    """A module that is imported when something of it is used; for the other branch of
    `if TYPE_CHECKING: import name`."""
    return _Lazily(name)
