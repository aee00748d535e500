"""Sequences of the draft model: what it has read, what it guesses, and what it runs next. Plain
bookkeeping: no tensor, no thread."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from node.core.effects import Draft
from node.core.events import Drafted
from node.engine.blocks import BlockLedger, Run, blocks_of
from plait.prefixes import BLOCK_TOKENS
from plait.types import RequestId

GROUP_MAX: Final = 8
"""Sequences that guess in one step."""

CHUNK_TOKENS: Final = 64
"""Tokens that are read in one step: so long may a row wait for others' prompts."""

SEQUENCES_MAX: Final = 64


@dataclass(slots=True, eq=False)
class Guessing:
    """A request's sequence. The first `num_run` of `ids + guesses` have their KV in `runs`. So many
    guesses as are `wanted` are to be told, 0 for none; up to `reach` may be made ahead of that."""

    order: Draft
    ids: list[int]
    guesses: list[int]
    num_run: int = 0
    wanted: int = 0
    reach: int = 0
    num_steps: int = 0
    steps_ms: float = 0.0
    runs: tuple[Run, ...] = ()

    @property
    def key(self) -> RequestId:
        return self.order.request_id

    def goes_on(self, order: Draft) -> None:
        """Tokens came: guesses that they are stay, with their KV; so do those behind them."""
        came, old = order.token_ids, len(self.ids)
        right = 0
        while right < min(len(came), len(self.guesses)) and came[right] == self.guesses[right]:
            right += 1
        self.guesses = self.guesses[right:] if right == len(came) else []
        self.ids.extend(came)
        if right < len(came):
            self.num_run = min(self.num_run, old + right)
        self.order = order
        self.wanted = order.count
        self.reach = 2 * order.count + 1 if order.is_waited else order.count
        self.num_steps, self.steps_ms = 0, 0.0

    def rows(self) -> tuple[list[int], bool]:
        """The next tokens to be run, and whether the row of the last one gives a guess."""
        first = self.num_run
        rows = self.ids[first:] + self.guesses[max(0, first - len(self.ids)) :]
        return rows[:CHUNK_TOKENS], len(rows) <= CHUNK_TOKENS

    @property
    def is_full(self) -> bool:
        """Whether the sequence may not become longer."""
        return len(self.ids) + len(self.guesses) >= self.order.kv_tokens

    @property
    def is_wanted(self) -> bool:
        """Whether somebody asks for more guesses than there are."""
        return self.wanted > len(self.guesses) and not self.is_full

    @property
    def is_ahead(self) -> bool:
        """Whether there is nothing to be done but guesses that may be asked for next."""
        return self.wanted == 0 and len(self.guesses) < self.reach and not self.is_full


class DraftBook:
    """All sequences, and the blocks of the draft model's cache."""

    def __init__(self, num_slots: int, sequence_tokens_max: int) -> None:
        self._ledger = BlockLedger(num_slots // BLOCK_TOKENS)
        self._sequence_tokens_max = sequence_tokens_max
        self._sequences: dict[RequestId, Guessing] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def blocks_used(self) -> int:
        return self._ledger.num_referenced

    def take(self, order: Draft) -> list[Drafted]:
        """Take an order in; its answer where that is known now: nothing can be guessed for it, or
        its guesses have been made ahead."""
        found = self._sequences.get(order.request_id)
        if found is not None and found.order.epoch > order.epoch:
            return [nothing(order)]
        is_new = found is None or found.order.epoch < order.epoch
        if is_new:
            self.close(order.request_id, order.epoch)
            is_room = len(self._sequences) < SEQUENCES_MAX
            if order.start or not is_room or len(order.token_ids) >= self._sequence_tokens_max:
                return [nothing(order)]
            found = Guessing(order, [], [])
            self._sequences[order.request_id] = found
            self._ledger.open(order.request_id, (), blocks_of(order.kv_tokens))
        assert found is not None, "it was there, or was made"
        if order.start != len(found.ids):
            self.close(order.request_id, order.epoch)
            return [nothing(order)]
        found.goes_on(order)
        return self.answers([found])

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Give the blocks of this epoch and older ones back. Idempotent."""
        found = self._sequences.get(request_id)
        if found is not None and found.order.epoch <= epoch:
            del self._sequences[request_id]
            self._ledger.release(request_id)

    def next_step(self) -> list[Guessing]:
        """Who goes into the next step: those that rows wait for, side by side; else one that reads;
        else one that guesses ahead."""
        waited = [s for s in self._sequences.values() if s.is_wanted and s.order.is_waited]
        if waited:
            return waited[:GROUP_MAX]
        others = [s for s in self._sequences.values() if s.is_wanted]
        others = others or [s for s in self._sequences.values() if s.is_ahead]
        return others[:1]

    def make_room(self, sequence: Guessing, num_tokens: int) -> bool:
        """Slots for the first tokens. False where there are none: the sequence is closed."""
        is_short = num_tokens <= self._sequence_tokens_max
        if is_short and self._ledger.grow(sequence.key, blocks_of(num_tokens)):
            sequence.runs = self._ledger.runs(sequence.key)
            return True
        self.close(sequence.key, sequence.order.epoch)
        return False

    def ran(self, sequence: Guessing, num_rows: int, guess: int | None, step_ms: float) -> None:
        """A step has run the sequence's next rows; `guess` comes behind them."""
        sequence.num_run += num_rows
        if guess is not None:
            sequence.guesses.append(guess)
            sequence.num_steps += 1
            sequence.steps_ms += step_ms

    def answers(self, stepped: Iterable[Guessing]) -> list[Drafted]:
        """What is to be told now; who is told goes behind the others."""
        told: list[Drafted] = []
        for sequence in stepped:
            is_gone = self._sequences.get(sequence.key) is not sequence
            if is_gone or sequence.wanted == 0 or sequence.is_wanted:
                continue
            told.append(_answer(sequence))
            sequence.wanted = 0
            self._sequences[sequence.key] = self._sequences.pop(sequence.key)
        return told

    def check(self) -> None:
        """Raises AssertionError where the blocks' books do not add up."""
        self._ledger.check()
        assert self._sequences or self.blocks_used == 0, "blocks are in use by nobody"


def nothing(order: Draft) -> Drafted:
    """The answer that there is none."""
    return Drafted(order.request_id, order.epoch, ())


def _answer(sequence: Guessing) -> Drafted:
    guesses: Sequence[int] = sequence.guesses[: sequence.wanted]
    step_ms = sequence.steps_ms / max(1, sequence.num_steps)
    return Drafted(sequence.key, sequence.order.epoch, tuple(guesses), step_ms)
