"""Who is signed in to the dashboard. In memory: a restart signs everybody out.

Cookies and links are random; only their hashes are kept.
"""

import hashlib
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from plait.clock import Clock

SESSION_MS: Final = 12 * 3_600_000
LINK_MS: Final = 15 * 60_000
SESSIONS_MAX: Final = 256
LINKS_MAX: Final = 16
WINDOW_MS: Final = 60_000
FAILURES_PER_ADDRESS: Final = 5
FAILURES_IN_ALL: Final = 60
ADDRESSES_MAX: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """`key_id` is the admin key that signed in; None for a login link."""

    key_id: str | None
    display_name: str
    expires_ms: int


class SessionStore:
    """Sessions and one-time login links, both bounded: the oldest goes first."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._links: OrderedDict[str, int] = OrderedDict()

    def open(self, *, key_id: str | None, display_name: str) -> str:
        """A new session; the cookie's value."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = Session(
            key_id=key_id,
            display_name=display_name,
            expires_ms=self._clock.monotonic_ms() + SESSION_MS,
        )
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """The live session of a cookie."""
        if not cookie or len(cookie) > 128:
            return None
        digest = _digest(cookie)
        session = self._sessions.get(digest)
        if session is not None and session.expires_ms <= self._clock.monotonic_ms():
            del self._sessions[digest]
            return None
        return session

    def close(self, cookie: str | None) -> None:
        """Idempotent."""
        if cookie:
            self._sessions.pop(_digest(cookie), None)

    def close_key(self, key_id: str) -> None:
        """End every session that a key opened."""
        for digest, session in list(self._sessions.items()):
            if session.key_id == key_id:
                del self._sessions[digest]

    def issue_link(self) -> str:
        """A secret that signs in once, within 15 minutes."""
        secret = secrets.token_urlsafe(24)
        self._links[_digest(secret)] = self._clock.monotonic_ms() + LINK_MS
        while len(self._links) > LINKS_MAX:
            self._links.popitem(last=False)
        return secret

    def redeem_link(self, secret: str) -> bool:
        """Whether the link was good; it is not any more."""
        expires_ms = self._links.pop(_digest(secret[:128]), None)
        return expires_ms is not None and expires_ms > self._clock.monotonic_ms()


class LoginLimiter:
    """Counts failed attempts over a minute, per address and in all."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, deque[int]] = OrderedDict()
        self._all: deque[int] = deque(maxlen=FAILURES_IN_ALL)

    def wait_ms(self, address: str) -> int:
        """How long this address must wait before its next attempt; 0: go on."""
        now_ms = self._clock.monotonic_ms()
        own = self._by_address.get(address, deque())
        waits = [
            failures[-limit] + WINDOW_MS - now_ms
            for failures, limit in ((own, FAILURES_PER_ADDRESS), (self._all, FAILURES_IN_ALL))
            if len(failures) >= limit
        ]
        return max([0, *waits])

    def failed(self, address: str) -> None:
        """Count a failure."""
        now_ms = self._clock.monotonic_ms()
        own = self._by_address.setdefault(address, deque(maxlen=FAILURES_PER_ADDRESS))
        own.append(now_ms)
        self._all.append(now_ms)
        self._by_address.move_to_end(address)
        while len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
