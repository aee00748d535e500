"""Weights that the coordinator itself can look at: on its disk, or at the hub. Blocks; threads."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plait.errors import ModelError
from plait.log import get
from plait.models.folder import CONFIG, GENERATION, INDEX
from plait.models.hub_model import HubModel
from plait.models.records import FileRecord, catalogue_folder, load_record
from plait.models.shelf import Shelf
from plait.models.supply import Description
from plait.types import ModelSource, SourceKind
from plait.types.weights import ChunkHashes, FileRange

log = get("weights")
CONTENT_BYTES_MAX: Final = 2**20
"""Of a range that is given with the answer: headers, which every node reads."""


class WeightCopies:
    """The files of the served models that come from a hub or the catalogue."""

    def __init__(self, sources: Sequence[ModelSource], models_dir: Path) -> None:
        """Opens records alone; they are here since the models were pinned. A model without one is
        left out: its nodes fetch from its origin."""
        self._described: dict[str, Description] = {}
        self._origins: dict[str, tuple[HubModel, FileRecord]] = {}
        self._shelf = Shelf(models_dir)
        for source in sources:
            try:
                if source.kind is SourceKind.HUB:
                    self._take_hub(source, models_dir)
                elif source.kind is SourceKind.CATALOGUE:
                    self._take_catalogue(source, models_dir)
            except ModelError as error:
                log.warning("weights_not_described", model=source.name, message=error.message)
        self.files = {
            file.content_id: file.size_bytes
            for description in self._described.values()
            for file in description.files
            if file.content_id
        }

    def describe(self, digest: str) -> Description | None:
        """A served model by its digest."""
        return self._described.get(digest)

    def look(self) -> None:
        """Notice what has come to the disk."""
        self._shelf.look(frozenset(self.files))

    def has(self, content_id: str, wanted: FileRange) -> bool:
        """Whether these bytes are on this disk, as far as was looked."""
        return self._shelf.is_whole(content_id) or wanted in self._shelf.ranges(content_id)

    def hashes(self, content_id: str, wanted: FileRange) -> ChunkHashes | None:
        """Of bytes on this disk, read for it; None where they are not here."""
        found: list[bytes] = []
        for chunk in range(wanted.num_chunks):
            content = self._shelf.read(content_id, wanted, chunk)
            if content is None:
                return None
            found.append(hashlib.sha256(content).digest())
        return tuple(found)

    def content(self, content_id: str, wanted: FileRange) -> bytes | None:
        """A short range from this disk."""
        if wanted.size > CONTENT_BYTES_MAX:
            return None
        return self._shelf.read(content_id, wanted, 0)

    def at_hub(self, content_id: str, wanted: FileRange) -> ChunkHashes | None:
        """What the hub has, fetched for it and kept nowhere; None where there is no hub to ask.
        Raises WeightsError, ModelError."""
        model, file = self._origins.get(content_id, (None, None))
        if model is None or file is None or model.hub.is_offline:
            return None
        remote = model.hub.remote(file, model.commit)
        found: list[bytes] = []
        for chunk in wanted.chunks():
            whole = hashlib.sha256()
            for block in model.client.stream(remote, chunk.start, chunk.end):
                whole.update(block)
            found.append(whole.digest())
        return tuple(found)

    def close(self) -> None:
        """Idempotent."""
        for model, _ in self._origins.values():
            model.close()

    def _take_hub(self, source: ModelSource, models_dir: Path) -> None:
        model = HubModel(source, models_dir)
        small = tuple(
            (name, (model.folder / name).read_bytes())
            for name in (CONFIG, GENERATION, INDEX)
            if (model.folder / name).is_file()
        )
        files = tuple(
            FileRecord(file.name, file.size_bytes, content_id=file.content_id)
            for file in model.record.files
        )
        self._described[source.digest or ""] = Description(model.commit, files, small)
        for file in files:
            self._origins[file.content_id or ""] = (model, file)

    def _take_catalogue(self, source: ModelSource, models_dir: Path) -> None:
        record = load_record(catalogue_folder(models_dir, source.name))
        if record is not None:
            files = tuple(
                FileRecord(file.name, file.size_bytes, content_id=file.sha256)
                for file in record.files
            )
            self._described[source.digest or ""] = Description("", files, ())
