"""The digest that tells two nodes they hold the same weights, without reading all of them."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from plait.models.bytestore import ByteStore

_SAMPLE_BYTES: Final = 64


def content_mark(store: ByteStore, places: Iterable[tuple[int, int]]) -> str:
    """What stands for a file's content in the digest.

    A file from a hub has an id that its origin vouches for. Any other file is sampled: 64 bytes
    from the middle of every tensor, since two fine-tunings of a model have equal headers.

    Args:
        places: (offset, bytes) of every tensor.
    """
    if store.content_id is not None:
        return store.content_id
    sample = hashlib.sha256()
    for offset, num_bytes in sorted(places):
        size = min(_SAMPLE_BYTES, num_bytes)
        sample.update(store.read_at(offset + (num_bytes - size) // 2, size))
    return sample.hexdigest()


def manifest_digest(files: Sequence[tuple[str, int, str, str]]) -> str:
    """sha256 (hex) over (name, size in bytes, header's sha256, content mark) of every file."""
    whole = hashlib.sha256()
    for name, size_bytes, header_sha256, mark in sorted(files):
        whole.update(f"{name}\0{size_bytes}\0{header_sha256}\0{mark}\n".encode())
    return whole.hexdigest()
