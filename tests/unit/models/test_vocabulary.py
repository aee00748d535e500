"""Bytes of tokens from a tokenizer.json, and what is no tokenizer."""

import json
from pathlib import Path

import pytest

from coordinator.gateway.tokens import tokenizer_from_folder
from plait.errors import ModelError
from plait.models import resolve
from plait.models.vocabulary import load_vocabulary, vocabulary_of_gguf, vocabulary_of_json
from tests.kit.tiny_model import write_tiny_model


def test_a_folders_vocabulary_is_the_gateways(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    vocabulary = load_vocabulary(resolve(str(tmp_path / "tiny")))
    assert vocabulary.pieces == tokenizer_from_folder(tmp_path / "tiny").pieces
    assert vocabulary.special == {256: "<eos>"}
    (tmp_path / "tiny" / "tokenizer.json").write_text("[]")
    with pytest.raises(ModelError):
        load_vocabulary(resolve(str(tmp_path / "tiny")))


def test_a_listed_vocabulary_and_added_tokens() -> None:
    layout = {
        "model": {
            "type": "Unigram",
            "vocab": [["<unk>", 0.0], ["\u2581a", -1.0], ["<0x0A>", -2.0]],
        },
        "decoder": {"type": "Metaspace"},
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": True},
            {"id": 4, "content": "<tool_call>", "special": False},
        ],
    }
    vocabulary = vocabulary_of_json(json.loads(json.dumps(layout)))
    assert vocabulary.pieces == (b"", b" a", b"\n", b"", b"<tool_call>")
    assert vocabulary.special == {0: "<unk>"}


def test_what_is_no_vocabulary_is_refused() -> None:
    with pytest.raises(ModelError, match="WordPiece"):
        vocabulary_of_json({"model": {"vocab": {}}, "decoder": {"type": "WordPiece"}})
    with pytest.raises(ModelError, match="no tokenizer"):
        vocabulary_of_gguf({})
    with pytest.raises(ModelError, match="bert"):
        vocabulary_of_gguf({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "bert"})
