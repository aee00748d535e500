"""Tokenizers of families whose GGUFs leave something to their reader."""

from coordinator.gateway.gguf_tokenizer import tokenizer_from_gguf
from coordinator.gateway.tokens import ModelTokenizer

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece(words: list[str], control: list[str], **more: object) -> ModelTokenizer:
    """Words merge best first in their order; runs of spaces and `<...>` are user-defined."""
    tokens = ["<unk>", "<s>", "</s>", *control, *_BYTES, *words]
    types = [2, 3, 3] + [3] * len(control) + [6] * 256
    types += [4 if set(word) <= {"\u2581", "\n"} and len(word) > 1 else 1 for word in words]
    scores = [0.0] * (len(tokens) - len(words)) + [-float(i) for i in range(len(words))]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        **more,
    }
    return tokenizer_from_gguf(metadata)


def pieces(tokenizer: ModelTokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, with_special=True)]


def test_gemma_keeps_spaces_and_puts_none_in_front() -> None:
    words = ["\u2581\u2581", "\n\n", "\u2581", "h", "i", "hi", "\u2581hi"]
    options = {"tokenizer.ggml.add_space_prefix": False, "general.architecture": "gemma3"}
    gemma = sentencepiece(words, ["<start_of_turn>"], **options)
    assert pieces(gemma, "hi hi") == ["hi", " hi"]
    assert pieces(gemma, "hi   hi") == ["hi", "  ", " hi"]
    assert pieces(gemma, "<start_of_turn>hi\n\nhi") == ["<start_of_turn>", "hi", "\n\n", "hi"]


def test_white_space_behind_phi3s_markers_is_dropped() -> None:
    words = ["\u2581", "h", "i", "hi", "\u2581hi"]
    phi3 = sentencepiece(words, ["<|user|>"], **{"general.architecture": "phi3"})
    llama = sentencepiece(words, ["<|user|>"], **{"general.architecture": "llama"})
    assert pieces(phi3, "<|user|>\nhi") == pieces(phi3, "<|user|>hi")
    assert len(pieces(llama, "<|user|>\nhi")) > len(pieces(llama, "<|user|>hi"))


def test_words_of_gpt_oss_end_where_capitals_begin_and_keep_their_endings() -> None:
    alphabet = [chr(i) for i in range(33, 127)] + ["\u0120", "\u010a"]
    words = ["He", "el", "Hel", "it", "'s", "it's", "World", "12", "123", "45"]
    merges = ["H e", "He l", "i t", "' s", "it 's", "1 2", "12 3", "4 5"]
    gpt_oss = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-4o",
            "tokenizer.ggml.tokens": alphabet + words,
            "tokenizer.ggml.merges": merges,
        }
    )
    assert pieces(gpt_oss, "HelWorld") == ["Hel", "World"]  # a word in the vocabulary, unmerged
    assert pieces(gpt_oss, "it's") == ["it's"]
    assert pieces(gpt_oss, "12345") == ["123", "45"]
