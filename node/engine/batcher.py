"""What is open, what waits, and what goes into the next step. Plain bookkeeping: no thread, no
tensor; the host holds its lock around every call."""

import itertools
from collections.abc import Iterable, Iterator

from node.engine.sampler import SequenceSampler
from node.engine.sequence import Sequence, StepGroup, StepItem
from node.engine.tables import Tables
from node.engine.work_check import check_opened, check_work
from node.ports import SequenceOpen, StageWork
from plait.errors import FrameError, OverloadedError, UnavailableError
from plait.prefixes import BLOCK_TOKENS
from plait.types import HeldSpan, ModelSpec, RequestId


class Batcher:
    """Admits sequences against the KV cache and works against a bounded queue.

    A step takes one work of a sequence. Decodes always go along: they wait for nobody's prompt.
    Prompts share what is left of the step's rows, in the order in which they came, the last one cut
    to what is left; the oldest is always taken, so that nothing starves.

    A sequence gets blocks of the cache as it grows. Where there are none, the most junior open
    sequence gives its own back and is to be started anew (`preempted`); who is itself the most
    junior waits. So the most senior one always goes on, and everybody ends.
    """

    def __init__(
        self, *, step_tokens_max: int, queue_tokens_max: int, companions_max: int = 8
    ) -> None:
        self._companions_max = companions_max
        self._step_tokens_max = step_tokens_max
        self._queue_tokens_max = queue_tokens_max
        self._spec: ModelSpec | None = None
        self._held: HeldSpan | None = None
        self._tables = Tables(0)
        self._sequences: dict[RequestId, Sequence] = {}
        self._ready: dict[Sequence, None] = {}
        self._set_aside: set[StageWork] = set()
        self._preempted: list[Sequence] = []
        self._order = itertools.count()
        self.queue_tokens = 0

    @property
    def held(self) -> HeldSpan | None:
        return self._held

    @property
    def kv_tokens_used(self) -> int:
        """Slots in tables of open sequences."""
        return self._tables.tokens_used

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def is_decoding(self) -> bool:
        """Whether a sequence is open whose tokens somebody waits for, one by one."""
        return any(sequence.has_decoded for sequence in self._sequences.values())

    @property
    def is_decode_ready(self) -> bool:
        """Whether one of them has its next row here."""
        return any(sequence.is_at_decode for sequence in self._takable())

    @property
    def has_work(self) -> bool:
        """Whether the next step would have anything to do."""
        return any(True for _ in self._takable())

    def expects_more(self) -> bool:
        """Whether an open sequence has no work here yet, so that a step now would miss it."""
        return len(self._ready) < len(self._sequences)

    def expects_companions(self) -> bool:
        """Whether a sequence that shared the last step of one that is ready is not ready yet.

        Groups above `companions_max` are let go: there a step's time grows with its rows, and
        several groups keep several stages busy.
        """
        groups = (sequence.group for sequence in self._ready)
        return any(
            group is not None and group.num_ready < group.num_open <= self._companions_max
            for group in groups
        )

    def hold(self, spec: ModelSpec, held: HeldSpan) -> None:
        """Admit requests for a span that is now loaded."""
        self._spec, self._held = spec, held
        self._tables = Tables(held.kv_tokens_max)

    def drop(self) -> list[StageWork]:
        """Close everything and hold nothing; returns the works that nobody will run now."""
        waiting = [work for sequence in self._ready for work in sequence.waiting]
        for sequence in self._sequences.values():
            sequence.is_open = False
        self._spec, self._held = None, None
        self._tables = Tables(0)
        self._sequences.clear()
        self._ready.clear()
        self._set_aside.clear()
        self._preempted.clear()
        self.queue_tokens = 0
        return waiting

    def open(self, opened: SequenceOpen) -> int:
        """Admit a sequence and close an older epoch of its request; returns how many tokens of its
        prompt are in the cache and need not run.

        Raises UnavailableError where its span is not held, OverloadedError(reason="kv_full") where
        it could never have all its slots, FrameError for what no request may ask.
        """
        spec, held = self._spec, self._held
        if spec is None or held is None or not held.span.contains(opened.span):
            holds = "nothing" if held is None else f"layers {held.span}"
            raise UnavailableError(
                f"layers {opened.span} were asked of a node that holds {holds}",
                reason="span_not_held",
            )
        check_opened(opened, spec)
        num_slots = self._tables.ledger.num_blocks * BLOCK_TOKENS
        if opened.kv_tokens > num_slots:
            raise OverloadedError(
                f"the KV cache has {num_slots} slots, {opened.kv_tokens} are needed",
                reason="kv_full",
            )
        older = self._sequences.get(opened.request_id)
        if older is not None:
            if older.opened.epoch >= opened.epoch:
                raise FrameError(
                    f"epoch {opened.epoch} of {opened.request_id} is open or over",
                    reason="epoch_stale",
                )
            self._forget(older)
        sequence = Sequence(opened, order=next(self._order))
        self._sequences[opened.request_id] = sequence
        return self._tables.open(sequence)

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free `epoch` and older ones; nothing happens where none is open."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.opened.epoch <= epoch:
            self._forget(sequence)

    def rewind(self, request_id: RequestId, epoch: int, position: int) -> None:
        """Forget what was submitted from `position` on, the first one of a block: it comes again.
        Nothing happens where the sequence is not open."""
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.opened.epoch != epoch:
            return
        self._unqueue(sequence)
        sequence.num_rewinds += 1
        sequence.next_position = min(sequence.next_position, position)
        sequence.num_drafted = 0
        self._tables.rewind(sequence, position)
        self._room_came()

    def submit(self, work: StageWork) -> bool:
        """Queue a work. False where its sequence is not open (a late frame: ignored).

        Raises FrameError for a wrong position, shape or token, and
        OverloadedError(reason="queue_full").
        """
        sequence = self._sequences.get(work.request_id)
        if sequence is None or sequence.opened.epoch != work.epoch:
            return False
        assert self._spec is not None
        check_work(work, sequence, self._spec)
        if self.queue_tokens + work.num_tokens > self._queue_tokens_max and self._ready:
            raise OverloadedError(
                f"{self.queue_tokens} tokens wait for a step already", reason="queue_full"
            )
        sequence.next_position = work.position + work.num_tokens
        sequence.num_drafted = len(work.drafted_ids)
        if work.block_name is not None:
            index = (sequence.next_position - sequence.num_drafted) // BLOCK_TOKENS - 1
            sequence.names.setdefault(index, sequence.opened.cache_path + work.block_name)
        sequence.waiting.append(work)
        self.queue_tokens += work.num_tokens
        if sequence not in self._ready:
            self._ready[sequence] = None
            if sequence.group is not None:
                sequence.group.num_ready += 1
        return True

    def sampler_of(self, work: StageWork) -> SequenceSampler | None:
        """Of the open sequence that a work belongs to; None but on a last stage."""
        sequence = self._sequences.get(work.request_id)
        return None if sequence is None else sequence.sampler

    def set_aside(self, work: StageWork) -> None:
        """Keep a queued work, and so its sequence's later ones, out of steps until `resume`."""
        self._set_aside.add(work)

    def resume(self, work: StageWork) -> None:
        """Let a work run that was set aside; nothing happens where it is gone."""
        self._set_aside.discard(work)

    def abandon(self, work: StageWork) -> list[StageWork]:
        """Take a queued work and its sequence's later ones out; returns them. Empty where it is
        gone. The sequence stays open until it is closed."""
        sequence = next((s for s in self._ready if work in s.waiting), None)
        return [] if sequence is None else self._unqueue(sequence)

    def take(
        self, prompt_rows_max: int | None = None, *, decodes_max: int | None = None
    ) -> list[StepItem]:
        """The works of the next step, prompts cut to so many rows (None: to what suits the
        device) and no more than so many decodes (None: all). Where several threads run steps, each
        calls this for its own.

        Who is preempted for their room is told by `preempted`."""
        rows_left = self._step_tokens_max
        if prompt_rows_max is not None:
            rows_left = min(rows_left, prompt_rows_max)
        candidates = sorted(self._takable(), key=lambda sequence: not sequence.is_at_decode)
        decodes_left = len(candidates) if decodes_max is None else decodes_max
        taken: list[StepItem] = []
        for sequence in candidates:
            is_decode = sequence.is_at_decode
            rows_max = rows_left
            if is_decode:
                rows_max = sequence.waiting[0].num_tokens if decodes_left > 0 else 0
            if rows_max <= 0 or not sequence.is_open:
                continue
            item = self._take_of(sequence, rows_max)
            if item is not None:
                taken.append(item)
                decodes_left -= is_decode
                rows_left -= 0 if is_decode else item.work.num_tokens
        taken = self._still_open(taken)
        self._regroup([item.sequence for item in taken])
        return taken

    def _take_of(self, sequence: Sequence, rows_max: int) -> StepItem | None:
        begin = sequence.waiting[0].position + sequence.num_cut
        rows = rows_max
        if not sequence.is_at_decode:
            rows = min(rows_max, sequence.next_position - begin)
        if not self._make_room(sequence, begin + rows):
            sequence.is_held = True
            return None
        work = sequence.cut(rows, self._set_aside)
        assert work is not None, "a sequence was taken that had nothing to take"
        sequence.is_running = True
        self.queue_tokens -= work.num_tokens
        if not sequence.waiting:
            del self._ready[sequence]
            if sequence.group is not None:
                sequence.group.num_ready -= 1
        return StepItem(sequence, work)

    def _still_open(self, taken: list[StepItem]) -> list[StepItem]:
        """Without those that were preempted by somebody of the same step."""
        gone = [item.sequence for item in taken if not item.sequence.is_open]
        if gone:
            for sequence in gone:
                sequence.is_running = False
            self._tables.stopped_running(gone)
            self._room_came()
        return [item for item in taken if item.sequence.is_open]

    def finished(self, items: list[StepItem], is_done: Iterable[bool]) -> None:
        """A step is over; `is_done` says which of its items were computed."""
        for item, done in zip(items, is_done, strict=True):
            sequence, work = item.sequence, item.work
            sequence.is_running = False
            if done and item.is_wanted:
                sequence.has_decoded = sequence.has_decoded or work.sample
                num_guesses = len(work.drafted_ids)
                self._tables.ran(sequence, work.position + work.num_tokens - num_guesses)
        if self._tables.stopped_running(item.sequence for item in items):
            self._room_came()

    def preempted(self) -> list[Sequence]:
        """Those that were closed for others' sake since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def check(self) -> None:
        """Raises AssertionError where the blocks' books do not add up, or where blocks are in use
        though nothing is open."""
        self._tables.ledger.check()
        if not self._sequences:
            assert self.kv_tokens_used == 0, "blocks are in use, and nothing is open"

    def _takable(self) -> Iterator[Sequence]:
        for sequence in self._ready:
            is_free = not (sequence.is_running or sequence.is_held)
            if is_free and sequence.waiting[0] not in self._set_aside:
                yield sequence

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Room for the sequence's first positions, at the cost of its juniors where need be."""
        while not self._tables.make_room(sequence, num_tokens):
            victim = self._most_junior()
            if victim is None or victim.seniority <= sequence.seniority:
                return False
            self._forget(victim)
            self._preempted.append(victim)
            if victim.is_running:
                return False  # its slots come back when its step is over
        return True

    def _most_junior(self) -> Sequence | None:
        ledger = self._tables.ledger
        holders = (s for s in self._sequences.values() if ledger.num_held(s.key) > 0)
        return max(holders, key=lambda sequence: sequence.seniority, default=None)

    def _room_came(self) -> None:
        for sequence in self._ready:
            sequence.is_held = False

    def _regroup(self, sequences: list[Sequence]) -> None:
        """Those that go into one step leave their old groups and become a new one."""
        if len(sequences) == 1 and (old := sequences[0].group) is not None and old.num_open == 1:
            return  # it goes on alone
        group = StepGroup()
        for sequence in sequences:
            self._leave_group(sequence)
            sequence.group = group
            group.num_open += 1
            if sequence.is_ready:
                group.num_ready += 1

    def _leave_group(self, sequence: Sequence) -> None:
        if sequence.group is not None:
            sequence.group.num_open -= 1
            if sequence.is_ready:
                sequence.group.num_ready -= 1

    def _forget(self, sequence: Sequence) -> None:
        sequence.is_open = False
        self._unqueue(sequence)
        self._leave_group(sequence)
        self._tables.close(sequence)
        del self._sequences[sequence.opened.request_id]
        self._room_came()

    def _unqueue(self, sequence: Sequence) -> list[StageWork]:
        """Take a sequence's works out of the queue; returns them."""
        if not sequence.waiting:
            return []
        removed = list(sequence.waiting)
        self.queue_tokens -= sum(work.num_tokens for work in removed) - sequence.num_cut
        sequence.waiting.clear()
        sequence.num_cut = 0
        sequence.is_held = False
        self._set_aside.difference_update(removed)
        del self._ready[sequence]
        if sequence.group is not None:
            sequence.group.num_ready -= 1
        return removed
