"""A Hugging Face repository: which commit, which files, and its small files on this disk.

Honours HF_ENDPOINT, HF_TOKEN (and a stored login) and HF_HUB_OFFLINE at the time of the call.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import huggingface_hub.errors as hub_errors
from huggingface_hub import HfApi, get_hf_file_metadata, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from plait.errors import ModelError, WeightsError, plain_cause
from plait.models.disk import storing, write_small
from plait.models.http_ranges import RemoteFile
from plait.models.records import FileRecord

# httpx's or httpx2's, whichever this version of the library uses:
_HTTPError: Final[type[Exception]] = hub_errors.HTTPError  # type: ignore[attr-defined]
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SMALL_BYTES_MAX: Final = 64 * 2**20
_PUBLIC: Final = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Listing:
    """A commit and its files, with sizes and content ids."""

    commit: str
    files: tuple[FileRecord, ...]


class Hub:
    """One repository of the hub."""

    def __init__(self, repo_id: str) -> None:
        self.repo_id = repo_id
        self.endpoint = os.environ.get("HF_ENDPOINT", _PUBLIC).rstrip("/")
        self.token = get_token()
        self.is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")

    def commit(self, revision: str | None, refs: Path) -> str:
        """The commit behind a branch or tag; remembered in `refs` for when the hub is away.

        Raises:
            ModelError: no such repository or revision, or not allowed.
            WeightsError: the hub cannot be reached and `refs` does not know.
        """
        wanted = revision or "main"
        if _COMMIT.fullmatch(wanted):
            return wanted
        known = _read_refs(refs)
        if self.is_offline:
            if wanted not in known:
                raise ModelError(
                    f"{self.repo_id}@{wanted} is not on this machine, and HF_HUB_OFFLINE is set",
                    reason="model_not_pulled",
                )
            return known[wanted]
        try:
            commit = self.listing(wanted).commit
        except WeightsError as error:
            if error.code == "weights_unavailable" and wanted in known:
                return known[wanted]  # the hub is away: go on with what was there last
            raise
        with storing(refs.parent, 1):
            refs.parent.mkdir(parents=True, exist_ok=True)
        write_small(refs, json.dumps({**known, wanted: commit}).encode())
        return commit

    def listing(self, revision: str) -> Listing:
        """The files of a revision. Raises ModelError, WeightsError."""
        self._require_online()
        with _hub_errors(self, revision):
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                self.repo_id, revision=revision, files_metadata=True, timeout=30.0
            )
        if info.sha is None or not _COMMIT.fullmatch(info.sha):
            raise WeightsError(f"the hub names no commit for {self.repo_id}@{revision}")
        files = []
        for sibling in info.siblings or ():
            if ".." in sibling.rfilename.split("/") or sibling.rfilename.startswith("/"):
                raise WeightsError(f"{self.repo_id} has a file with the name {sibling.rfilename!r}")
            content_id = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
            files.append(FileRecord(sibling.rfilename, sibling.size or 0, content_id=content_id))
        return Listing(info.sha, tuple(files))

    def with_metadata(self, file: FileRecord, commit: str) -> FileRecord:
        """`file` with size and content id, asked for one by one where the listing has none."""
        if file.content_id is not None and file.size_bytes > 0:
            return file
        self._require_online()
        with _hub_errors(self, commit):
            found = get_hf_file_metadata(
                self.url(file.name, commit), token=self.token, endpoint=self.endpoint
            )
        if found.size is None or found.etag is None:
            raise WeightsError(f"the hub gives no size or ETag for {self.repo_id}/{file.name}")
        return FileRecord(file.name, found.size, content_id=found.etag)

    def fetch_small(self, names: Iterable[str], commit: str, folder: Path) -> None:
        """Bring configuration and tokenizer files into `folder`. Raises as `listing`."""
        for name in names:
            if (folder / name).exists():
                continue
            self._require_online()
            with storing(folder, _SMALL_BYTES_MAX), _hub_errors(self, commit):
                hf_hub_download(
                    self.repo_id,
                    name,
                    revision=commit,
                    local_dir=folder,
                    endpoint=self.endpoint,
                    token=self.token,
                )

    def url(self, name: str, commit: str) -> str:
        return hf_hub_url(self.repo_id, name, revision=commit, endpoint=self.endpoint)

    def remote(self, file: FileRecord, commit: str) -> RemoteFile:
        """For the range client. `file` must have its metadata."""
        return RemoteFile(
            url=self.url(file.name, commit),
            label=f"{self.repo_id}/{file.name}",
            size_bytes=file.size_bytes,
            commit=commit,
            content_id=file.content_id or "",
        )

    def _require_online(self) -> None:
        if self.is_offline:
            raise ModelError(
                f"{self.repo_id} is not complete on this machine, and no hub is to be asked "
                "(HF_HUB_OFFLINE is set, or the node runs with --offline)",
                reason="model_not_pulled",
            )


def _read_refs(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    refs = content if isinstance(content, dict) else {}
    return {name: commit for name, commit in refs.items() if _COMMIT.fullmatch(str(commit))}


@contextmanager
def _hub_errors(hub: Hub, revision: str) -> Iterator[None]:
    """The hub library's errors in our words."""
    what = f"{hub.repo_id}@{revision[:12]}"
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"{what} is gated: accept its terms at {hub.endpoint}/{hub.repo_id} and set HF_TOKEN",
            reason="model_forbidden",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{hub.repo_id} has no revision {revision!r} on {hub.endpoint}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{hub.endpoint} has no repository {hub.repo_id}, or it is private and HF_TOKEN does "
            "not open it"
        ) from error
    except HFValidationError as error:
        raise ModelError(
            f"{what} is not a name that the hub knows: {plain_cause(error)}"
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(hub, what, error) from error
    except EntryNotFoundError as error:
        raise ModelError(f"{what} lacks a file: {plain_cause(error)}") from error
    except (_HTTPError, ConnectionError, TimeoutError) as error:
        raise _unreachable(hub, what, error) from error


def _unreachable(hub: Hub, what: str, error: Exception) -> WeightsError:
    return WeightsError(
        f"{hub.endpoint} could not be asked for {what}: {plain_cause(error)}. Is this machine "
        "online? A model that was pulled elsewhere can be named by its folder",
        reason="weights_unavailable",
    )
