"""Names for the beginnings of prompts: one scheme for the gateway, which tells the core where a
prompt may be held already, and for the stages, which find KV blocks by it.

A name covers a block's tokens and all that come before it. Names are salted with the network and
the API key: equal prompts of two keys have nothing in common, so that no timing tells one of them
what the other asked.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

BLOCK_TOKENS: Final = 16
NAME_BYTES: Final = 16
NAMED_BLOCKS_MAX: Final = 256
"""Blocks of a sequence that are named: the first 4,096 tokens."""


def cache_salt(network_id: str, key_id: str) -> bytes:
    """What names of one API key's prompts begin with, 16 bytes."""
    scope = b"plait-prefix-v1" + network_id.encode() + b"\0" + key_id.encode()
    return hashlib.sha256(scope).digest()[:16]


def reusable_blocks(prompt_tokens: int) -> int:
    """Whole blocks of a prompt but for its last token, which is always run: a token is drawn from
    it."""
    return min(NAMED_BLOCKS_MAX, max(0, prompt_tokens - 1) // BLOCK_TOKENS)


class BlockNamer:
    """Names the blocks of one sequence as its tokens come."""

    __slots__ = ("_digest", "_num_named", "_tail")

    def __init__(self, salt: bytes) -> None:
        self._digest = hashlib.sha256(salt).digest()
        self._tail: list[int] = []
        self._num_named = 0

    def push(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """The next tokens; returns the names of the blocks that they complete."""
        if self._num_named >= NAMED_BLOCKS_MAX:
            return ()
        self._tail += token_ids
        names: list[bytes] = []
        at = 0
        while len(self._tail) - at >= BLOCK_TOKENS and self._num_named < NAMED_BLOCKS_MAX:
            tokens = array("q", self._tail[at : at + BLOCK_TOKENS])
            self._digest = hashlib.sha256(self._digest + tokens.tobytes()).digest()
            names.append(self._digest[:NAME_BYTES])
            self._num_named += 1
            at += BLOCK_TOKENS
        del self._tail[:at]
        return tuple(names)
