"""Free blocks as gaps, and which of them to use so that tables stay in few runs."""

from collections.abc import Iterable, Iterator


class Gaps:
    """The free ones of blocks 0 .. num_blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks
        self._end_of: dict[int, int] = {}  # by start
        self._start_of: dict[int, int] = {}  # by end
        if num_blocks > 0:
            self._add(0, num_blocks)

    def put(self, block: int) -> None:
        """Give one block back."""
        start, end = block, block + 1
        if block in self._start_of:
            start = self._start_of.pop(block)
            del self._end_of[start]
        if end in self._end_of:
            end = self._end_of.pop(end)
            del self._start_of[end]
        self._add(start, end)
        self.num_free += 1

    def take(
        self, count: int, *, after: int | None, wish: int, others: Iterable[tuple[int, int]]
    ) -> list[int]:
        """`count` blocks, no more than are free: from `after` on, which no free block lies before,
        the rest where `wish` blocks fit best and nobody claims to grow, (first, end) each, or in
        the longest gaps."""
        assert count <= self.num_free, "more blocks are taken than are free"
        taken: list[int] = []
        if after is not None and after in self._end_of:
            taken += self._cut(after, min(count, self._end_of[after] - after))
        if len(taken) < count:
            start, end = self._best(wish - len(taken), others)
            taken += self._cut(start, min(count - len(taken), end - start))
        while len(taken) < count:
            start, end = max(self._end_of.items(), key=_length)
            taken += self._cut(start, min(count - len(taken), end - start))
        return taken

    def _best(self, wish: int, others: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """The smallest piece that holds `wish` blocks and that nobody claims, else the longest."""
        claims = sorted(others)
        pieces = [
            piece for gap in self._end_of.items() for piece in _unclaimed(gap, claims)
        ] or list(self._end_of.items())
        fitting = [piece for piece in pieces if _length(piece) >= wish]
        return min(fitting, key=_length) if fitting else max(pieces, key=_length)

    def _cut(self, start: int, count: int) -> range:
        """Take `count` blocks from `start` on, all within one gap."""
        gap_start = start
        if start not in self._end_of:
            gap_start = max(s for s, e in self._end_of.items() if s < start < e)
        end = self._end_of.pop(gap_start)
        del self._start_of[end]
        if gap_start < start:
            self._add(gap_start, start)
        if start + count < end:
            self._add(start + count, end)
        self.num_free -= count
        return range(start, start + count)

    def _add(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start


def _length(gap: tuple[int, int]) -> int:
    return gap[1] - gap[0]


def _unclaimed(gap: tuple[int, int], claims: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What claims, sorted, leave of a gap."""
    at, end = gap
    for start, claim_end in claims:
        if start > at:
            yield at, min(start, end)
        at = max(at, claim_end)
        if at >= end:
            return
    yield at, end
