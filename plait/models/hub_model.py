"""A model of the hub on this machine: its record, its whole files and its pieces."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from plait.errors import ModelError, WeightsError
from plait.models.bytestore import PICKLE_HELP, ByteStore, FileStore
from plait.models.disk import locked, size_or_zero, storing, write_small
from plait.models.folder import (
    CONFIG,
    GENERATION,
    INDEX,
    SINGLE,
    folder_spec,
    open_safetensors,
    read_weight_map,
)
from plait.models.gate import OPEN, Gate
from plait.models.gguf_source import GgufSource
from plait.models.http_ranges import RangeClient
from plait.models.hub import Hub, Listing
from plait.models.naming import split_hub_name
from plait.models.pieces import PieceFolder
from plait.models.range_store import RangeStore
from plait.models.records import FileRecord, PullRecord, hub_folder, load_record
from plait.models.source import TensorSource
from plait.models.supply import Supply
from plait.types import ModelId, ModelSource, ModelSpec

TOKENIZER_FILES: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.json",
)
"""In the order of fetching: where the last one is here, all are."""
_GGUF_BLOCK_BYTES: Final = 2**20


class HubModel:
    """One revision of a repository (or of one GGUF in it), pinned to a commit.

    Building it needs the network only where this machine has no record of the revision yet.

    Raises:
        ModelError: unknown repository, revision or file; gated; offline and not here.
        WeightsError: hub out of reach, disk full, pickles only.
    """

    def __init__(
        self,
        source: ModelSource,
        models_dir: Path,
        *,
        client: RangeClient | None = None,
        gate: Gate = OPEN,
        supply: Supply | None = None,
    ) -> None:
        self.repo_id, self.gguf = split_hub_name(source.name)
        self.hub = Hub(self.repo_id)
        self._supply = supply
        if supply is not None and supply.is_offline:
            self.hub.is_offline = True
        self.models_dir = models_dir
        home = hub_folder(models_dir, source.name)
        self.commit = self.hub.commit(source.revision, home / "refs.json")
        self.folder = home / self.commit
        self.gate = gate
        self.client = (
            client
            if client is not None
            else RangeClient(token=self.hub.token, arrived=gate.arrived)
        )
        self.record = load_record(self.folder) or self._locked_first_record(source)

    @property
    def lock_key(self) -> str:
        """Of the cross-process lock that guards the record and whole files."""
        return f"hub-{self.folder.parent.name}"

    def spec(self, model_id: ModelId) -> ModelSpec:
        """The shape; needs a GGUF's header, or the configuration alone."""
        if self.gguf is None:
            return folder_spec(self.folder, model_id)
        opened = self.open(model_id)
        opened.close()
        return opened.spec

    def open(self, model_id: ModelId) -> TensorSource:
        """Tensors from whole files where they are here, else by range."""
        if self.gguf is not None:
            store = self._store(self.gguf)
            return GgufSource(store, model_id, block_bytes=_GGUF_BLOCK_BYTES)
        names = [file.name for file in self.record.files]
        weight_map = read_weight_map(self.folder) if len(names) > 1 else None
        return open_safetensors(self.folder, model_id, names, weight_map, opener=self._store)

    def fetch_tokenizer_files(self) -> None:
        """Bring what a tokenizer needs into the folder. Needs no network when it is here."""
        if self.hub.is_offline or (self.folder / TOKENIZER_FILES[-1]).exists():
            return
        listing = self.hub.listing(self.commit)
        there = {file.name for file in listing.files}
        wanted = [name for name in TOKENIZER_FILES if name in there]
        self.hub.fetch_small(wanted, self.commit, self.folder)

    def close(self) -> None:
        """Idempotent."""
        self.client.close()

    def _store(self, name: str) -> ByteStore:
        file = self.record.file(name)
        if file is None:
            raise ModelError(f"{self.repo_id} has no file {name}")
        path = self.folder / name
        if file.sha256 is not None and size_or_zero(path) == file.size_bytes:
            return FileStore(path, content_id=file.content_id)
        pieces = PieceFolder(self.folder / "ranges" / name.replace("/", "--"))
        remote = self.hub.remote(file, self.commit)
        return RangeStore(
            remote, pieces, self.client, self.models_dir, gate=self.gate, supply=self._supply
        )

    def _locked_first_record(self, source: ModelSource) -> PullRecord:
        """Once per machine: another process may be making the same record, or pulling."""
        with locked(self.models_dir, self.lock_key, waiting=lambda: None):
            record = load_record(self.folder) or self._told_record(source)
            return record or self._first_record(source)

    def _told_record(self, source: ModelSource) -> PullRecord | None:
        """As whoever supplies the weights describes the model; None where nobody does. Whether it
        is right shows in the digest."""
        told = self._supply.describe(source) if self._supply is not None else None
        if told is None or told.commit != self.commit:
            return None
        with storing(self.folder, sum(len(content) for _, content in told.small)):
            self.folder.mkdir(parents=True, exist_ok=True)
        for name, content in told.small:
            if name in (CONFIG, GENERATION, INDEX):
                write_small(self.folder / name, content)
        return self._saved_record(source, told.files)

    def _saved_record(self, source: ModelSource, files: tuple[FileRecord, ...]) -> PullRecord:
        pinned = replace(source, revision=self.commit, digest=None)
        record = PullRecord(source=pinned, files=files, is_whole=False)
        with storing(self.folder, 2**20):
            self.folder.mkdir(parents=True, exist_ok=True)
        record.save(self.folder)
        return record

    def _first_record(self, source: ModelSource) -> PullRecord:
        listing = self.hub.listing(self.commit)
        there = {file.name: file for file in listing.files}
        if self.gguf is None:
            small = [name for name in (CONFIG, GENERATION, INDEX) if name in there]
            with storing(self.folder, 2**20):
                self.folder.mkdir(parents=True, exist_ok=True)
            self.hub.fetch_small(small, self.commit, self.folder)
        names = [self.gguf] if self.gguf is not None else self._weight_names(listing)
        for name in names:
            if name not in there:
                raise ModelError(f"{self.repo_id}@{self.commit[:12]} has no file {name}")
        files = tuple(self.hub.with_metadata(there[name], self.commit) for name in names)
        return self._saved_record(source, files)

    def _weight_names(self, listing: Listing) -> list[str]:
        there = [file.name for file in listing.files]
        weight_map = read_weight_map(self.folder)
        if weight_map is not None:
            return sorted(set(weight_map.values()))
        if SINGLE in there:
            return [SINGLE]
        ggufs = [name for name in there if name.endswith(".gguf")]
        if ggufs:
            raise ModelError(
                f"{self.repo_id} holds GGUFs; name one, for example {self.repo_id}/{ggufs[0]}"
            )
        pickles = [name for name in there if name.endswith((".bin", ".pt", ".pth"))]
        if pickles:
            raise WeightsError(
                f"{self.repo_id} has no safetensors, and {pickles[0]} is refused: {PICKLE_HELP}",
                reason="weights_pickle",
            )
        raise ModelError(f"{self.repo_id}@{self.commit[:12]} has no weights that plait reads")
