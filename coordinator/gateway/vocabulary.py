"""Which bytes each token of a vocabulary stands for.

Two ways of writing bytes in a vocabulary cover all served families: byte-level BPE, where every
byte has a printable stand-in (GPT-2, Llama 3, Qwen, SmolLM), and SentencePiece, where a space is
U+2581 and a rare byte is a token of its own, "<0xE2>" (Llama 2, Mistral).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import tokenizers

from plait.errors import ModelError

SPACE_MARK: Final = "\u2581"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte. Printable Latin-1 stands for itself, the
    other 68 bytes are U+0100 onwards, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + at): byte for at, byte in enumerate(others)})
    return alphabet


_ALPHABET: Final = byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; a character outside the alphabet stands for itself."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def sentencepiece_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token."""
    match = _BYTE_TOKEN.match(token)
    if match is not None:
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def token_bytes_of(
    backend: tokenizers.Tokenizer, layout: Mapping[str, object]
) -> tuple[bytes, ...]:
    """Bytes by token id; empty for special tokens and for holes in the vocabulary.

    Args:
        layout: tokenizer.json, parsed; its decoder says how bytes are written.

    Raises:
        ModelError: a decoder that is neither byte-level nor SentencePiece's.
    """
    kinds = set(_decoder_kinds(layout.get("decoder")))
    if "ByteLevel" in kinds:
        to_bytes = byte_level_bytes
    elif kinds & {"ByteFallback", "Metaspace"}:
        to_bytes = sentencepiece_bytes
    else:
        raise ModelError(
            f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is neither "
            "byte-level nor SentencePiece's"
        )
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        pieces[token_id] = to_bytes(token)
    for token_id, added in backend.get_added_tokens_decoder().items():
        pieces[token_id] = b"" if added.special else added.content.encode("utf-8", "replace")
    return tuple(pieces)


def _decoder_kinds(decoder: object) -> Iterator[str]:
    if not isinstance(decoder, Mapping):
        return
    kind = decoder.get("type")
    if isinstance(kind, str) and kind != "Sequence":
        yield kind
    for inner in decoder.get("decoders", ()):
        yield from _decoder_kinds(inner)
