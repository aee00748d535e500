"""Which blocks of the KV cache belong to whom. Plain bookkeeping: no tensor, no thread.

A block is BLOCK_TOKENS adjacent slots. It is free, or it stands in the tables of one or more
sequences, or nobody uses it but its contents have a name and may be used again: then it is cached,
until its room is needed. A table is kept as runs of adjacent blocks, since attention over one run
is a view, and over many a copy.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from node.engine.gaps import Gaps
from plait.prefixes import BLOCK_TOKENS

Run = tuple[int, int]
"""First slot and number of slots."""


def blocks_of(num_tokens: int) -> int:
    """Blocks that so many tokens need."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockLedger:
    """All blocks of a cache. What is cached counts as room: it goes when room is needed, the least
    recently used first, the end of a prefix before its beginning.

    At every moment free + cached + referenced = all.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._gaps = Gaps(num_blocks)
        self._refs: dict[int, int] = {}
        self._names: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._tables: dict[Hashable, list[int]] = {}
        self._reach: dict[Hashable, int] = {}

    @property
    def num_free(self) -> int:
        return self._gaps.num_free

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_referenced(self) -> int:
        """Blocks in at least one table."""
        return len(self._refs)

    @property
    def num_available(self) -> int:
        """Blocks that a sequence can be given now."""
        return self._gaps.num_free + len(self._cached)

    def num_held(self, key: Hashable) -> int:
        """Blocks in a table; 0 where there is none."""
        return len(self._tables.get(key, ()))

    def match(self, names: Sequence[bytes]) -> int:
        """How many of the names, from the first on, have their contents here."""
        for count, name in enumerate(names):
            if name not in self._named:
                return count
        return len(names)

    def open(self, key: Hashable, names: Sequence[bytes], num_blocks: int) -> None:
        """Begin a table with the blocks of these names, all of them here; `num_blocks` it may have
        in the end, which is a wish for room behind it, no promise."""
        assert key not in self._tables, f"{key!r} has a table already"
        shared = [self._named[name] for name in names]
        for block in shared:
            self._refs[block] = self._refs.get(block, 0) + 1
            self._cached.pop(block, None)
        self._tables[key] = shared
        self._reach[key] = num_blocks

    def grow(self, key: Hashable, num_blocks: int) -> bool:
        """Bring a table to `num_blocks`. False, and nothing changes, where there is no room."""
        table = self._tables[key]
        missing = num_blocks - len(table)
        if missing <= 0:
            return True
        if missing > self.num_available:
            return False
        while self._gaps.num_free < missing:
            self._evict_one()
        after = table[-1] + 1 if table else None
        wish = max(missing, self._reach[key] - len(table))
        for block in self._gaps.take(missing, after=after, wish=wish, others=self._claims(key)):
            self._refs[block] = 1
            table.append(block)
        return True

    def seal(self, key: Hashable, index: int, name: bytes) -> None:
        """The table's block at `index` is full of what `name` stands for. Where such a block is
        here already, that one stays the one to be found."""
        block = self._tables[key][index]
        if name not in self._named and block not in self._names:
            self._named[name] = block
            self._names[block] = name

    def cut(self, key: Hashable, num_blocks: int) -> list[int]:
        """Take a table's blocks from `num_blocks` on out of it. They stay referenced until they are
        handed to `let_go`."""
        table = self._tables[key]
        gone = table[num_blocks:]
        del table[num_blocks:]
        return gone

    def close(self, key: Hashable) -> list[int]:
        """Take a table away; its blocks are to be handed to `let_go`. Empty for an unknown key."""
        self._reach.pop(key, None)
        return self._tables.pop(key, [])

    def let_go(self, blocks: Sequence[int]) -> None:
        """One reference less for each of these, in a table's order: named ones become cached, the
        others free."""
        for block in reversed(blocks):  # the end of a prefix is the first to go
            self._refs[block] -= 1
            if self._refs[block] > 0:
                continue
            del self._refs[block]
            if block in self._names:
                self._cached[block] = None
            else:
                self._gaps.put(block)

    def release(self, key: Hashable) -> None:
        """`close` and `let_go` at once."""
        self.let_go(self.close(key))

    def runs(self, key: Hashable) -> tuple[Run, ...]:
        """The table as runs of slots, in the order of positions."""
        return runs_of(self._tables[key])

    def drop_cached(self) -> None:
        """Forget all that nobody uses."""
        while self._cached:
            self._evict_one()

    def check(self) -> None:
        """Raises AssertionError where the books do not add up."""
        total = self.num_free + self.num_cached + self.num_referenced
        assert total == self.num_blocks, f"{total} of {self.num_blocks} blocks are accounted for"
        assert all(block in self._names for block in self._cached), "a cached block has no name"

    def _evict_one(self) -> None:
        block, _ = self._cached.popitem(last=False)
        del self._named[self._names.pop(block)]
        self._gaps.put(block)

    def _claims(self, key: Hashable) -> Iterable[tuple[int, int]]:
        """Where others would like to grow: (first block, end)."""
        for other, table in self._tables.items():
            missing = self._reach[other] - len(table)
            if other != key and table and missing > 0:
                yield table[-1] + 1, table[-1] + 1 + missing


def runs_of(blocks: Sequence[int]) -> tuple[Run, ...]:
    """Runs of adjacent blocks as (first slot, slots)."""
    runs: list[Run] = []
    at = 0
    while at < len(blocks):
        end = at + 1
        while end < len(blocks) and blocks[end] == blocks[end - 1] + 1:
            end += 1
        runs.append((blocks[at] * BLOCK_TOKENS, (end - at) * BLOCK_TOKENS))
        at = end
    return tuple(runs)
