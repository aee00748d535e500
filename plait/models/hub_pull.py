"""Pulling a whole model from the hub: resumed where it broke off, each file checked at its end."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from plait.errors import WeightsError
from plait.models.disk import (
    PART,
    append,
    file_sha256,
    locked,
    place,
    require_space,
    size_or_zero,
)
from plait.models.hub_model import HubModel
from plait.models.progress import PullProgress
from plait.models.records import FileRecord, PullRecord, load_record
from plait.types import ModelId

_NUM_FETCHES: Final = 3


def pull_hub(model: HubModel, progress: PullProgress) -> PullRecord:
    """All weights and tokenizer files, whole. One process pulls, others wait for it.

    Raises:
        ModelError: a family that plait does not run; none of its weights were downloaded.
        WeightsError: disk full, hub out of reach, or a file arrived damaged three times.
    """
    total = sum(file.size_bytes for file in model.record.files)
    waiting = partial(progress, "waiting", 0, total)
    with locked(model.models_dir, model.lock_key, waiting=waiting):
        model.record = load_record(model.folder) or model.record
        if not is_complete(model.record, model.folder):
            model.spec(ModelId(model.record.source.name))  # refused before it is downloaded
            if model.gguf is None:
                model.fetch_tokenizer_files()
            model.record = _pull_files(model, total, progress)
            model.record.save(model.folder)
            shutil.rmtree(model.folder / "ranges", ignore_errors=True)
        if model.record.source.digest is None:
            opened = model.open(ModelId(model.record.source.name))
            opened.close()
            source = replace(model.record.source, digest=opened.digest)
            model.record = replace(model.record, source=source)
            model.record.save(model.folder)
    return model.record


def is_complete(record: PullRecord, folder: Path) -> bool:
    """Whether every file is here, checked once and of its full size."""
    return record.is_whole and all(
        file.sha256 is not None and size_or_zero(folder / file.name) == file.size_bytes
        for file in record.files
    )


def _pull_files(model: HubModel, total: int, progress: PullProgress) -> PullRecord:
    here = sum(
        max(size_or_zero(path), size_or_zero(_part(path)))
        for path in (model.folder / file.name for file in model.record.files)
    )
    require_space(model.folder, max(0, total - here))
    files: list[FileRecord] = []
    done = 0
    for file in model.record.files:
        sha256 = _pull_file(model, file, _shifted(progress, done, total))
        files.append(replace(file, sha256=sha256))
        done += file.size_bytes
    return replace(model.record, files=tuple(files), is_whole=True)


def _shifted(progress: PullProgress, base: int, total: int) -> Callable[[str, int], None]:
    return lambda phase, done: progress(phase, base + done, total)


def _pull_file(model: HubModel, file: FileRecord, progress: Callable[[str, int], None]) -> str:
    """Bring one file; returns its sha256."""
    target = model.folder / file.name
    if size_or_zero(target) == file.size_bytes:
        sha256 = matching_sha256(target, file)
        if sha256 is not None:
            return sha256
        target.unlink()
    part = _part(target)
    for _ in range(_NUM_FETCHES):
        _fetch_into(model, part, file, progress)
        progress("checking", file.size_bytes)
        sha256 = matching_sha256(part, file)
        if sha256 is not None:
            place(part, target)
            return sha256
        part.unlink()
    raise WeightsError(
        f"{model.repo_id}/{file.name} arrived damaged {_NUM_FETCHES} times: its content is not "
        f"what the hub lists ({(file.content_id or '')[:12]})"
    )


def _fetch_into(
    model: HubModel, part: Path, file: FileRecord, progress: Callable[[str, int], None]
) -> None:
    """Append to a part what it lacks."""
    if size_or_zero(part) > file.size_bytes:
        part.unlink()

    def blocks() -> Iterator[bytes]:
        at = size_or_zero(part)
        for block in model.client.stream(model.hub.remote(file, model.commit), at, file.size_bytes):
            yield block
            at += len(block)
            progress("downloading", at)

    append(part, blocks(), file.size_bytes)


def _part(path: Path) -> Path:
    return path.with_name(path.name + PART)


def matching_sha256(path: Path, file: FileRecord) -> str | None:
    """The file's sha256 where its content is what the hub lists, else None.

    A hub names a large file by its sha256 and a small one by its git blob id (a sha1).
    """
    sha256 = file_sha256(path)
    content_id = file.content_id or ""
    if len(content_id) == 64:
        return sha256 if sha256 == content_id else None
    if len(content_id) == 40:
        blob = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        blob.update(path.read_bytes())
        return sha256 if blob.hexdigest() == content_id else None
    return sha256 if path.stat().st_size == file.size_bytes else None
