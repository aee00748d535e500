"""From what a person types to a ModelSource."""

import difflib
import re
from pathlib import Path
from typing import Final

from plait.errors import ModelError
from plait.models.catalogue import CATALOGUE
from plait.types import ModelId, ModelSource, SourceKind

_HUB: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?:/[\w./-]{1,200}\.gguf)?)"
    r"(?:@(?P<revision>[\w./-]{1,100}))?"
)
_FILES: Final = (".gguf", ".safetensors")


def resolve(name: str) -> ModelSource:
    """A catalogue name, a local folder or file, or a hub's "org/name[/file.gguf][@revision]".

    Raises:
        ModelError: none of these; says what is known.
    """
    if name in CATALOGUE:
        return ModelSource(kind=SourceKind.CATALOGUE, name=name)
    path = Path(name).expanduser()
    if name and _exists(path):
        return ModelSource(kind=SourceKind.PATH, name=str(path.resolve()))
    match = _HUB.fullmatch(name)
    if match is not None and ".." not in name:
        return ModelSource(kind=SourceKind.HUB, name=match["name"], revision=match["revision"])
    if name.startswith(("/", ".", "~")) or path.suffix in _FILES:
        raise ModelError(f"there is no folder or file {name}")
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ModelError(
        f"the model {name!r} is unknown.{hint} Known by name: {', '.join(CATALOGUE)}; also any "
        "Hugging Face repository (org/name[@revision] or org/name/file.gguf), and any local "
        "folder of safetensors or GGUF file"
    )


def default_id(source: ModelSource) -> ModelId:
    """The name clients use, where nobody chose one."""
    if source.kind is not SourceKind.PATH:
        return ModelId(source.name)
    path = Path(source.name)
    return ModelId(path.stem if path.suffix in _FILES else path.resolve().name)


def split_hub_name(name: str) -> tuple[str, str | None]:
    """(repository id, path of a GGUF inside it or None). Raises ModelError."""
    if _HUB.fullmatch(name) is None or "@" in name or ".." in name:
        raise ModelError(f"{name!r} is not a hub's name: org/name or org/name/file.gguf")
    org, repo, *inside = name.split("/", 2)
    return f"{org}/{repo}", inside[0] if inside else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for this file system
        return False
