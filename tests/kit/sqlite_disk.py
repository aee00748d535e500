"""A disk under SQLite that loses what was not flushed, refuses to flush, or is full.

SQLite reaches files through a VFS. This one hands everything on to the usual one, in the same
files, and notes writes and flushes on their way; flushes reach no disk. It stands in for all
connections of this process that are opened while it is installed.
"""

import ctypes
import ctypes.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

OK, IOERR, FULL, IOERR_FSYNC = 0, 10, 13, 10 | 4 << 8

XOpen = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
XWrite = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
XTruncate = CFUNCTYPE(c_int, c_void_p, c_int64)
XSync = CFUNCTYPE(c_int, c_void_p, c_int)
XClose = CFUNCTYPE(c_int, c_void_p)
XDelete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Vfs(Structure):
    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        ("others", c_void_p * 14),
    )


class _Methods(Structure):
    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        ("others", c_void_p * 13),
    )


Change = tuple[int, bytes | None]
"""Bytes from an offset on, or (None) the file's new length."""


@dataclass(slots=True)
class _File:
    """What of a file is on the disk, and what was written since."""

    flushed: bytearray
    waiting: list[Change] = field(default_factory=list)


class SqliteDisk:
    """`operations_left`: writes and flushes until the power goes, None: it stays. `is_full` and
    `is_failing`: what writes and flushes come to; a flush that fails loses what it was to flush."""

    def __init__(self) -> None:
        self.operations_left: int | None = None
        self.num_operations = 0
        self.is_full = self.is_failing = False
        self._files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}

    @property
    def is_on(self) -> bool:
        return self.operations_left is None or self.operations_left > 0

    def after_the_loss(self, folder: Path, rng: Random) -> None:
        """What is found when the power is back: all that was flushed, and any part of the rest."""
        removed = {path: file for path, file in self._removed.items() if rng.random() < 0.5}
        for path, file in {**removed, **self._files}.items():
            found = bytearray(file.flushed)
            for change in file.waiting:
                if rng.random() < 0.5:
                    _change(found, change)
            (folder / Path(path).name).write_bytes(found)

    # What the VFS tells.

    def opened(self, path: str) -> None:
        if path not in self._files:
            self._files[path] = _File(bytearray(Path(path).read_bytes()))

    def deleted(self, path: str) -> None:
        """Names are gone for good with the next flush of any file."""
        if self.is_on and path in self._files:
            self._removed[path] = self._files.pop(path)

    def changed(self, path: str, change: Change) -> int:
        """A write, or a new length; what SQLite is to be told."""
        if not self._operates():
            return IOERR
        if self.is_full and change[1] is not None:
            return FULL
        self._files[path].waiting.append(change)
        return OK

    def flushed(self, path: str) -> int:
        if not self._operates():
            return IOERR_FSYNC
        file = self._files[path]
        changes, file.waiting = file.waiting, []
        if self.is_failing:
            return IOERR_FSYNC
        for change in changes:
            _change(file.flushed, change)
        self._removed.clear()
        return OK

    def _operates(self) -> bool:
        if self.is_on:
            self.num_operations += 1
            if self.operations_left is not None:
                self.operations_left -= 1
        return self.is_on


def _change(content: bytearray, change: Change) -> None:
    at, written = change
    if written is None:
        del content[at:]
        return
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(written)] = written


def library() -> ctypes.CDLL | None:
    """The SQLite that Python uses, where it is a library of its own."""
    name = ctypes.util.find_library("sqlite3")
    return ctypes.CDLL(name) if name is not None else None


@contextmanager
def installed(disk: SqliteDisk, sqlite: ctypes.CDLL) -> Iterator[None]:
    """Every connection that is opened within the block writes to `disk`."""
    sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
    sqlite.sqlite3_vfs_register.argtypes = sqlite.sqlite3_vfs_unregister.argtypes = ()
    usual = sqlite.sqlite3_vfs_find(None)
    shim = _Shim(disk, usual)
    sqlite.sqlite3_vfs_register(ctypes.byref(shim.vfs), 1)
    try:
        yield
    finally:
        sqlite.sqlite3_vfs_unregister(ctypes.byref(shim.vfs))
        sqlite.sqlite3_vfs_register(usual, 1)
        _SHIMS.append(shim)  # connections that are still open call it


_SHIMS: Final[list["_Shim"]] = []


class _Shim:
    """Callbacks, and the structures that hold them."""

    def __init__(self, disk: SqliteDisk, usual: "ctypes._Pointer[_Vfs]") -> None:
        self._disk = disk
        self._usual = usual
        self._paths: dict[int, str] = {}
        self._methods: dict[int, _Methods] = {}
        self._kept: list[object] = []
        self._open = XOpen(usual.contents.xOpen or 0)
        self._delete = XDelete(usual.contents.xDelete or 0)
        self.vfs = _Vfs.from_buffer_copy(usual.contents)
        self.vfs.zName = b"plait-disk"
        self.vfs.xOpen = self._address(XOpen(self._opened))
        self.vfs.xDelete = self._address(XDelete(self._deleted))

    def _address(self, function: object) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, c_void_p).value  # type: ignore[arg-type]

    def _opened(self, _vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        # The very bytes of the name: SQLite keeps where they are, and names other files after them.
        code = self._open(ctypes.cast(self._usual, c_void_p), name, file, flags, out)
        methods = c_void_p.from_address(file)
        if code == OK and name is not None and methods.value is not None:
            self._paths[file] = os.fsdecode(ctypes.string_at(name))
            self._disk.opened(self._paths[file])
            methods.value = ctypes.addressof(self._wrapped(methods.value))
        return int(code)

    def _deleted(self, _vfs: int, name: bytes, flags: int) -> int:
        self._disk.deleted(os.fsdecode(name))
        return int(self._delete(ctypes.cast(self._usual, c_void_p), name, flags))

    def _wrapped(self, usual: int) -> _Methods:
        """The methods of such a file, on their way to the usual ones."""
        if usual not in self._methods:
            base = _Methods.from_address(usual)
            copy = _Methods.from_buffer_copy(base)
            write, truncate = XWrite(base.xWrite or 0), XTruncate(base.xTruncate or 0)
            close = XClose(base.xClose or 0)

            def on_write(file: int, source: int, size: int, at: int) -> int:
                change = at, ctypes.string_at(source, size)
                return self._then(file, change, lambda: write(file, source, size, at))

            def on_truncate(file: int, size: int) -> int:
                return self._then(file, (size, None), lambda: truncate(file, size))

            def on_sync(file: int, _flags: int) -> int:
                return self._disk.flushed(self._paths[file])

            def on_close(file: int) -> int:
                del self._paths[file]
                return int(close(file))

            copy.xWrite, copy.xSync = self._address(XWrite(on_write)), self._address(XSync(on_sync))
            copy.xTruncate = self._address(XTruncate(on_truncate))
            copy.xClose = self._address(XClose(on_close))
            self._methods[usual] = copy
        return self._methods[usual]

    def _then(self, file: int, change: Change, usual: Callable[[], int]) -> int:
        code = self._disk.changed(self._paths[file], change)
        return code if code != OK else int(usual())
