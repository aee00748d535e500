"""What the chunks of a range hash to, worked out once and kept beside the range."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plait.models.disk import write_small
from plait.models.pieces import CHUNKS
from plait.types.weights import CHUNK_BYTES, ChunkHashes, FileRange

HASH_BYTES: Final = 32
_SHA256: Final = re.compile(r"-([0-9a-f]{64})$")


def chunk_hashes(path: Path, start: int, size: int) -> ChunkHashes:
    """Of `size` bytes of a file from `start` on, which must be there."""
    return tuple(hashlib.sha256(block).digest() for block in _blocks(path, start, size))


def kept_hashes(path: Path, size: int) -> ChunkHashes:
    """Of a whole file, which is read once: what was found is kept beside it. A short one may have
    its sha256 at the end of its name (see `plait.models.pieces`)."""
    named = _SHA256.search(path.stem)
    if size <= CHUNK_BYTES and named is not None:
        return (bytes.fromhex(named[1]),)
    beside = path.with_suffix(CHUNKS)
    wanted = FileRange(0, size).num_chunks * HASH_BYTES
    try:
        kept = beside.read_bytes()
    except FileNotFoundError:
        kept = b""
    if len(kept) != wanted:
        kept = b"".join(chunk_hashes(path, 0, size))
        write_small(beside, kept)
    return tuple(kept[at : at + HASH_BYTES] for at in range(0, wanted, HASH_BYTES))


def _blocks(path: Path, start: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        for at in range(0, size, CHUNK_BYTES):
            yield file.read(min(CHUNK_BYTES, size - at))
