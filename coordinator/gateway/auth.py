"""Who a client is: a bearer key, checked against the key store, for HTTP and gRPC alike."""

from typing import Final

from coordinator.ports import ApiKey, KeyStore
from plait.errors import AuthenticationError

SECRET_CHARS_MAX: Final = 512


class Authenticator:
    """Checks `Authorization: Bearer KEY`."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    async def check(self, authorization: str | None) -> ApiKey:
        """The key behind a header. Raises AuthenticationError; the message never holds a key."""
        if not authorization:
            raise AuthenticationError(
                "no API key: send `Authorization: Bearer KEY`", reason="missing_api_key"
            )
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret or len(secret) > SECRET_CHARS_MAX:
            raise AuthenticationError(
                "the Authorization header must read `Bearer KEY`", reason="invalid_api_key"
            )
        key = await self._keys.verify_key(secret)
        if key.is_revoked:
            raise AuthenticationError("this API key was revoked", reason="invalid_api_key")
        return key
