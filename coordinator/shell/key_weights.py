"""Tells the core what keys weigh in the queue, whenever the store says something new."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from coordinator.core.events import KeyWeighed
from coordinator.ports import UNLIMITED, ApiKey, Inbox, KeyLimits, KeyStore
from plait.errors import OverloadedError

TOLD_MAX: Final = 4_096


class WeighedKeys:
    """A `coordinator.ports.KeyStore` in front of another. A key's weight reaches the core before
    the first request that it is verified for, through this process or another."""

    def __init__(self, keys: KeyStore, inbox: Inbox) -> None:
        self._keys = keys
        self._inbox = inbox
        self._told: OrderedDict[str, float] = OrderedDict()

    async def create_key(
        self,
        *,
        display_name: str,
        is_admin: bool,
        weight: float = 1.0,
        limits: KeyLimits = UNLIMITED,
    ) -> tuple[str, ApiKey]:
        """As the store does."""
        return await self._keys.create_key(
            display_name=display_name, is_admin=is_admin, weight=weight, limits=limits
        )

    async def verify_key(self, secret: str) -> ApiKey:
        """As the store does; the key's weight is told where it is news."""
        key = await self._keys.verify_key(secret)
        self._tell(key.key_id, key.weight)
        return key

    async def list_keys(self) -> Sequence[ApiKey]:
        """As the store does."""
        return await self._keys.list_keys()

    async def revoke_key(self, key_id: str) -> None:
        """As the store does."""
        await self._keys.revoke_key(key_id)

    async def weigh_key(self, key_id: str, weight: float) -> None:
        """As the store does; what waits in the queue is ordered by it at once."""
        await self._keys.weigh_key(key_id, weight)
        self._tell(key_id, weight)

    async def limit_key(self, key_id: str, limits: KeyLimits) -> None:
        """As the store does."""
        await self._keys.limit_key(key_id, limits)

    def _tell(self, key_id: str, weight: float) -> None:
        if self._told.get(key_id, 1.0) == weight:
            return
        try:
            self._inbox.post(KeyWeighed(key_id=key_id, weight=weight))
        except OverloadedError:
            return  # with the next request
        self._told[key_id] = weight
        self._told.move_to_end(key_id)
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
