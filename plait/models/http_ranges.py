"""Ranges of files over HTTP: retried, resumed where they broke off, and held to one version."""

import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx

from plait.errors import ModelError, WeightsError, plain_cause

NUM_TRIES: Final = 5
_BACKOFF_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0)
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a pinned commit. `content_id` is its ETag: a sha256, or git's blob id."""

    url: str
    label: str
    size_bytes: int
    commit: str
    content_id: str


@cache
def _authorities() -> ssl.SSLContext:
    """Those that hubs are believed by, read once in a process: that takes longer than a request."""
    return httpx.create_ssl_context()


class RangeClient:
    """Streams ranges. One per opened model; `close` it.

    Args:
        token: a bearer token for the hub itself; redirects to other hosts do not get it.
        arrived: hears the bytes of each block; may hold the thread to slow the stream down.
        sleep: waits between tries.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        arrived: Callable[[int], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        jitter: random.Random | None = None,
    ) -> None:
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "plait"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http: httpx.Client | None = None
        self._arrived = arrived
        self._sleep = sleep
        self._jitter = jitter if jitter is not None else random.Random()

    def close(self) -> None:
        """Idempotent; the client opens again when it is used again."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def stream(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Bytes [start, end) in blocks; goes on where a connection broke.

        Raises:
            ModelError: the hub does not know or does not give the file.
            WeightsError: it changed, ranges are not served, or five tries brought nothing.
        """
        at, num_failures = start, 0
        while at < end:
            wait_s: float | None = None
            try:
                for block in self._once(file, at, end):
                    at, num_failures = at + len(block), 0
                    yield block
                if at < end:
                    raise httpx.RemoteProtocolError("the connection ended early")
            except _RetryLater as later:
                wait_s, cause = later.wait_s, str(later)
            except httpx.TransportError as error:
                cause = plain_cause(error)
            else:
                return
            num_failures += 1
            if num_failures >= NUM_TRIES:
                raise WeightsError(
                    f"{file.label} could not be fetched: {cause}; what came is kept, try again",
                    reason="weights_unavailable",
                )
            self._sleep(self._back_off_s(num_failures) if wait_s is None else wait_s)

    def _back_off_s(self, num_failures: int) -> float:
        longest = min(_BACKOFF_S * 2.0**num_failures, _BACKOFF_MAX_S)
        return longest * self._jitter.uniform(0.5, 1.0)

    def _client(self) -> httpx.Client:
        if self._http is None:
            self._http = httpx.Client(
                headers=self._headers,
                timeout=_TIMEOUT,
                follow_redirects=True,
                verify=_authorities(),
            )
        return self._http

    def _once(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        with self._client().stream("GET", file.url, headers=headers) as response:
            _check_status(file, response)
            _check_version(file, response)
            _check_range(file, response, start, end)
            left = end - start
            for block in response.iter_raw():  # as it arrives: nothing is lost when it breaks off
                if len(block) > left:
                    raise WeightsError(f"{file.label}: the server sent more than it was asked for")
                left -= len(block)
                self._arrived(len(block))
                yield block


class _RetryLater(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, message: str, wait_s: float | None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def _check_status(file: RemoteFile, response: httpx.Response) -> None:
    code = response.status_code
    if code in (200, 206):
        return
    if code in _RETRIED:
        asked = response.headers.get("retry-after", "")
        wait_s = min(float(asked), _BACKOFF_MAX_S) if asked.isdigit() else None
        raise _RetryLater(f"the server answers {code}", wait_s)
    if code in (401, 403):
        raise ModelError(
            f"the hub does not give {file.label} ({code}): it is gated or private; accept its "
            "terms on the hub and set HF_TOKEN",
            reason="model_forbidden",
        )
    if code == 404:
        raise ModelError(f"the hub does not have {file.label}")
    raise WeightsError(
        f"{file.label} could not be fetched: the server answers {code}",
        reason="weights_unavailable",
    )


def _check_version(file: RemoteFile, response: httpx.Response) -> None:
    """Every answer on the way that names a commit or a content must name the pinned one."""
    for answer in (*response.history, response):
        commit = answer.headers.get("x-repo-commit", file.commit)
        linked = answer.headers.get("x-linked-etag")
        if commit != file.commit or (linked and _plain_etag(linked) != file.content_id):
            raise WeightsError(
                f"{file.label} has changed on the hub since its version was pinned",
                reason="weights_mismatch",
            )


def _check_range(file: RemoteFile, response: httpx.Response, start: int, end: int) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise WeightsError(
            f"{file.label}: the server compresses ranges, which was not asked for",
            reason="weights_unavailable",
        )
    if response.status_code == 200:
        if start == 0 and end == file.size_bytes:
            return
        raise WeightsError(
            f"{file.label}: the server does not serve ranges; pull the whole model first",
            reason="weights_unavailable",
        )
    served = response.headers.get("content-range", "")
    if served != f"bytes {start}-{end - 1}/{file.size_bytes}":
        raise WeightsError(
            f"{file.label}: the server sent {served or 'no range'}, not bytes {start}-{end - 1} of "
            f"{file.size_bytes}",
            reason="weights_mismatch",
        )


def _plain_etag(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
