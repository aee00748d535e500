"""Writing weights so that no half file is ever taken for a whole one."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import filelock

from plait.errors import WeightsError

PART: Final = ".part"
LOCK_LIMIT_S: Final = 3600.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_BLOCK_BYTES: Final = 2**20

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where `folder` is or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def require_space(folder: Path, needed_bytes: int, *, free: FreeBytes = free_bytes) -> None:
    """Raises WeightsError(reason="disk_full") when `needed_bytes` do not fit."""
    if free(folder) < needed_bytes:
        raise disk_full(folder, needed_bytes, free=free)


def disk_full(folder: Path, needed_bytes: int, *, free: FreeBytes = free_bytes) -> WeightsError:
    return WeightsError(
        f"the disk of {folder} is full: {needed_bytes / 2**20:.1f} MiB are needed, "
        f"{free(folder) / 2**20:.1f} MiB are free; free some, or set PLAIT_MODELS to another disk",
        reason="disk_full",
    )


@contextmanager
def storing(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turns a full or unwritable disk into a WeightsError that says how much is needed."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(folder, needed_bytes) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise WeightsError(
                f"{folder} cannot be written: {error.strerror}; set PLAIT_MODELS to a folder that "
                "can",
                reason="disk_unwritable",
            ) from error
        raise


@contextmanager
def locked(models_dir: Path, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the cross-process lock `key`; `waiting` is called once if somebody else has it.

    Raises:
        WeightsError: nobody let go of it for an hour.
    """
    folder = models_dir / "locks"
    with storing(models_dir, 1):
        folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        try:
            lock.acquire(timeout=LOCK_LIMIT_S, poll_interval=0.1)
        except filelock.Timeout:
            raise WeightsError(
                f"another process has been pulling {key} for an hour; end it and try again",
                reason="weights_busy",
            ) from None
    try:
        yield
    finally:
        lock.release()


def place(part: Path, target: Path) -> None:
    """Give a complete, written file its name at once, surviving a crash."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


def append(part: Path, blocks: Iterable[bytes], needed_bytes: int) -> None:
    """Append `blocks` to a part, making its folder.

    What `blocks` raises leaves the part for the next try; a full disk removes it.

    Raises:
        WeightsError: reason "disk_full" or "disk_unwritable".
    """
    with storing(part.parent, needed_bytes):
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as out:
                for block in blocks:
                    out.write(block)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def write_small(target: Path, content: bytes) -> None:
    """Replace a small file at once."""
    part = target.with_name(f"{target.name}.{os.getpid()}{PART}")
    try:
        with storing(target.parent, len(content)):
            part.write_bytes(content)
            place(part, target)
    finally:
        part.unlink(missing_ok=True)


def file_sha256(path: Path, advanced: Callable[[int], None] = lambda _: None) -> str:
    """sha256 (hex); `advanced` hears the bytes of each block."""
    whole = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            whole.update(block)
            advanced(len(block))
    return whole.hexdigest()


def size_or_zero(path: Path) -> int:
    """Size of a file in bytes, 0 where there is none."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
