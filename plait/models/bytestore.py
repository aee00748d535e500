"""Where bytes of weights come from: a file here, or a range of a file elsewhere."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from plait.errors import ModelError, WeightsError
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

    def close(self) -> None: ...


class FileStore:
    """A file on this machine, read by range; safe to use from several threads."""

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
        self.size_bytes = path.stat().st_size
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
        filled = 0
        with self._lock:
            self._file.seek(offset)
            while filled < size:
                count = self._file.readinto(buffer[filled:])
                if not count:
                    raise WeightsError(
                        f"{self.label} became shorter while it was read", reason="weights_truncated"
                    )
                filled += count
            self.read_bytes += size
        return buffer

    def prefetch(self, ranges: Sequence[tuple[int, int]], progress: ReadProgress) -> None:
        return

    def close(self) -> None:
        self._file.close()


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins with `head` is a pickle: bare (protocol 2-5) or torch's zip."""
    if head[8:9] == b"{":  # a safetensors header length may begin with the same two bytes
        return False
    return head[:4] == b"PK\x03\x04" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05")


def refuse_pickle(head: bytes, label: str) -> None:
    """Raises WeightsError(reason="weights_pickle") for a pickle, whatever its name."""
    if is_pickle(head):
        raise WeightsError(f"{label} is refused: {PICKLE_HELP}", reason="weights_pickle")
