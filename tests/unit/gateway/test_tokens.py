"""Tokenizers without torch: byte-level, SentencePiece, folders and chat templates."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from coordinator.gateway.chat_layout import lay_out
from coordinator.gateway.chat_template import ChatTemplate
from coordinator.gateway.conversation import Turn
from coordinator.gateway.gguf_tokenizer import tokenizer_from_gguf
from coordinator.gateway.tokens import (
    ENCODINGS_MAX,
    INLINE_CHARS_MAX,
    TokenizerRegistry,
    tokenizer_from_folder,
)
from coordinator.gateway.tool_formats import format_of
from plait.clock import ManualClock
from plait.errors import InvalidRequestError, ModelError, OverloadedError
from plait.models.vocabulary import byte_alphabet
from plait.types import ModelId
from tests.kit.scripted_network import ByteTokenizer

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def byte_level_metadata(**more: object) -> dict[str, object]:
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    tokens = ["<s>", "</s>", "<think>", *letters, "he", "ll", "hell", "\u0120w"]
    types = [3, 3, 4] + [1] * (len(tokens) - 3)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "\u0120 w"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
        **more,
    }


def sentencepiece_metadata(**more: object) -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello"]
    scores = [0.0] * len(tokens) + [-9.0, -8, -7, -6, -5, -1, -2, -3, -4, -4.5]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + words,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def test_byte_level_from_a_gguf() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    ids = tokenizer.encode("hell w</s><think>", with_special=False)
    assert [tokenizer.token_text(i) for i in ids] == ["hell", " w", "</s>", "<think>"]
    assert [tokenizer.token_bytes(i) for i in ids] == [b"hell", b" w", b"", b"<think>"]


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=30))
def test_byte_level_bytes_are_the_text(text: str) -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    ids = tokenizer.encode(text, with_special=False)
    if "<s>" not in text and "</s>" not in text:
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_sentencepiece_from_a_gguf_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("hello 🦊", with_special=True)
    assert ids[0] == 1
    pieces = [tokenizer.token_bytes(i) for i in ids]
    assert pieces[1] == b" hello"
    assert b"".join(pieces).decode() == " hello 🦊"
    assert pieces[-4:] == [bytes([byte]) for byte in "🦊".encode()]


def test_a_raw_prompt_gets_its_first_token_once() -> None:
    with_bos = tokenizer_from_gguf(byte_level_metadata(**{"tokenizer.ggml.add_bos_token": True}))
    assert with_bos.encode("he", with_special=True)[0] == 0
    assert with_bos.encode("<s>he", with_special=True).count(0) == 1
    assert with_bos.encode("he", with_special=False)[0] != 0
    assert tokenizer_from_gguf(byte_level_metadata()).encode("he", with_special=True)[0] != 0


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        byte_level_metadata(**{"tokenizer.ggml.model": "bert"}),
        byte_level_metadata(**{"tokenizer.ggml.pre": "martian"}),
        byte_level_metadata(**{"tokenizer.ggml.merges": ["alone"]}),
    ],
)
def test_what_plait_does_not_know_is_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        tokenizer_from_gguf(metadata)


@pytest.mark.parametrize("rule", ["llama-bpe", "qwen2", "tekken", "smollm", "gpt-2"])
def test_every_word_rule_compiles_and_loses_nothing(rule: str) -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata(**{"tokenizer.ggml.pre": rule}))
    text = "Hello, wörld! It's 12345  3.14\n\n\tend   "
    ids = tokenizer.encode(text, with_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def write_folder(folder: Path, **settings: object) -> Path:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["hello hello world"],
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_folder_in_hugging_faces_form(tmp_path: Path) -> None:
    bos = {"content": "<s>"}
    folder = write_folder(tmp_path, chat_template="{{ bos_token }}" + TEMPLATE, bos_token=bos)
    tokenizer = tokenizer_from_folder(folder)
    text = tokenizer.render_chat([Turn("user", "hello 🦊")])
    assert text == "<s><user>hello 🦊<assistant>"
    ids = tokenizer.encode(text, with_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text.removeprefix("<s>")
    (folder / "chat_template.jinja").write_text("own")
    assert tokenizer_from_folder(folder).render_chat([Turn("user", "x")]) == "own"
    named: list[dict[str, str]] = [{"name": "tools", "template": "t"}]
    (folder / "chat_template.jinja").unlink()
    plain = tokenizer_from_folder(write_folder(folder, chat_template=named))
    with pytest.raises(InvalidRequestError, match="no chat template"):
        plain.render_chat([Turn("user", "x")])


@pytest.mark.parametrize("content", [None, "{", "{}", '{"version": "1.0", "model": {}}'])
def test_a_broken_tokenizer_json_is_a_model_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError):
        tokenizer_from_folder(tmp_path)


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="WordPiece"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages.append('x') }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_an_error(source: str) -> None:
    template = ChatTemplate(source, bos_token="", eos_token="")
    with pytest.raises(InvalidRequestError):
        template.render(lay_out([Turn("user", "x")], None, knows_tools=False))


def test_templates_have_the_usual_names() -> None:
    loop = "{% for m in messages %}{% break %}{% endfor %}"
    source = "{{ strftime_now('%d %b %Y') }} {{ messages|tojson }}" + loop
    template = ChatTemplate(source, bos_token="", eos_token="", clock=ManualClock())
    assert template.render(lay_out([Turn("user", "é")], None, knows_tools=False)) == (
        '14 Nov 2023 [{"role": "user", "content": "é"}]'
    )
    with pytest.raises(ModelError):
        ChatTemplate("{% if %}", bos_token="", eos_token="")


async def test_long_texts_are_encoded_in_a_thread() -> None:
    threads: list[str] = []

    class Spy:
        def encode(self, text: str, *, with_special: bool) -> list[int]:
            threads.append(threading.current_thread().name)
            return [len(text)]

        tool_format = format_of(None, knows_tools=False)

        def render_chat(self, turns: Any, tools: Any = None) -> str:
            return "".join(turn.content for turn in turns)

        def encode_chat(self, turns: Any, tools: Any = None) -> list[int]:
            return self.encode(self.render_chat(turns), with_special=False)

        def token_bytes(self, token_id: int) -> bytes:
            return b""

        def token_text(self, token_id: int) -> str:
            return ""

    registry = TokenizerRegistry({ModelId("m"): Spy()})
    try:
        async with asyncio.timeout(5):
            await registry.encode_text(ModelId("m"), "short")
            long = "x" * (INLINE_CHARS_MAX + 1)
            assert await registry.encode_text(ModelId("m"), long) == [len(long)]
            assert await registry.encode_chat(ModelId("m"), [Turn("user", long)]) == [len(long)]
    finally:
        registry.close()
    assert threads[0] == threading.main_thread().name
    assert all(name.startswith("encode") for name in threads[1:])
    with pytest.raises(ModelError):
        registry.get(ModelId("other"))


async def test_only_so_many_long_texts_wait_for_a_thread() -> None:
    may_go = threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text: str, *, with_special: bool) -> list[int]:
            may_go.wait(10)
            return [1]

    registry = TokenizerRegistry({ModelId("m"): Slow()})
    long = "x" * (INLINE_CHARS_MAX + 1)
    try:
        jobs = [
            asyncio.ensure_future(registry.encode_text(ModelId("m"), long))
            for _ in range(ENCODINGS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await registry.encode_text(ModelId("m"), long)
        may_go.set()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*jobs) == [[1]] * ENCODINGS_MAX
            assert await registry.encode_text(ModelId("m"), long) == [1]
    finally:
        may_go.set()
        registry.close()


@pytest.mark.slow
def test_the_gateway_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, coordinator.gateway.gateway, coordinator.gateway.gguf_tokenizer;"
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
