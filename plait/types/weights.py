"""Bytes of weights that travel between nodes: ranges of files, and what was counted of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 4 * 2**20
"""What is asked for, hashed and blamed as one."""


@dataclass(frozen=True, slots=True, order=True)
class FileRange:
    """Bytes [start, start + size) of a file."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def num_chunks(self) -> int:
        return -(-self.size // CHUNK_BYTES)

    def chunks(self) -> Iterator["FileRange"]:
        """Its chunks, in places of the file; the last one may be short."""
        for at in range(self.start, self.end, CHUNK_BYTES):
            yield FileRange(at, min(CHUNK_BYTES, self.end - at))

    def chunk(self, index: int) -> "FileRange":
        """One of `chunks`."""
        at = self.start + index * CHUNK_BYTES
        return FileRange(at, min(CHUNK_BYTES, self.end - at))


ChunkHashes = tuple[bytes, ...]
"""sha256 (32 bytes) of each chunk of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTotals:
    """Weights over the network since a node's start. `rejected_chunks` were not what they had to
    be, `refused_requests` asked for what is not given."""

    hub_bytes: int = 0
    neighbour_bytes: int = 0
    served_bytes: int = 0
    rejected_chunks: int = 0
    refused_requests: int = 0
