"""A model's tokenizer and chat template, built without torch, one per model.

Bytes of each token are known, so text is put together byte by byte: no token has to be decoded
twice, and a character that two tokens share comes out whole.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import tokenizers

from coordinator.gateway.chat_layout import lay_out
from coordinator.gateway.chat_template import ChatTemplate
from coordinator.gateway.conversation import ToolUse, Turn, conversation_chars
from coordinator.gateway.plain_text import PlainText
from coordinator.gateway.tool_formats import ToolFormat, format_of
from coordinator.gateway.vocabulary import token_bytes_of
from plait.errors import InvalidRequestError, ModelError, OverloadedError
from plait.types import ModelId

INLINE_CHARS_MAX: Final = 4_096
"""Texts up to this length are encoded on the spot (well under a millisecond per thousand)."""

ENCODING_THREADS: Final = 2
ENCODINGS_MAX: Final = 64
"""Long texts in the threads or waiting for them."""


class Tokenizer(Protocol):
    """What the gateway needs of a tokenizer."""

    def encode(self, text: str, *, with_special: bool) -> list[int]:
        """Token ids of `text`; `with_special` adds what the model expects at the start."""
        ...

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes function calls."""
        ...

    def render_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> str:
        """Lay a conversation out as a prompt. Raises InvalidRequestError."""
        ...

    def encode_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> list[int]:
        """Token ids of `render_chat`, in which special tokens are the template's alone: what a
        message says is text. Raises InvalidRequestError."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that a generated token stands for; empty for special tokens."""
        ...

    def token_text(self, token_id: int) -> str:
        """A token as people read it: its text, or the name of a special token."""
        ...


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A `tokenizers.Tokenizer` with the table of its tokens' bytes and the model's template.

    `bos_id` is set where raw prompts begin with it and the tokenizer does not add it itself;
    `plain` knows what must stay text in a chat.
    """

    backend: tokenizers.Tokenizer
    template: ChatTemplate | None
    pieces: tuple[bytes, ...]
    plain: PlainText
    bos_id: int | None = None

    def encode(self, text: str, *, with_special: bool) -> list[int]:
        # The batch call lets other threads run (2 MB stop them for 8 ms); `encode` does not.
        ids = self.backend.encode_batch_fast([text], add_special_tokens=with_special)[0].ids
        if with_special and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    @property
    def tool_format(self) -> ToolFormat:
        if self.template is None:
            return format_of(None, knows_tools=False)
        form = self.template.tool_format
        opening_id = self.backend.token_to_id(form.opening) if form.opening else None
        is_special = opening_id is not None and not self.token_bytes(opening_id)
        return replace(form, opening_id=opening_id) if is_special else form

    def render_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> str:
        template = self._template()
        return template.render(lay_out(turns, tools, knows_tools=template.knows_tools))

    def encode_chat(self, turns: Sequence[Turn], tools: ToolUse | None = None) -> list[int]:
        template = self._template()
        return self.plain.encode_chat(
            lay_out(turns, tools, knows_tools=template.knows_tools),
            render=template.render,
            encode=lambda text: self.encode(text, with_special=False),
        )

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidRequestError(
                "this model has no chat template: use a plain prompt instead", param="messages"
            )
        return self.template

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def token_text(self, token_id: int) -> str:
        piece = self.token_bytes(token_id)
        return piece.decode("utf-8", "replace") or self.backend.id_to_token(token_id) or ""


def tokenizer_from_folder(folder: Path) -> ModelTokenizer:
    """From a folder with tokenizer.json (and, for chats, tokenizer_config.json).

    Raises ModelError where files are missing or of a kind that plait does not decode.
    """
    path = folder / "tokenizer.json"
    try:
        document = path.read_text("utf-8")
        layout = json.loads(document)
        backend = tokenizers.Tokenizer.from_str(document)
    except FileNotFoundError:
        raise ModelError(f"{folder} has no tokenizer.json") from None
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelError(f"{path} is not a tokenizer: {error}") from error
    settings = _read_json(folder / "tokenizer_config.json")
    template = settings.get("chat_template")
    override = folder / "chat_template.jinja"
    if override.is_file():
        template = override.read_text("utf-8")
    elif isinstance(template, list):
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return ModelTokenizer(
        backend=backend,
        template=_chat_template(template, settings),
        pieces=token_bytes_of(backend, layout),
        plain=PlainText.of(backend),
    )


def _chat_template(source: object, settings: Mapping[str, object]) -> ChatTemplate | None:
    if not isinstance(source, str):
        return None
    return ChatTemplate(
        source,
        bos_token=_token_text(settings.get("bos_token")),
        eos_token=_token_text(settings.get("eos_token")),
    )


def _token_text(entry: object) -> str:
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else ""


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


@dataclass(slots=True)
class TokenizerRegistry:
    """One tokenizer per model; long texts are encoded in threads, off the event loop.

    Encoding raises OverloadedError when too many long texts wait.
    """

    tokenizers: dict[ModelId, Tokenizer] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(ENCODING_THREADS, "encode")
    )
    _num_encoding: int = 0

    def add(self, model_id: ModelId, tokenizer: Tokenizer) -> None:
        """Use `tokenizer` for `model_id`, replacing what was there."""
        self.tokenizers[model_id] = tokenizer

    def get(self, model_id: ModelId) -> Tokenizer:
        """Raises ModelError for a model without a tokenizer."""
        tokenizer = self.tokenizers.get(model_id)
        if tokenizer is None:
            raise ModelError(f"model {model_id!r} has no tokenizer here")
        return tokenizer

    async def encode_text(self, model_id: ModelId, text: str) -> list[int]:
        """Token ids of a raw prompt."""
        tokenizer = self.get(model_id)
        return await self._run(len(text), lambda: tokenizer.encode(text, with_special=True))

    async def encode_chat(
        self, model_id: ModelId, turns: Sequence[Turn], tools: ToolUse | None = None
    ) -> list[int]:
        """Token ids of a conversation in the model's own layout."""
        tokenizer = self.get(model_id)
        size = conversation_chars(turns, tools)
        return await self._run(size, lambda: tokenizer.encode_chat(turns, tools))

    async def _run(self, size: int, work: Callable[[], list[int]]) -> list[int]:
        if size <= INLINE_CHARS_MAX:
            return work()
        if self._num_encoding >= ENCODINGS_MAX:
            raise OverloadedError(
                f"{ENCODINGS_MAX} long prompts are being read already; try again in a second",
                reason="queue_full",
            )
        self._num_encoding += 1
        job = asyncio.get_running_loop().run_in_executor(self._pool, work)
        job.add_done_callback(self._on_encoded)
        return await job

    def _on_encoded(self, _: object) -> None:
        self._num_encoding -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
