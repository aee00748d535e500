"""From a ModelSource to tensors, a shape or a tokenizer, whatever holds them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, assert_never, runtime_checkable

from plait import config
from plait.errors import ModelError, WeightsError
from plait.models.bytestore import FileStore, refuse_pickle
from plait.models.catalogue import CATALOGUE, CatalogueModel
from plait.models.folder import folder_spec, open_folder
from plait.models.gate import OPEN, Gate
from plait.models.gguf_source import GgufSource
from plait.models.hub_model import HubModel
from plait.models.naming import default_id
from plait.models.records import catalogue_folder
from plait.models.source import ReadProgress, TensorSource
from plait.models.supply import Supply
from plait.models.tokenizer import (
    TokenizerFiles,
    tokenizer_from_folder,
    tokenizer_from_gguf,
    write_tokenizer_gguf,
)
from plait.types import ModelId, ModelSource, ModelSpec, SourceKind


def open_source(
    source: ModelSource,
    *,
    models_dir: Path | None = None,
    gate: Gate = OPEN,
    supply: Supply | None = None,
) -> TensorSource:
    """Open a model's weights; reads headers only. Close it when done. What it fetches later passes
    `gate`, and comes from `supply` where that has it.

    Raises:
        ModelError: unknown, not pulled, or of an architecture that plait does not run.
        WeightsError: corrupt, truncated, refused, or not those of `source.digest`.
    """
    opened = _open(source, models_dir or config.models_dir(), gate, supply)
    if source.digest and opened.digest != source.digest:
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
    """A model's shape, from its configuration or a GGUF's header. Raises as `open_source`."""
    name = model_id or default_id(source)
    if source.kind is SourceKind.HUB:
        model = HubModel(source, models_dir or config.models_dir())
        try:
            return model.spec(name)
        finally:
            model.close()
    path = _local_path(source, models_dir or config.models_dir())
    if path.is_dir():
        return folder_spec(path, name)
    opened = _open_file(path, name)
    opened.close()
    return opened.spec


def pin(source: ModelSource, *, models_dir: Path | None = None) -> ModelSource:
    """`source` with its commit and digest: what a coordinator tells its nodes. Reads headers only.

    Raises:
        ModelError, WeightsError: as `open_source`.
    """
    folder = models_dir or config.models_dir()
    revision = source.revision
    if source.kind is SourceKind.HUB:
        model = HubModel(source, folder)
        model.close()
        revision = model.commit
    pinned = replace(source, revision=revision)
    opened = open_source(pinned, models_dir=folder)
    opened.close()
    return replace(pinned, digest=opened.digest)


def prefetch(source: TensorSource, names: Sequence[str], progress: ReadProgress) -> None:
    """Bring tensors to this machine before they are read, adjacent ones in one request.

    Does nothing for weights that are here already. `progress` hears stored bytes: (done, total).

    Raises:
        WeightsError: out of reach, changed since pinned, or disk full.
    """
    if isinstance(source, _Prefetching):
        source.prefetch(names, progress)


def tokenizer_source(source: ModelSource, *, models_dir: Path | None = None) -> TokenizerFiles:
    """What to build the model's tokenizer from. Raises ModelError where it has none."""
    folder = models_dir or config.models_dir()
    if source.kind is SourceKind.HUB:
        return _hub_tokenizer(source, folder)
    path = _local_path(source, folder)
    if path.is_dir():
        return tokenizer_from_folder(path)
    opened = _open_file(path, default_id(source))
    opened.close()
    if isinstance(opened, GgufSource):
        return tokenizer_from_gguf(opened.header, path.parent, path.name)
    return tokenizer_from_folder(path.parent)


def weights_path(source: ModelSource, *, models_dir: Path | None = None) -> Path:
    """The file or folder of a model that is on this machine. Raises ModelError."""
    if source.kind is SourceKind.HUB:
        raise ModelError(
            f"{source.name} is a hub's model: name a file on this machine",
            reason="model_unsupported",
        )
    return _local_path(source, models_dir or config.models_dir())


def catalogue_model(name: str) -> CatalogueModel:
    """Raises ModelError for a name that this version does not know."""
    model = CATALOGUE.get(name)
    if model is None:
        raise ModelError(f"the catalogue has no {name!r}; it has: {', '.join(CATALOGUE)}")
    return model


@runtime_checkable
class _Prefetching(Protocol):
    def prefetch(self, names: Sequence[str], progress: ReadProgress) -> None: ...


def _open(source: ModelSource, models_dir: Path, gate: Gate, supply: Supply | None) -> TensorSource:
    match source.kind:
        case SourceKind.HUB:
            model = HubModel(source, models_dir, gate=gate, supply=supply)
            return model.open(default_id(source))
        case SourceKind.PATH | SourceKind.CATALOGUE:
            path = _local_path(source, models_dir)
            if path.is_dir():
                return open_folder(path, default_id(source))
            return _open_file(path, default_id(source))
        case _:
            assert_never(source.kind)


def _local_path(source: ModelSource, models_dir: Path) -> Path:
    """The file or folder with the weights."""
    if source.kind is SourceKind.CATALOGUE:
        file_name = catalogue_model(source.name).file_name
        path = catalogue_folder(models_dir, source.name) / file_name
        if not path.is_file():
            raise ModelError(
                f"{source.name} is not on this machine: `plait model pull {source.name}` gets it",
                reason="model_not_pulled",
            )
        return path
    path = Path(source.name)
    if not path.is_dir() or (path / "config.json").exists():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) > 1:
        raise ModelError(f"{path} has {len(ggufs)} GGUFs; name one, for example {ggufs[0]}")
    return ggufs[0] if ggufs else path


def _open_file(path: Path, model_id: ModelId) -> TensorSource:
    store = FileStore(path)
    try:
        head = bytes(store.read_at(0, min(16, store.size_bytes)))
        refuse_pickle(head, store.label)
        if head[:4] == b"GGUF" or path.suffix == ".gguf":
            return GgufSource(store, model_id)
    except BaseException:  # closes what it opened, then raises on
        store.close()
        raise
    store.close()
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return open_folder(path.parent, model_id, only=path.name)
    raise ModelError(f"{path} is neither a GGUF nor a safetensors file")


def _hub_tokenizer(source: ModelSource, models_dir: Path) -> TokenizerFiles:
    model = HubModel(source, models_dir)
    try:
        if model.gguf is None:
            model.fetch_tokenizer_files()
            return tokenizer_from_folder(model.folder)
        opened = model.open(default_id(source))
        if not isinstance(opened, GgufSource):
            raise ModelError(f"{source.name} is not a GGUF")
        write_tokenizer_gguf(opened.header, model.folder / "tokenizer.gguf")
        return tokenizer_from_gguf(opened.header, model.folder, "tokenizer.gguf")
    finally:
        model.close()
