"""Which bytes each token of a model stands for, read from the model's own files.

Two ways of writing bytes in a vocabulary cover all served families: byte-level BPE, where every
byte has a printable stand-in (GPT-2, Llama 3, Qwen, SmolLM), and SentencePiece, where a space is
U+2581 and a rare byte is a token of its own, "<0xE2>" (Llama 2, Mistral).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.errors import ModelError
from plait.models.gguf_arrays import read_metadata
from plait.models.opening import tokenizer_source
from plait.types import ModelSource

SPACE_MARK: Final = "\u2581"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces` are the bytes by token id, empty for special tokens and for holes; `special` are
    the names of special tokens by id."""

    pieces: tuple[bytes, ...]
    special: Mapping[int, str]


def load_vocabulary(source: ModelSource, *, models_dir: Path | None = None) -> Vocabulary:
    """Read a model's vocabulary; takes tenths of a second.

    Raises ModelError where the model has no tokenizer or one that plait does not decode,
    WeightsError for a file that is not sound.
    """
    files = tokenizer_source(source, models_dir=models_dir)
    if files.gguf_file is not None:
        return vocabulary_of_gguf(read_metadata(files.folder / files.gguf_file))
    path = files.folder / "tokenizer.json"
    try:
        return vocabulary_of_json(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise ModelError(f"{files.folder} has no tokenizer.json") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a tokenizer: {error}") from error


def vocabulary_of_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """From a GGUF's key-value pairs. Raises ModelError where they describe no tokenizer."""
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, Sequence) or not tokens:
        raise ModelError("the GGUF file holds no tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"plait does not know the GGUF tokenizer {kind!r}")
    to_bytes = byte_level_bytes if kind == "gpt2" else sentencepiece_bytes
    pieces = [to_bytes(str(token)) for token in tokens]
    special: dict[int, str] = {}
    for token_id, token_type in enumerate(types if isinstance(types, Sequence) else ()):
        if token_type == _CONTROL:
            special[token_id] = str(tokens[token_id])
            pieces[token_id] = b""
        elif token_type == _USER_DEFINED:
            pieces[token_id] = str(tokens[token_id]).encode("utf-8", "replace")
    return Vocabulary(tuple(pieces), special)


def vocabulary_of_json(layout: Mapping[str, object]) -> Vocabulary:
    """From tokenizer.json, parsed. Raises ModelError for bytes that are written in another way."""
    to_bytes = bytes_rule(layout)
    tokens = dict(_listed(layout))
    added = layout.get("added_tokens")
    added = added if isinstance(added, list) else []
    entries = [(int(each["id"]), str(each["content"]), bool(each["special"])) for each in added]
    ids = [*tokens, *(token_id for token_id, _, _ in entries)]
    pieces = [b""] * (max(ids, default=-1) + 1)
    for token_id, token in tokens.items():
        pieces[token_id] = to_bytes(token)
    for token_id, content, is_special in entries:
        pieces[token_id] = b"" if is_special else content.encode("utf-8", "replace")
    return Vocabulary(
        tuple(pieces),
        {token_id: content for token_id, content, is_special in entries if is_special},
    )


def bytes_rule(layout: Mapping[str, object]) -> Callable[[str], bytes]:
    """How the tokens of a tokenizer.json stand for bytes, told from its decoder.

    Raises ModelError: a decoder that is neither byte-level nor SentencePiece's.
    """
    kinds = set(_decoder_kinds(layout.get("decoder")))
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return sentencepiece_bytes
    raise ModelError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is neither "
        "byte-level nor SentencePiece's"
    )


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


def _listed(layout: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """(id, token) of the model's own list: BPE maps tokens to ids, Unigram lists them."""
    model = layout["model"]
    if not isinstance(model, Mapping):
        raise ModelError("the tokenizer names no model")
    listed = model["vocab"]
    if isinstance(listed, Mapping):
        yield from ((int(token_id), str(token)) for token, token_id in listed.items())
    else:
        yield from ((at, str(entry[0])) for at, entry in enumerate(listed))


def _decoder_kinds(decoder: object) -> Iterator[str]:
    if not isinstance(decoder, Mapping):
        return
    kind = decoder.get("type")
    if isinstance(kind, str) and kind != "Sequence":
        yield kind
    for inner in decoder.get("decoders", ()):
        yield from _decoder_kinds(inner)
