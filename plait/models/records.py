"""What was pulled: a small record beside the files, with the sha256 of each.

MODELS/catalogue/NAME/            plait.json, one GGUF
MODELS/hub/ORG--NAME/COMMIT/      plait.json, configuration, whole files, ranges/
MODELS/hub/ORG--NAME/refs.json    branch or tag to commit, for work without a network
MODELS/locks/
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from plait.errors import WeightsError
from plait.models.disk import write_small
from plait.types import ModelSource, SourceKind

RECORD: Final = "plait.json"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the model. `content_id` is its origin's name for the content (a hub's ETag).

    `sha256` is None until the whole file is here.
    """

    name: str
    size_bytes: int
    sha256: str | None = None
    content_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRecord:
    """A pulled model. `source` has revision and digest pinned; `is_whole` says all is here."""

    source: ModelSource
    files: tuple[FileRecord, ...]
    is_whole: bool

    def file(self, name: str) -> FileRecord | None:
        """The record of one file."""
        return next((file for file in self.files if file.name == name), None)

    def save(self, folder: Path) -> None:
        """Write the record at once. Raises WeightsError when the disk is full."""
        write_small(folder / RECORD, json.dumps(asdict(self), indent=1).encode())


def load_record(folder: Path) -> PullRecord | None:
    """The folder's record, None where there is none. Raises WeightsError if it is damaged."""
    path = folder / RECORD
    try:
        content = json.loads(path.read_bytes())
        source = content["source"]
        return PullRecord(
            source=ModelSource(**{**source, "kind": SourceKind(source["kind"])}),
            files=tuple(FileRecord(**file) for file in content["files"]),
            is_whole=bool(content["is_whole"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"the record {path} is damaged; delete {folder} and pull the model again"
        ) from error


def catalogue_folder(models_dir: Path, name: str) -> Path:
    return models_dir / "catalogue" / name


def hub_folder(models_dir: Path, repo_id: str) -> Path:
    """All revisions of a repository."""
    return models_dir / "hub" / repo_id.replace("/", "--")


def record_folders(models_dir: Path) -> list[Path]:
    """Folders of everything pulled, in order of their names."""
    found = [*models_dir.glob(f"catalogue/*/{RECORD}"), *models_dir.glob(f"hub/*/*/{RECORD}")]
    return sorted(path.parent for path in found)
