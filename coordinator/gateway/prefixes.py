"""What the core may know of a prompt: salted hashes of its first blocks of tokens, no text."""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

from scheduler.selection.affinity import BLOCK_TOKENS

BLOCKS_MAX: Final = 64
"""Blocks whose hashes are kept: the first 1,024 tokens."""


def block_hashes(prompt_ids: Sequence[int], salt: bytes) -> tuple[int, ...]:
    """One 64-bit hash per whole block, each over the one before it and its own tokens: equal
    hashes mean equal beginnings. The last token is always run anew, so a block that ends the
    prompt counts no more. `salt` is the network's own: hashes tell nothing elsewhere."""
    num_blocks = min(BLOCKS_MAX, max(0, len(prompt_ids) - 1) // BLOCK_TOKENS)
    digest, found = hashlib.sha256(salt).digest(), []
    for at in range(num_blocks):
        tokens = array("q", prompt_ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
        digest = hashlib.sha256(digest + tokens.tobytes()).digest()
        found.append(int.from_bytes(digest[:8], "little"))
    return tuple(found)
