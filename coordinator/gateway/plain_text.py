"""Special tokens that clients write stay text.

A chat template marks turns with special tokens, such as `<|im_end|>`. Where a message's text holds
the same characters, they are what the message says, not a turn's end: encoded like any other text,
so that nobody can speak in another's name.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import tokenizers

from coordinator.gateway.chat_layout import ChatLayout

_MARK: Final = "\U0010fffd"


@dataclass(frozen=True, slots=True)
class PlainText:
    """The special tokens of one vocabulary, and the ids of their names as plain text."""

    names: "re.Pattern[str] | None"
    ids: tuple[tuple[int, ...], ...]
    index: dict[str, int]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "PlainText":
        """Look into a tokenizer that no other thread uses yet."""
        added = backend.get_added_tokens_decoder()
        special = {token.content: token_id for token_id, token in added.items() if token.special}
        names = sorted((name for name in special if name), key=lambda name: (-len(name), name))
        if not names:
            return cls(None, (), {})
        backend.encode_special_tokens = True
        try:
            plain = [_plain_ids(backend, name, set(special.values())) for name in names]
        finally:
            backend.encode_special_tokens = False
        pattern = re.compile("|".join(re.escape(name) for name in names))
        return cls(pattern, tuple(plain), {name: at for at, name in enumerate(names)})

    def encode_chat(
        self,
        layout: ChatLayout,
        *,
        render: Callable[[ChatLayout], str],
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """Token ids of a conversation as `render` lays it out.

        What clients wrote is hidden behind marks while the template runs and its special tokens are
        read; nobody knows a mark beforehand.
        """
        names = self.names
        if names is None or not any(names.search(text) for text in layout.texts()):
            return encode(render(layout))
        nonce = secrets.token_hex(8)

        def hide(found: "re.Match[str]") -> str:
            return f"{_MARK}{nonce}:{self.index[found[0]]}{_MARK}"

        hidden = layout.map_text(lambda text: names.sub(hide, text))
        ids: list[int] = []
        parts = re.split(f"{_MARK}{nonce}:([0-9]+){_MARK}", render(hidden))
        for at, part in enumerate(parts):  # text, index, text, index, ..., text
            if at % 2:
                ids.extend(self.ids[int(part)])
            elif part:
                ids.extend(encode(part))
        return ids


def _plain_ids(backend: tokenizers.Tokenizer, name: str, special: set[int]) -> tuple[int, ...]:
    """`name` as text. Merges that would make a special token of it are avoided by cutting."""
    ids = backend.encode_batch_fast([name], add_special_tokens=False)[0].ids
    if special.isdisjoint(ids):
        return tuple(ids)
    letters = backend.encode_batch_fast(list(name), add_special_tokens=False)
    return tuple(token for letter in letters for token in letter.ids if token not in special)
