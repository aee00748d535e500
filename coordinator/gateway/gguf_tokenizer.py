"""A tokenizer from a GGUF file's metadata.

A GGUF lists tokens, their types and merges (or scores), and names the rule that cuts text into
words; everything else of a tokenizer follows from the family.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from coordinator.gateway.chat_template import ChatTemplate
from coordinator.gateway.plain_text import PlainText
from coordinator.gateway.tokens import ModelTokenizer
from coordinator.gateway.vocabulary import token_bytes_of
from plait.errors import ModelError
from plait.models.vocabulary import SPACE_MARK

_CONTROL, _USER_DEFINED = 3, 4  # token types of the format

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_ENDING: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"

_SPLITS: Final[Mapping[str, str]] = {
    "llama-bpe": _CONTRACTIONS + _WORD + r"\p{N}{1,3}|" + _REST,
    "llama3": _CONTRACTIONS + _WORD + r"\p{N}{1,3}|" + _REST,
    "qwen2": _CONTRACTIONS + _WORD + r"\p{N}|" + _REST,
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|"
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gpt-4o": (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_ENDING}|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_ENDING}|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Word rules of published byte-level tokenizers, by the name that a GGUF gives them."""

_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "tekken", "gpt-4o"})
_NOT_STRIPPED: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> ModelTokenizer:
    """Build from the file's key-value pairs.

    Raises ModelError where they describe no tokenizer, or one that plait does not know.
    """
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError("the GGUF file holds no tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend = _sentencepiece(metadata, tokens)
    else:
        raise ModelError(f"plait does not know the GGUF tokenizer {kind!r}")
    types = _integers(metadata, "tokenizer.ggml.token_type")
    # Phi-3's own files say that white space behind its markers is dropped; a GGUF does not.
    strips = kind == "llama" and metadata.get("general.architecture") == "phi3"
    for token, token_type in zip(tokens, types, strict=False):
        # Gemma's runs of spaces merge like any word; by themselves they would be read as marks.
        is_space = kind == "llama" and SPACE_MARK in token
        if token_type in (_CONTROL, _USER_DEFINED) and not is_space:
            is_control = token_type == _CONTROL
            added = AddedToken(
                token,
                special=is_control,
                normalized=False,
                rstrip=strips and token not in _NOT_STRIPPED,
            )
            (backend.add_special_tokens if is_control else backend.add_tokens)([added])
    template = metadata.get("tokenizer.chat_template")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelTokenizer(
        backend=backend,
        template=ChatTemplate(
            template,
            bos_token=_marker(metadata, tokens, "bos"),
            eos_token=_marker(metadata, tokens, "eos"),
        )
        if isinstance(template, str)
        else None,
        pieces=token_bytes_of(backend, json.loads(backend.to_str())),
        plain=PlainText.of(backend),
        bos_id=bos_id if adds_bos and isinstance(bos_id, int) else None,
    )


def _byte_level(metadata: Mapping[str, object], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    rule = metadata.get("tokenizer.ggml.pre", "default")
    merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=rule in _WHOLE_WORDS_FIRST,
        )
    )
    backend.decoder = decoders.ByteLevel()
    if rule in ("default", "gpt-2", "gpt2"):
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif rule == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    elif isinstance(rule, str) and rule in _SPLITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[rule]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if rule == "qwen2":
            backend.normalizer = normalizers.NFC()
    else:
        raise ModelError(f"plait does not know the GGUF pre-tokenizer {rule!r}")
    return backend


def _sentencepiece(metadata: Mapping[str, object], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    listed = _strings(metadata, "tokenizer.ggml.merges")
    merges = (
        [_pair(merge) for merge in listed]
        if listed
        else _merges_by_score(vocabulary, _floats(metadata, "tokenizer.ggml.scores"))
    )
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=tokens[unknown_id] if isinstance(unknown_id, int) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _merges_by_score(
    vocabulary: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """SentencePiece's BPE keeps no merges: a pair merges if the whole is a token, the best score
    first, and among the cuts of one token the parts with the lower ids."""
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for token, token_id in vocabulary.items():
        score = scores[token_id] if token_id < len(scores) else 0.0
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                pair = (token[:cut], token[cut:])
                ranked.append((-score, token_id, left, right, pair))
    ranked.sort(key=lambda entry: entry[:4])
    return [entry[4] for entry in ranked]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"the GGUF file holds a merge that is not a pair: {merge!r}")
    return left, right


def _marker(metadata: Mapping[str, object], tokens: Sequence[str], name: str) -> str:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[token_id] if isinstance(token_id, int) and token_id < len(tokens) else ""


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    entry = metadata.get(key, ())
    return [str(item) for item in entry] if isinstance(entry, Sequence) else []


def _integers(metadata: Mapping[str, object], key: str) -> list[int]:
    entry = metadata.get(key, ())
    return [int(item) for item in entry] if isinstance(entry, Sequence) else []


def _floats(metadata: Mapping[str, object], key: str) -> list[float]:
    entry = metadata.get(key, ())
    return [float(item) for item in entry] if isinstance(entry, Sequence) else []
