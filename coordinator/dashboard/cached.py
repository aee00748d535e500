"""What the store says, asked for at most every so often, however many look."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from plait.clock import Clock

KEPT_MAX: Final = 64
FRESH_MS: Final = 2_000
T = TypeVar("T")


class Cached(Generic[T]):
    """Answers by what was asked; each is good for `fresh_ms`."""

    def __init__(self, clock: Clock, *, fresh_ms: int = FRESH_MS) -> None:
        self._clock = clock
        self._fresh_ms = fresh_ms
        self._kept: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """What is known for `key`, or what `fetch` says; raises what it raises."""
        now_ms = self._clock.monotonic_ms()
        kept = self._kept.get(key)
        if kept is not None and now_ms - kept[0] < self._fresh_ms:
            return kept[1]
        value = await fetch()
        self._kept[key] = (now_ms, value)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return value

    def forget(self) -> None:
        """Something was changed: ask again."""
        self._kept.clear()
