"""What a gateway builds a tokenizer from. No tokenizer library here."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.errors import ModelError, WeightsError
from plait.models.disk import write_small
from plait.models.folder import read_json
from plait.models.gguf_header import GgufHeader

_TEMPLATE_KEY: Final = "tokenizer.chat_template"
_TEMPLATE_BYTES_MAX: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Arguments for transformers' `AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)`.

    `gguf_file` is a name inside `folder`, None where the folder is in Hugging Face's form.
    `chat_template` is Jinja, None where the model has none. `metadata` are the GGUF's scalars
    and strings (its arrays stay in the file); empty otherwise.
    """

    folder: Path
    gguf_file: str | None
    chat_template: str | None
    metadata: dict[str, object]


def tokenizer_from_gguf(header: GgufHeader, folder: Path, gguf_file: str) -> TokenizerFiles:
    """Raises ModelError for a GGUF without a tokenizer."""
    if "tokenizer.ggml.model" not in header.metadata:
        raise ModelError(f"{folder / gguf_file} has no tokenizer", reason="model_no_tokenizer")
    template = header.metadata.get(_TEMPLATE_KEY)
    return TokenizerFiles(
        folder=folder,
        gguf_file=gguf_file,
        chat_template=template if isinstance(template, str) else None,
        metadata=dict(header.metadata),
    )


def write_tokenizer_gguf(header: GgufHeader, target: Path) -> None:
    """A GGUF with the metadata and no tensors, for files that are here in ranges only."""
    if not target.exists():
        magic_and_version, after_count = header.metadata_bytes[:8], header.metadata_bytes[16:]
        write_small(target, magic_and_version + struct.pack("<Q", 0) + after_count)


def tokenizer_from_folder(folder: Path) -> TokenizerFiles:
    """Raises ModelError for a folder without a tokenizer."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        raise ModelError(
            f"there is no tokenizer.json or tokenizer.model in {folder}",
            reason="model_no_tokenizer",
        )
    return TokenizerFiles(
        folder=folder, gguf_file=None, chat_template=_chat_template(folder), metadata={}
    )


def _chat_template(folder: Path) -> str | None:
    """From its own file, or from tokenizer_config.json (one text, or a list with a default)."""
    own = folder / "chat_template.jinja"
    if own.exists():
        if own.stat().st_size > _TEMPLATE_BYTES_MAX:
            raise WeightsError(f"{own} is too long for a chat template")
        return own.read_text("utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            continue
        value = read_json(folder / name).values.get("chat_template")
        if isinstance(value, str):
            return value
        for entry in value if isinstance(value, list) else []:
            if isinstance(entry, dict) and entry.get("name") == "default":
                return str(entry.get("template", ""))
    return None
