"""From a ModelSource to tensors or a shape, whatever holds them."""

from dataclasses import replace
from pathlib import Path

from plait.errors import ModelError, WeightsError
from plait.models.bytestore import PICKLE_HELP, FileStore, is_pickle
from plait.models.folder import folder_spec, open_folder
from plait.models.gguf_source import GgufSource
from plait.models.source import TensorSource
from plait.types import ModelId, ModelSource, ModelSpec, SourceKind


def open_source(source: ModelSource, *, models_dir: Path | None = None) -> TensorSource:
    """Open a model's weights; reads headers only.

    Raises:
        ModelError: unknown, not pulled, or of an architecture that plait does not run.
        WeightsError: corrupt, truncated, refused, or not those of `source.digest`.
    """
    opened = _open_path(Path(source.name), default_id(source))
    if source.digest is not None and opened.digest != source.digest:
        opened.close()
        raise WeightsError(
            f"the weights of {source.name} on this machine are not those the network serves "
            f"(digest {opened.digest[:12]} instead of {source.digest[:12]})",
            reason="weights_mismatch",
        )
    return opened


def load_spec(
    source: ModelSource, *, model_id: ModelId | None = None, models_dir: Path | None = None
) -> ModelSpec:
    """A model's shape. Raises ModelError, WeightsError."""
    path = Path(source.name)
    if path.is_dir() and _gguf_inside(path) is None:
        return folder_spec(path, model_id or default_id(source))
    opened = open_source(source, models_dir=models_dir)
    opened.close()
    return replace(opened.spec, model_id=model_id or opened.spec.model_id)


def default_id(source: ModelSource) -> ModelId:
    """The name clients use, where nobody chose one."""
    if source.kind is not SourceKind.PATH:
        return ModelId(source.name)
    path = Path(source.name)
    return ModelId(path.stem if path.suffix in (".gguf", ".safetensors") else path.resolve().name)


def _open_path(path: Path, model_id: ModelId) -> TensorSource:
    if path.is_dir():
        gguf = _gguf_inside(path)
        return open_folder(path, model_id) if gguf is None else _open_file(gguf, model_id)
    return _open_file(path, model_id)


def _open_file(path: Path, model_id: ModelId) -> TensorSource:
    store = FileStore(path)
    try:
        head = bytes(store.read_at(0, min(16, store.size_bytes)))
        if is_pickle(head):
            raise WeightsError(f"{path} is refused: {PICKLE_HELP}", reason="weights_pickle")
        if head[:4] == b"GGUF" or path.suffix == ".gguf":
            return GgufSource(store, model_id)
    except BaseException:
        store.close()
        raise
    store.close()
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return open_folder(path.parent, model_id, only=path.name)
    raise ModelError(f"{path} is neither a GGUF nor a safetensors file")


def _gguf_inside(folder: Path) -> Path | None:
    """The folder's GGUF, where it has exactly one and no configuration of its own."""
    if (folder / "config.json").exists():
        return None
    found = sorted(folder.glob("*.gguf"))
    return found[0] if len(found) == 1 else None
