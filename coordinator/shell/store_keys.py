"""Client and operator keys: the secret is shown once, its sha256 is kept."""

import json
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.ports import UNLIMITED, ApiKey, KeyLimits
from coordinator.shell.key_limits import check_limits
from coordinator.shell.store_session import display_name as clean_name
from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import api_keys
from plait.clock import Clock
from plait.crypto.tokens import api_key_id, is_secret, new_api_key, secret_digest
from plait.errors import AuthenticationError, InvalidRequestError
from scheduler.selection.fairness import WEIGHT_MAX, WEIGHT_MIN

CACHED_MAX: Final = 1024
CACHED_MS: Final = 10_000
"""A key revoked through another process is refused here after this long; through this, at once."""


class ApiKeys:
    """A `coordinator.ports.KeyStore`."""

    def __init__(self, engine: AsyncEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._cache: dict[bytes, tuple[int, ApiKey]] = {}

    async def create_key(
        self,
        *,
        display_name: str,
        is_admin: bool,
        weight: float = 1.0,
        limits: KeyLimits = UNLIMITED,
    ) -> tuple[str, ApiKey]:
        """The secret (shown once) and its entry. Raises InvalidRequestError for a long name, a
        weight or limits that are none."""
        check_weight(weight)
        check_limits(limits)
        secret, key_id = new_api_key()
        entry = ApiKey(
            key_id=key_id,
            display_name=clean_name(display_name),
            is_admin=is_admin,
            is_revoked=False,
            created_unix_ms=self._clock.unix_ms(),
            weight=weight,
            limits=limits,
        )
        async with transaction(self._engine) as connection:
            await connection.execute(
                insert(api_keys).values(
                    key_id=key_id,
                    digest=secret_digest(secret),
                    display_name=entry.display_name,
                    is_admin=is_admin,
                    is_revoked=False,
                    created_unix_ms=entry.created_unix_ms,
                    weight=weight,
                    **_columns(limits),
                )
            )
        return secret, entry

    async def verify_key(self, secret: str) -> ApiKey:
        """Raises AuthenticationError (key_unknown, key_revoked, key_expired)."""
        entry = await self._find(secret)
        expires_ms = entry.limits.expires_unix_ms
        if expires_ms is not None and self._clock.unix_ms() >= expires_ms:
            raise AuthenticationError(
                f"the API key {entry.key_id} has expired: ask the network's operator for another",
                reason="key_expired",
            )
        return entry

    async def _find(self, secret: str) -> ApiKey:
        key_id = api_key_id(secret)
        if key_id is None:
            raise _unknown()
        digest, now_ms = secret_digest(secret), self._clock.monotonic_ms()
        cached = self._cache.get(digest)
        if cached is not None and now_ms - cached[0] < CACHED_MS:
            return cached[1]
        async with transaction(self._engine) as connection:
            query = select(api_keys).where(api_keys.c.key_id == key_id)
            row = (await connection.execute(query)).one_or_none()
        if row is None or not is_secret(secret, row.digest):
            raise _unknown()
        if row.is_revoked:
            raise AuthenticationError(f"the API key {key_id} is revoked", reason="key_revoked")
        entry = _entry(row)
        while len(self._cache) >= CACHED_MAX:
            self._cache.pop(next(iter(self._cache)))
        self._cache[digest] = (now_ms, entry)
        return entry

    async def list_keys(self) -> Sequence[ApiKey]:
        """All keys, newest first."""
        async with transaction(self._engine) as connection:
            query = select(api_keys).order_by(api_keys.c.created_unix_ms.desc(), api_keys.c.key_id)
            return [_entry(row) for row in (await connection.execute(query)).all()]

    async def revoke_key(self, key_id: str) -> None:
        """Refuse a key from now on; idempotent. Raises InvalidRequestError("not_found")."""
        await self._change(key_id, is_revoked=True)

    async def weigh_key(self, key_id: str, weight: float) -> None:
        """Give a key another weight. Raises InvalidRequestError, also ("not_found")."""
        check_weight(weight)
        await self._change(key_id, weight=weight)

    async def limit_key(self, key_id: str, limits: KeyLimits) -> None:
        """Give a key other limits. Raises InvalidRequestError, also ("not_found")."""
        check_limits(limits)
        await self._change(key_id, **_columns(limits))

    async def _change(self, key_id: str, **values: bool | float | str) -> None:
        async with transaction(self._engine) as connection:
            change = update(api_keys).where(api_keys.c.key_id == key_id).values(**values)
            result = await connection.execute(change)
        self._cache.clear()
        if result.rowcount == 0:
            raise InvalidRequestError(
                f"there is no API key {key_id!r}", param="key_id", reason="not_found"
            )


def _entry(row: Row[tuple[object, ...]]) -> ApiKey:
    return ApiKey(
        key_id=row.key_id,
        display_name=row.display_name,
        is_admin=row.is_admin,
        is_revoked=row.is_revoked,
        created_unix_ms=row.created_unix_ms,
        weight=row.weight,
        limits=KeyLimits(
            requests_per_min=row.requests_per_min or None,
            tokens_per_min=row.tokens_per_min or None,
            models=tuple(json.loads(row.models)),
            expires_unix_ms=row.expires_unix_ms or None,
        ),
    )


def _columns(limits: KeyLimits) -> dict[str, int | str]:
    return {
        "requests_per_min": limits.requests_per_min or 0,
        "tokens_per_min": limits.tokens_per_min or 0,
        "models": json.dumps(limits.models),
        "expires_unix_ms": limits.expires_unix_ms or 0,
    }


def check_weight(weight: float) -> None:
    """Raises InvalidRequestError where it is none."""
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:  # nan is neither
        raise InvalidRequestError(
            f"a key's weight is a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}, not {weight:g}",
            param="weight",
        )


def _unknown() -> AuthenticationError:
    return AuthenticationError("the API key is not known to this network", reason="key_unknown")
