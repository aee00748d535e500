"""Which bytes each token of a `tokenizers.Tokenizer` stands for."""

from collections.abc import Mapping

import tokenizers

from plait.models.vocabulary import bytes_rule


def token_bytes_of(
    backend: tokenizers.Tokenizer, layout: Mapping[str, object]
) -> tuple[bytes, ...]:
    """Bytes by token id; empty for special tokens and for holes in the vocabulary.

    Args:
        layout: tokenizer.json, parsed; its decoder says how bytes are written.

    Raises:
        ModelError: a decoder that is neither byte-level nor SentencePiece's.
    """
    to_bytes = bytes_rule(layout)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        pieces[token_id] = to_bytes(token)
    for token_id, added in backend.get_added_tokens_decoder().items():
        pieces[token_id] = b"" if added.special else added.content.encode("utf-8", "replace")
    return tuple(pieces)
