"""The ledger of blocks against a naive twin: whatever comes and goes, the books add up, nobody's
block is given to another, and what is found under a name is what was stored under it."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from node.engine.blocks import BlockLedger, runs_of
from node.engine.gaps import Gaps
from plait.prefixes import BLOCK_TOKENS

NUM_BLOCKS = 12
KEYS = st.integers(0, 5)


@dataclass
class NaiveBlock:
    """`name` of its contents, `users` by key."""

    name: bytes | None = None
    users: set[int] = field(default_factory=set)


class LedgerTwin(RuleBasedStateMachine):
    """Blocks as objects, a search for everything; only which block is given may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = BlockLedger(NUM_BLOCKS)
        self.blocks = [NaiveBlock() for _ in range(NUM_BLOCKS)]
        self.tables: dict[int, list[int]] = {}
        self.order: list[int] = []  # unused named blocks, the oldest first

    def _table(self, key: int) -> list[int]:
        return [
            slot // BLOCK_TOKENS
            for start, length in self.ledger.runs(key)
            for slot in range(start, start + length, BLOCK_TOKENS)
        ]

    def _find(self, name: bytes) -> int | None:
        return next((i for i, block in enumerate(self.blocks) if block.name == name), None)

    @rule(key=KEYS, names=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=3, unique=True))
    def open(self, key: int, names: list[bytes]) -> None:
        if key in self.tables:
            return
        here = [self._find(name) for name in names]
        count = here.index(None) if None in here else len(here)
        assert self.ledger.match(names) == count
        shared = [block for block in here[:count] if block is not None]
        self.ledger.open(key, names[:count], 4)
        self.tables[key] = shared
        for block in shared:
            self.blocks[block].users.add(key)
            if block in self.order:
                self.order.remove(block)

    @rule(key=KEYS, more=st.integers(0, 5))
    def grow(self, key: int, more: int) -> None:
        if key not in self.tables:
            return
        old = self.tables[key]
        room = sum(not block.users for block in self.blocks)
        assert self.ledger.grow(key, len(old) + more) is (more <= room)
        if more > room:
            return
        num_free = sum(not b.users and b.name is None for b in self.blocks)
        for _ in range(more - num_free):
            self.blocks[self.order.pop(0)].name = None
        new = self._table(key)
        assert new[: len(old)] == old and len(new) == len(old) + more
        for block in new[len(old) :]:
            assert not self.blocks[block].users and self.blocks[block].name is None
            self.blocks[block].users.add(key)
        self.tables[key] = new

    @rule(key=KEYS, index=st.integers(0, 5), name=st.sampled_from([b"a", b"b", b"c"]))
    def seal(self, key: int, index: int, name: bytes) -> None:
        if index >= len(self.tables.get(key, ())):
            return
        self.ledger.seal(key, index, name)
        block = self.blocks[self.tables[key][index]]
        if self._find(name) is None and block.name is None:
            block.name = name

    @rule(key=KEYS, kept=st.integers(0, 4))
    def cut(self, key: int, kept: int) -> None:
        if key in self.tables:
            self.ledger.let_go(self.ledger.cut(key, kept))
            self._leave(key, self.tables[key][kept:])
            self.tables[key] = self.tables[key][:kept]

    @rule(key=KEYS)
    def release(self, key: int) -> None:
        self.ledger.release(key)
        self._leave(key, self.tables.pop(key, []))

    @rule()
    def drop_cached(self) -> None:
        self.ledger.drop_cached()
        for block in self.order:
            self.blocks[block].name = None
        self.order.clear()

    def _leave(self, key: int, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.blocks[block].users.discard(key)
            if not self.blocks[block].users and self.blocks[block].name is not None:
                self.order.append(block)

    @invariant()
    def books_agree(self) -> None:
        self.ledger.check()
        assert self.ledger.num_cached == len(self.order)
        assert self.ledger.num_referenced == sum(bool(b.users) for b in self.blocks)
        for key, table in self.tables.items():
            assert self._table(key) == table
            assert self.ledger.num_held(key) == len(table)


LedgerTwin.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLedgerTwin = LedgerTwin.TestCase


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 20), st.booleans(), st.integers(0, 8)),
        max_size=30,
    )
)
def test_gaps_give_each_block_once(steps: list[tuple[int, int, bool, int]]) -> None:
    gaps, free = Gaps(20), set(range(20))
    taken: list[int] = []
    for count, after, is_put, wish in steps:
        if is_put and taken:
            block = taken.pop(after % len(taken))
            gaps.put(block)
            free.add(block)
        elif count <= len(free):
            claims = [(after + 1, after + 4)]
            got = gaps.take(count, after=after, wish=wish, others=claims)
            assert len(got) == count and set(got) <= free and len(set(got)) == count
            if after in free and after > 0 and after - 1 not in free:
                assert got[0] == after
            free -= set(got)
            taken += got
        assert gaps.num_free == len(free)


def test_a_new_table_begins_where_no_other_wants_to_grow() -> None:
    ledger = BlockLedger(20)
    for key in ("a", "b"):
        ledger.open(key, (), 8)
        assert ledger.grow(key, 2)
    for key in ("a", "b"):
        assert ledger.grow(key, 8)
        assert len(ledger.runs(key)) == 1


def test_the_end_of_a_prefix_goes_before_its_beginning() -> None:
    ledger = BlockLedger(4)
    names = [b"1", b"2", b"3"]
    ledger.open("a", (), 3)
    ledger.grow("a", 3)
    for index, name in enumerate(names):
        ledger.seal("a", index, name)
    ledger.release("a")
    ledger.open("b", (), 2)
    assert ledger.grow("b", 2)
    assert ledger.match(names) == 2


def test_a_shared_block_outlives_its_first_user() -> None:
    ledger = BlockLedger(4)
    ledger.open("a", (), 1)
    ledger.grow("a", 1)
    ledger.seal("a", 0, b"1")
    ledger.open("b", (b"1",), 4)
    ledger.release("a")
    assert ledger.num_available == 3
    assert ledger.grow("b", 4) and ledger.num_available == 0


def test_runs_are_slots() -> None:
    assert runs_of([3, 4, 5, 1, 7, 8]) == ((48, 48), (16, 16), (112, 32))
    assert runs_of([]) == ()
