"""Virtual time: actions in order of (when, counter)."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Clockwork:
    """One thread, no sleeping."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._count = 0

    def after(self, delay_ms: float, action: Action) -> None:
        """Run `action` that much later."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ms + max(0, int(delay_ms)), self._count, action))

    def run(self, until_ms: int) -> None:
        """Everything that is due until then."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, action = pop(heap)
            action()
        self.now_ms = until_ms
