"""A stream between rank 0 and another rank on which both have shown that they know the secret.

Each frame carries a mark (HMAC-SHA256 over its number and bytes, with a key of this connection and
direction), so nobody without the secret can join a group, speak for a rank, or repeat what one has
said. Frames are not encrypted.
"""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
from typing import Final

from plait.errors import AuthenticationError, FrameError, UnavailableError

GREETING: Final = b"plait ranks 1\n"
NONCE_BYTES: Final = 32
MARK_BYTES: Final = 16
FRAME_BYTES_MAX: Final = 4 << 20
HANDSHAKE_S: Final = 10.0
LOST: Final = "rank_lost"

_HEAD: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_LEADER, _RANK = b"rank 0", b"rank n"


class RankChannel:
    """Marked frames over a connected socket. Any thread may send; one receives.

    `lead` and `join` make one. Raises UnavailableError(reason="rank_lost") where the other end is
    gone or silent, FrameError for a frame that it cannot have sent.
    """

    def __init__(self, connection: socket.socket, *, out_key: bytes, in_key: bytes) -> None:
        self._connection = connection
        self._out_key = out_key
        self._in_key = in_key
        self._num_sent = 0
        self._num_received = 0
        self._lock = threading.Lock()

    @classmethod
    def lead(cls, connection: socket.socket, secret: bytes) -> "RankChannel":
        """Rank 0's end. Raises AuthenticationError where the other does not know `secret`."""
        with _hanging_up(connection):
            mine = os.urandom(NONCE_BYTES)
            connection.sendall(GREETING + mine)
            answer = _read(connection, NONCE_BYTES + hashlib.sha256().digest_size)
            theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
            if not hmac.compare_digest(proof, _key(secret, _RANK, mine, theirs)):
                raise AuthenticationError("a rank that wanted to join does not have the secret")
            connection.sendall(_key(secret, _LEADER, mine, theirs))
            return cls(
                connection,
                out_key=_key(secret, b"from rank 0", mine, theirs),
                in_key=_key(secret, b"from rank n", mine, theirs),
            )

    @classmethod
    def join(cls, connection: socket.socket, secret: bytes) -> "RankChannel":
        """Another rank's end. Raises AuthenticationError where rank 0 does not know `secret`, or
        is none."""
        with _hanging_up(connection):
            greeting = _read(connection, len(GREETING))
            if greeting != GREETING:
                raise AuthenticationError("what answers there leads no tensor-parallel group")
            theirs = _read(connection, NONCE_BYTES)
            mine = os.urandom(NONCE_BYTES)
            connection.sendall(mine + _key(secret, _RANK, theirs, mine))
            proof = _read(connection, hashlib.sha256().digest_size)
            if not hmac.compare_digest(proof, _key(secret, _LEADER, theirs, mine)):
                raise AuthenticationError("the node there has another secret")
            return cls(
                connection,
                out_key=_key(secret, b"from rank n", theirs, mine),
                in_key=_key(secret, b"from rank 0", theirs, mine),
            )

    def send(self, payload: bytes) -> None:
        """Send one frame, at most FRAME_BYTES_MAX long."""
        assert len(payload) <= FRAME_BYTES_MAX, len(payload)
        with self._lock:
            mark = _mark(self._out_key, self._num_sent, payload)
            self._num_sent += 1
            try:
                self._connection.sendall(_HEAD.pack(len(payload)) + mark + payload)
            except OSError as error:
                raise _lost(error) from error

    def receive(self, timeout_s: float) -> bytes:
        """The next frame."""
        try:
            self._connection.settimeout(timeout_s)
            (size,) = _HEAD.unpack(_read(self._connection, _HEAD.size))
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes between ranks", reason="rank_frame")
            body = _read(self._connection, MARK_BYTES + size)
        except OSError as error:
            raise _lost(error) from error
        mark, payload = body[:MARK_BYTES], body[MARK_BYTES:]
        if not hmac.compare_digest(mark, _mark(self._in_key, self._num_received, payload)):
            raise FrameError("a frame between ranks carries a wrong mark", reason="rank_frame")
        self._num_received += 1
        return payload

    def close(self) -> None:
        """Idempotent; wakes who receives."""
        _hang_up(self._connection)


class _hanging_up:  # noqa: N801 - reads as a function does
    """Closes the connection where the block fails, and gives a handshake its deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.settimeout(HANDSHAKE_S)
        if self._connection.family in (socket.AF_INET, socket.AF_INET6):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        _hang_up(self._connection)
        if isinstance(error, OSError):
            raise _lost(error) from error


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _lost(error: OSError) -> UnavailableError:
    what = "was not heard in time" if isinstance(error, TimeoutError) else "is gone"
    return UnavailableError(f"the other end {what}", reason=LOST)


def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes. Raises OSError."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]
    return bytes(buffer)


def _key(secret: bytes, use: bytes, leaders_nonce: bytes, ranks_nonce: bytes) -> bytes:
    text = b"|".join((GREETING, use, leaders_nonce, ranks_nonce))
    return hmac.digest(secret, text, "sha256")


def _mark(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + payload, "sha256")[:MARK_BYTES]
