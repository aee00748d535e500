"""Sequences and their blocks: what of a prompt is here already, room for the next rows, names for
what was computed, and letting go without pulling slots from under a step."""

from collections.abc import Iterable

from node.engine.blocks import BlockLedger, blocks_of
from node.engine.sequence import Sequence
from plait.prefixes import BLOCK_TOKENS


class Tables:
    """The blocks of all open sequences. The host holds its lock around every call."""

    def __init__(self, num_tokens: int) -> None:
        self.ledger = BlockLedger(num_tokens // BLOCK_TOKENS)
        self._going: dict[Sequence, list[int]] = {}

    @property
    def tokens_used(self) -> int:
        """Slots in tables of open sequences."""
        return self.ledger.num_referenced * BLOCK_TOKENS

    def open(self, sequence: Sequence) -> int:
        """Begin with what is here of its prompt; returns how many tokens that is."""
        opened = sequence.opened
        names = [sequence.names[i] for i in range(min(opened.cached_blocks, len(opened.prefix)))]
        names = names[: self.ledger.match(names)]
        self.ledger.open(sequence.key, names, blocks_of(opened.kv_tokens))
        sequence.num_sealed = len(names)
        sequence.next_position = len(names) * BLOCK_TOKENS
        sequence.runs = self.ledger.runs(sequence.key)
        return sequence.next_position

    def make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for the first `num_tokens` positions. False where there is no room."""
        num_blocks = blocks_of(num_tokens)
        if num_blocks > self.ledger.num_held(sequence.key):
            if not self.ledger.grow(sequence.key, num_blocks):
                return False
            sequence.runs = self.ledger.runs(sequence.key)
        return True

    def ran(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` positions are computed: their whole blocks may be found."""
        for index in range(sequence.num_sealed, num_tokens // BLOCK_TOKENS):
            name = sequence.names.get(index)
            if name is None:
                return
            self.ledger.seal(sequence.key, index, name)
            sequence.num_sealed = index + 1

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Keep the first `num_tokens` positions, whole blocks, only."""
        kept = num_tokens // BLOCK_TOKENS
        self._let_go(sequence, self.ledger.cut(sequence.key, kept))
        sequence.num_sealed = min(sequence.num_sealed, kept)
        sequence.runs = self.ledger.runs(sequence.key)

    def close(self, sequence: Sequence) -> None:
        """Give its blocks back; those with names may be found until their room is needed."""
        self._let_go(sequence, self.ledger.close(sequence.key))

    def stopped_running(self, sequences: Iterable[Sequence]) -> bool:
        """Steps of these are over: what they were to give back is given back now. False where that
        is nothing."""
        is_any = False
        for sequence in sequences:
            blocks = self._going.pop(sequence, None)
            if blocks is not None:
                self.ledger.let_go(blocks)
                is_any = True
        return is_any

    def _let_go(self, sequence: Sequence, blocks: list[int]) -> None:
        """A step that is under way still writes to a running sequence's blocks."""
        if sequence.is_running:
            self._going.setdefault(sequence, []).extend(blocks)
        else:
            self.ledger.let_go(blocks)
