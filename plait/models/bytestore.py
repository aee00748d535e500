"""Where bytes of weights come from: a file here, or a range of a file elsewhere."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from plait.errors import ModelError, WeightsError
from plait.models.rows import RowTable, row_runs
from plait.models.source import ReadProgress

PICKLE_HELP = (
    "it is a Python pickle, which can run code when it is loaded; plait reads safetensors and "
    "GGUF only, so convert it with safetensors.torch.save_file"
)


class ByteStore(Protocol):
    """Random access to one file of weights."""

    @property
    def label(self) -> str:
        """What errors call this file."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def content_id(self) -> str | None:
        """A name of the whole content that its origin vouches for, None where there is none."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes taken from the store so far."""
        ...

    def read_at(self, offset: int, size: int) -> memoryview:
        """Exactly `size` bytes, writable. Raises WeightsError(reason="weights_truncated")."""
        ...

    def prefetch(self, ranges: Sequence[tuple[int, int]], progress: ReadProgress) -> None:
        """Bring (offset, size) ranges near; nothing to do for a local file."""
        ...

    def read_rows(self, table: RowTable, rows: Sequence[int]) -> memoryview:
        """Rows of `table`, rising, one after another. Raises WeightsError."""
        ...

    def has_rows(self, table: RowTable, rows: Sequence[int]) -> bool:
        """Whether `read_rows` would find them without a network."""
        ...

    def prefetch_rows(self, table: RowTable, rows: Sequence[int]) -> None:
        """Bring rows near, with what lies around them; nothing to do for a local file."""
        ...

    def close(self) -> None: ...


class FileStore:
    """A file on this machine, read by range; safe to use from several threads.

    It stays open, so that a new file under its name does no harm; a change in place is noticed at
    the next read by size and time.
    """

    def __init__(self, path: Path, *, content_id: str | None = None) -> None:
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise ModelError(f"there is no file {path}") from None
        except OSError as error:
            raise WeightsError(
                f"{path} cannot be read: {error.strerror}", reason="weights_unreadable"
            ) from error
        self.label = str(path)
        status = os.fstat(self._file.fileno())
        self.size_bytes = status.st_size
        self._modified_ns = status.st_mtime_ns
        self.content_id = content_id
        self.read_bytes = 0
        self._lock = threading.Lock()

    def read_at(self, offset: int, size: int) -> memoryview:
        if offset < 0 or size < 0 or offset + size > self.size_bytes:
            raise WeightsError(
                f"{self.label} is truncated: it has {self.size_bytes} bytes, "
                f"{offset + size} are needed",
                reason="weights_truncated",
            )
        buffer = memoryview(bytearray(size))
        with self._lock:
            self._fill(buffer, offset)
            self._require_unchanged()
            self.read_bytes += size
        return buffer

    def prefetch(self, ranges: Sequence[tuple[int, int]], progress: ReadProgress) -> None:
        return

    def read_rows(self, table: RowTable, rows: Sequence[int]) -> memoryview:
        buffer = memoryview(bytearray(len(rows) * table.row_bytes))
        at = 0
        with self._lock:
            for start, end in row_runs(rows):
                size = (end - start) * table.row_bytes
                self._fill(buffer[at : at + size], table.offset + start * table.row_bytes)
                at += size
            self._require_unchanged()
            self.read_bytes += len(buffer)
        return buffer

    def has_rows(self, table: RowTable, rows: Sequence[int]) -> bool:
        return True

    def prefetch_rows(self, table: RowTable, rows: Sequence[int]) -> None:
        return

    def close(self) -> None:
        self._file.close()

    def _fill(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` on; the lock is held."""
        self._file.seek(offset)
        filled = 0
        while filled < len(buffer):
            count = self._file.readinto(buffer[filled:])
            if not count:
                raise WeightsError(
                    f"{self.label} became shorter while it was read", reason="weights_truncated"
                )
            filled += count

    def _require_unchanged(self) -> None:
        """Asked after a read: what was read is then from before any change."""
        status = os.fstat(self._file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self._modified_ns):
            raise WeightsError(
                f"{self.label} was changed while it was in use; start the node again",
                reason="weights_changed",
            )


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins with `head` is a pickle: bare (protocol 2-5) or torch's zip."""
    if head[8:9] == b"{":  # a safetensors header length may begin with the same two bytes
        return False
    return head[:4] == b"PK\x03\x04" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05")


def refuse_pickle(head: bytes, label: str) -> None:
    """Raises WeightsError(reason="weights_pickle") for a pickle, whatever its name."""
    if is_pickle(head):
        raise WeightsError(f"{label} is refused: {PICKLE_HELP}", reason="weights_pickle")
