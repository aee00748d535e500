"""An event that calls back."""

import asyncio
from collections.abc import Callable


class Bell(asyncio.Event):
    """Rings whoever waits for it, at once."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def set(self) -> None:
        self._ring()
