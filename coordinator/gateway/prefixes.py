"""What the core may know of a prompt: salted hashes of its first blocks of tokens, no text."""

from collections.abc import Sequence
from typing import Final

from plait.prefixes import BLOCK_TOKENS, BlockNamer, reusable_blocks

BLOCKS_MAX: Final = 64
"""Blocks whose hashes are kept: the first 1,024 tokens."""


def block_hashes(prompt_ids: Sequence[int], salt: bytes) -> tuple[int, ...]:
    """One 64-bit hash per whole block that may be reused: equal hashes mean equal beginnings. They
    are the beginnings of the names that stages file KV under."""
    num_blocks = min(BLOCKS_MAX, reusable_blocks(len(prompt_ids)))
    names = BlockNamer(salt).push(prompt_ids[: num_blocks * BLOCK_TOKENS])
    return tuple(int.from_bytes(name[:8], "little") for name in names)
