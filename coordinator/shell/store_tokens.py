"""Enrolment tokens: each lets one node in, once."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from coordinator.ports import EnrolmentToken
from coordinator.shell.store_nodes import register
from coordinator.shell.store_session import display_name as clean_name
from coordinator.shell.store_session import transaction
from coordinator.shell.store_tables import enrolment_tokens
from plait.clock import Clock
from plait.crypto.tokens import is_secret, new_join_token, secret_digest
from plait.errors import AuthenticationError, InvalidRequestError
from plait.types import NodeId

DEFAULT_VALID_S: Final = 24 * 3600
VALID_S_MAX: Final = 366 * 24 * 3600


class EnrolmentTokens:
    """A `coordinator.ports.TokenStore`, and what the enrolment service asks of it."""

    def __init__(
        self, engine: AsyncEngine, clock: Clock, *, ca_der: bytes, address: str = ""
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._ca_der = ca_der
        self._address = address

    async def create_token(self, *, display_name: str, valid_s: int) -> tuple[str, EnrolmentToken]:
        """The token string to hand to a volunteer (shown once) and its entry.

        `valid_s` 0 means one day. Raises InvalidRequestError: negative, or above a year.
        """
        valid_s = valid_s or DEFAULT_VALID_S
        if not 0 < valid_s <= VALID_S_MAX:
            raise InvalidRequestError(
                f"a token is valid for 1 to {VALID_S_MAX} seconds, not {valid_s}", param="valid_s"
            )
        token = new_join_token(ca_der=self._ca_der, address=self._address)
        now_ms = self._clock.unix_ms()
        entry = EnrolmentToken(
            token_id=token.token_id,
            display_name=clean_name(display_name),
            state="unused",
            expires_unix_ms=now_ms + valid_s * 1000,
            node_id=None,
        )
        async with transaction(self._engine) as connection:
            await connection.execute(
                insert(enrolment_tokens).values(
                    token_id=token.token_id,
                    digest=secret_digest(token.secret),
                    display_name=entry.display_name,
                    created_unix_ms=now_ms,
                    expires_unix_ms=entry.expires_unix_ms,
                    is_revoked=False,
                )
            )
        return token.encode(), entry

    async def list_tokens(self) -> Sequence[EnrolmentToken]:
        """All tokens, newest first."""
        now_ms = self._clock.unix_ms()
        columns = enrolment_tokens.c
        async with transaction(self._engine) as connection:
            query = select(enrolment_tokens).order_by(
                columns.created_unix_ms.desc(), columns.token_id
            )
            return [_entry(row, now_ms) for row in (await connection.execute(query)).all()]

    async def revoke_token(self, token_id: str) -> None:
        """Refuse a token from now on; idempotent. A node that used it stays enrolled.

        Raises InvalidRequestError(reason="not_found").
        """
        columns = enrolment_tokens.c
        async with transaction(self._engine) as connection:
            result = await connection.execute(
                update(enrolment_tokens).where(columns.token_id == token_id).values(is_revoked=True)
            )
        if result.rowcount == 0:
            raise InvalidRequestError(
                f"there is no enrolment token {token_id!r}", param="token_id", reason="not_found"
            )

    async def admit(
        self,
        *,
        token_id: str,
        secret: str,
        node_id: NodeId,
        identity_key: bytes,
        display_name: str,
    ) -> None:
        """Use the token for this node and register the node, both or neither.

        Raises AuthenticationError: token_unknown, token_used, token_expired, token_revoked,
        node_banned, identity_conflict.
        """
        now_ms = self._clock.unix_ms()
        async with transaction(self._engine) as connection:
            await self._check(connection, token_id, secret, now_ms)
            columns = enrolment_tokens.c
            result = await connection.execute(
                update(enrolment_tokens)
                .where(
                    columns.token_id == token_id,
                    columns.used_unix_ms.is_(None),
                    columns.is_revoked.is_(False),
                    columns.expires_unix_ms > now_ms,
                )
                .values(used_unix_ms=now_ms, node_id=node_id)
            )
            if result.rowcount != 1:
                # Somebody was quicker between the look and the use: say what it is now.
                await self._check(connection, token_id, secret, now_ms)
                raise _refused("token_used", "was used before")
            await register(
                connection,
                node_id=node_id,
                identity_key=identity_key,
                display_name=clean_name(display_name),
                now_ms=now_ms,
            )

    async def check(self, token_id: str, secret: str) -> None:
        """Whether the token would let a node in; it is not used. Raises AuthenticationError as
        `admit` does."""
        async with transaction(self._engine) as connection:
            await self._check(connection, token_id, secret, self._clock.unix_ms())

    async def _check(
        self, connection: AsyncConnection, token_id: str, secret: str, now_ms: int
    ) -> None:
        query = select(enrolment_tokens).where(enrolment_tokens.c.token_id == token_id)
        row = (await connection.execute(query)).one_or_none()
        if row is None or not is_secret(secret, row.digest):
            raise _refused("token_unknown", "is not known to this network")
        state = _state(row, now_ms)
        if state == "used":
            raise _refused("token_used", f"was used before, by node {row.node_id}")
        if state == "revoked":
            raise _refused("token_revoked", "was revoked by the operator")
        if state == "expired":
            late_s = (now_ms - row.expires_unix_ms) // 1000
            raise _refused("token_expired", f"expired {late_s} s ago")


def _state(row: Row[tuple[object, ...]], now_ms: int) -> str:
    if row.used_unix_ms is not None:
        return "used"
    if row.is_revoked:
        return "revoked"
    return "expired" if row.expires_unix_ms <= now_ms else "unused"


def _entry(row: Row[tuple[object, ...]], now_ms: int) -> EnrolmentToken:
    return EnrolmentToken(
        token_id=row.token_id,
        display_name=row.display_name,
        state=_state(row, now_ms),
        expires_unix_ms=row.expires_unix_ms,
        node_id=row.node_id,
    )


def _refused(reason: str, what: str) -> AuthenticationError:
    return AuthenticationError(
        f"the enrolment token {what}: ask the operator for a new one (`plait token create`)",
        reason=reason,
    )
