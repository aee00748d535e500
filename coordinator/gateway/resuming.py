"""What a request that is asked again takes over from the first time."""

import hashlib
from collections.abc import Sequence

from coordinator.gateway.happenings import Delta, Happening
from coordinator.gateway.order import SEEDS
from coordinator.gateway.reader import is_piece
from plait.errors import InvalidRequestError
from plait.types import RequestId


def seed_of(request_id: RequestId, salt: bytes) -> int:
    """The seed of a request that names none: the same whenever it is asked again."""
    digest = hashlib.sha256(b"plait-seed-v1" + salt + request_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS


def check_resume(token_ids: Sequence[int], vocab_size: int, max_new_tokens: int) -> None:
    """Raises InvalidRequestError for tokens that no answer to the request can have."""
    if len(token_ids) > max_new_tokens or any(not 0 <= i < vocab_size for i in token_ids):
        raise InvalidRequestError(
            "the tokens to go on from are no answer to this request", param="resume"
        )


def told_ids(history: Sequence[Happening], num_pieces: int) -> tuple[int, ...]:
    """The tokens in the first pieces of an answer."""
    pieces = [happening for happening in history if is_piece(happening)][:num_pieces]
    return tuple(
        token.token_id for piece in pieces if isinstance(piece, Delta) for token in piece.tokens
    )
