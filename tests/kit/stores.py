"""The one in-memory key store and token store."""

import dataclasses
from collections.abc import Sequence

from coordinator.ports import UNLIMITED, ApiKey, EnrolmentToken, KeyLimits
from plait.errors import AuthenticationError, InvalidRequestError

MADE_UNIX_MS = 1_780_000_000_000
NOW_UNIX_MS = 1_790_000_000_000
LATER_KEY_COLUMNS = ("weight", "requests_per_min", "tokens_per_min", "models", "expires_unix_ms")
"""Of keys, which the first schema did not have."""


class MemoryKeys:
    """Keys by their secret."""

    def __init__(self) -> None:
        self.keys: dict[str, ApiKey] = {}

    def add(
        self,
        secret: str,
        display_name: str,
        *,
        is_admin: bool = False,
        weight: float = 1.0,
        limits: KeyLimits = UNLIMITED,
    ) -> ApiKey:
        """A key whose secret the test chooses."""
        key = ApiKey(
            key_id=f"k{len(self.keys) + 1}",
            display_name=display_name,
            is_admin=is_admin,
            is_revoked=False,
            created_unix_ms=MADE_UNIX_MS,
            weight=weight,
            limits=limits,
        )
        self.keys[secret] = key
        return key

    async def create_key(
        self,
        *,
        display_name: str,
        is_admin: bool,
        weight: float = 1.0,
        limits: KeyLimits = UNLIMITED,
    ) -> tuple[str, ApiKey]:
        secret = f"plait-key-{len(self.keys) + 1}"
        key = self.add(secret, display_name, is_admin=is_admin, weight=weight, limits=limits)
        return secret, key

    async def verify_key(self, secret: str) -> ApiKey:
        key = self.keys.get(secret)
        if key is None or key.is_revoked:
            raise AuthenticationError("this API key is unknown", reason="invalid_api_key")
        return key

    async def list_keys(self) -> Sequence[ApiKey]:
        return list(self.keys.values())

    async def weigh_key(self, key_id: str, weight: float) -> None:
        secret, key = self._find(key_id)
        self.keys[secret] = dataclasses.replace(key, weight=weight)

    async def limit_key(self, key_id: str, limits: KeyLimits) -> None:
        secret, key = self._find(key_id)
        self.keys[secret] = dataclasses.replace(key, limits=limits)

    async def revoke_key(self, key_id: str) -> None:
        secret, key = self._find(key_id)
        self.keys[secret] = dataclasses.replace(key, is_revoked=True)

    def _find(self, key_id: str) -> tuple[str, ApiKey]:
        for secret, key in self.keys.items():
            if key.key_id == key_id:
                return secret, key
        raise InvalidRequestError(f"no key {key_id}", reason="not_found")


class MemoryTokens:
    """Tokens in a list, the newest first."""

    def __init__(self) -> None:
        self.tokens: list[EnrolmentToken] = []

    async def create_token(self, *, display_name: str, valid_s: int) -> tuple[str, EnrolmentToken]:
        token = EnrolmentToken(
            token_id=f"t{len(self.tokens) + 1:04d}",
            display_name=display_name,
            state="unused",
            expires_unix_ms=NOW_UNIX_MS + valid_s * 1_000,
            node_id=None,
        )
        self.tokens.insert(0, token)
        return f"plait-join-{token.token_id}-" + "x" * 64, token

    async def list_tokens(self) -> Sequence[EnrolmentToken]:
        return list(self.tokens)

    async def revoke_token(self, token_id: str) -> None:
        for at, token in enumerate(self.tokens):
            if token.token_id == token_id:
                self.tokens[at] = dataclasses.replace(token, state="revoked")
                return
        raise InvalidRequestError(f"no token {token_id}", reason="not_found")
