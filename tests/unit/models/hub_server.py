"""A small hub on loopback that speaks the real one's HTTP and counts what it gives.

api/models/REPO/revision/REV, REPO/resolve/REV/FILE with HEAD, ETag, X-Repo-Commit, redirects of
large files to another path with X-Linked-Etag and X-Linked-Size, and ranges.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

LARGE_SUFFIXES = (".safetensors", ".gguf", ".bin")


@dataclass
class HubServer:
    """What the server has, did and will do.

    `ranges` are (file, start, end) of every range given. `faults` are applied to the next
    downloads of large files, first one first: an int status, "cut" (half of the bytes, then the
    connection ends), "whole" (200, ranges ignored), "flip" (a damaged byte), "moved" (another
    commit), "long" (a wrong Content-Range), "gzip" (says that it compresses).
    """

    repo_id: str
    folder: Path
    commit: str = "c" * 40
    token: str | None = None
    url: str = ""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[int | str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    cdn_authorizations: list[str] = field(default_factory=list)
    cdn_connections: set[object] = field(default_factory=set)
    has_metadata: bool = True
    extra_names: list[str] = field(default_factory=list)

    @property
    def cdn_url(self) -> str:
        """The same server under another host's name, as large files come from elsewhere."""
        return self.url.replace("127.0.0.1", "localhost")

    @property
    def large_bytes(self) -> int:
        """Bytes of weights given so far."""
        return sum(end - start for _, start, end in self.ranges)

    def listing(self, *, with_sizes: bool) -> dict[str, object]:
        siblings: list[dict[str, object]] = [{"rfilename": name} for name in self.extra_names]
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file():
                continue
            entry: dict[str, object] = {"rfilename": str(path.relative_to(self.folder))}
            if with_sizes and self.has_metadata:
                entry |= {"size": path.stat().st_size, "blobId": blob_id(path)}
                if path.name.endswith(LARGE_SUFFIXES):
                    size = path.stat().st_size
                    entry["lfs"] = {"sha256": sha256(path), "size": size, "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.repo_id, "sha": self.commit, "siblings": siblings}


def sha256(path: Path) -> str:
    return _hashes(path, path.stat().st_mtime_ns, path.stat().st_size)[0]


def blob_id(path: Path) -> str:
    return _hashes(path, path.stat().st_mtime_ns, path.stat().st_size)[1]


@lru_cache(maxsize=64)
def _hashes(path: Path, _written_ns: int, _size: int) -> tuple[str, str]:
    """SHA-256, and Git's name, of a file that was last written then: hubs know them."""
    content = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content)
    return hashlib.sha256(content).hexdigest(), blob.hexdigest()


@contextmanager
def serve(hub: HubServer) -> Iterator[HubServer]:
    """Run `hub` on a free port of loopback."""

    class Bound(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: HubServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the tests' output clean."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.state, self.path.split("?")[0]
        hub.requests.append(f"{self.command} {path}")
        if path.startswith("/cdn/"):
            self._give_large(hub.folder / path.removeprefix("/cdn/"))
            return
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo")
            return
        if path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        elif path.startswith(f"/{hub.repo_id}/resolve/"):
            revision, _, name = path.removeprefix(f"/{hub.repo_id}/resolve/").partition("/")
            self._resolve(revision, name)
        else:
            self._refuse(404, "RepoNotFound")

    def _api(self, rest: str) -> None:
        repo_id, _, revision = rest.partition("/revision/")
        if repo_id != self.state.repo_id:
            self._refuse(404, "RepoNotFound")
        elif revision not in ("", "main", self.state.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            body = json.dumps(self.state.listing(with_sizes="blobs" in self.path)).encode()
            self._send(200, {"Content-Type": "application/json"}, body)

    def _resolve(self, revision: str, name: str) -> None:
        path = self.state.folder / name
        commit = {"X-Repo-Commit": self.state.commit}
        if revision not in ("main", self.state.commit):
            self._refuse(404, "RevisionNotFound")
        elif not path.is_file():
            self._refuse(404, "EntryNotFound")
        elif name.endswith(LARGE_SUFFIXES):
            if self.state.faults[:1] == ["moved"]:
                self.state.faults.pop(0)
                commit = {"X-Repo-Commit": "d" * 40}
            headers = {
                **commit,
                "Location": f"{self.state.cdn_url}/cdn/{name}",
                "X-Linked-Etag": f'"{sha256(path)}"',
                "X-Linked-Size": str(path.stat().st_size),
            }
            self._send(302, headers, b"")
        else:
            self._send(200, {**commit, "ETag": f'"{blob_id(path)}"'}, path.read_bytes())

    def _give_large(self, path: Path) -> None:
        self.state.cdn_connections.add(self.client_address)
        self.state.cdn_authorizations.append(self.headers.get("Authorization", ""))
        asked = self.headers.get("Range", "").removeprefix("bytes=").split("-")
        fault = self.state.faults.pop(0) if self.state.faults else None
        if isinstance(fault, int):
            self._send(fault, {"Retry-After": "0"}, b"")
            return
        if len(asked) != 2 or fault == "whole":
            self._send(200, {"ETag": '"whole"'}, path.read_bytes())
            return
        start, end = int(asked[0]), int(asked[1]) + 1
        with path.open("rb") as file:
            file.seek(start)
            body = bytearray(file.read(end - start))
        if fault == "flip":
            body[len(body) // 2] ^= 1
        total = path.stat().st_size + (1 if fault == "long" else 0)
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{total}", "ETag": '"part"'}
        if fault == "gzip":
            headers["Content-Encoding"] = "gzip"
        given = len(body) // 2 if fault == "cut" else len(body)
        self.state.ranges.append((path.name, start, start + given))
        self._send(206, headers, bytes(body), given=given)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"")

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, given: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:given])
        if given is not None and given < len(body):
            self.close_connection = True


@contextmanager
def only_hub(
    folder: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """Serve `folder` as `org/tiny`, the one hub there is, to an empty folder of models."""
    monkeypatch.setenv("PLAIT_MODELS", str(models_dir))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serve(HubServer("org/tiny", folder)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
