"""What is open, what waits, and what goes into the next step. Plain bookkeeping: no thread, no
tensor; the host holds its lock around every call."""

from collections import deque
from collections.abc import Hashable

from node.engine.kv_cache import KvLedger
from node.engine.sampler import SequenceSampler
from node.engine.sequence import Sequence, StepGroup, StepItem
from node.ports import SequenceOpen, StageWork
from plait.errors import FrameError, OverloadedError, UnavailableError
from plait.types import HeldSpan, ModelSpec, RequestId


class Batcher:
    """Admits sequences against the KV ledger and works against a bounded queue.

    A step takes works in the order they came, one of a sequence. Decodes always go along: they
    wait for nobody's prompt. Prefill rows are limited to `step_tokens_max` a step, which bounds the
    gap between two tokens; the oldest work is always taken, so that nothing starves.
    """

    def __init__(
        self, *, step_tokens_max: int, queue_tokens_max: int, companions_max: int = 8
    ) -> None:
        self._companions_max = companions_max
        self._step_tokens_max = step_tokens_max
        self._queue_tokens_max = queue_tokens_max
        self._spec: ModelSpec | None = None
        self._held: HeldSpan | None = None
        self._ledger = KvLedger(0)
        self._sequences: dict[RequestId, Sequence] = {}
        self._queue: deque[StepItem] = deque()
        self._set_aside: set[StageWork] = set()
        self._closed: list[Hashable] = []
        self._num_ready = 0
        self.queue_tokens = 0

    @property
    def held(self) -> HeldSpan | None:
        return self._held

    @property
    def kv_tokens_reserved(self) -> int:
        return self._ledger.num_reserved

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def has_work(self) -> bool:
        """Whether the next step would have anything to do."""
        if not self._set_aside:
            return bool(self._queue)
        blocked: set[Hashable] = set()
        for item in self._queue:
            if item.work in self._set_aside:
                blocked.add(item.sequence.key)
            elif item.sequence.key not in blocked:
                return True
        return False

    def expects_more(self) -> bool:
        """Whether an open sequence has no work here yet, so that a step now would miss it."""
        return self._num_ready < len(self._sequences)

    def expects_companions(self) -> bool:
        """Whether a sequence that shared the last step of one that is ready is not ready yet.

        Groups above `companions_max` are let go: there a step's time grows with its rows, and
        several groups keep several stages busy.
        """
        groups = (item.sequence.group for item in self._queue)
        return any(
            group is not None and group.num_ready < group.num_open <= self._companions_max
            for group in groups
        )

    def hold(self, spec: ModelSpec, held: HeldSpan) -> None:
        """Admit requests for a span that is now loaded."""
        self._spec, self._held = spec, held
        self._ledger = KvLedger(held.kv_tokens_max)

    def drop(self) -> list[StageWork]:
        """Close everything and hold nothing; returns the works that nobody will run now."""
        waiting = [item.work for item in self._queue]
        for sequence in self._sequences.values():
            sequence.is_open = False
        self._spec, self._held = None, None
        self._ledger = KvLedger(0)
        self._sequences.clear()
        self._queue.clear()
        self._set_aside.clear()
        self._closed.clear()
        self._num_ready = 0
        self.queue_tokens = 0
        return waiting

    def open(self, opened: SequenceOpen) -> None:
        """Admit a sequence and close an older epoch of its request.

        Raises UnavailableError where its span is not held, OverloadedError(reason="kv_full"),
        FrameError for what no request may ask (an old epoch, no slots, more than the context).
        """
        spec, held = self._spec, self._held
        if spec is None or held is None or not held.span.contains(opened.span):
            holds = "nothing" if held is None else f"layers {held.span}"
            raise UnavailableError(
                f"layers {opened.span} were asked of a node that holds {holds}",
                reason="span_not_held",
            )
        if not 0 < opened.kv_tokens <= spec.context_tokens_max:
            raise FrameError(
                f"{opened.kv_tokens} KV slots: the context has {spec.context_tokens_max}",
                reason="kv_tokens_invalid",
            )
        if opened.sampling is not None and not _fit(opened, spec.vocab_size):
            raise FrameError("a penalty or a bias names a token outside the vocabulary")
        older = self._sequences.get(opened.request_id)
        if older is not None:
            if older.opened.epoch >= opened.epoch:
                raise FrameError(
                    f"epoch {opened.epoch} of {opened.request_id} is open or over",
                    reason="epoch_stale",
                )
            self._forget(older)
        sequence = Sequence(opened)
        self._ledger.reserve(sequence.key, opened.kv_tokens)
        self._sequences[opened.request_id] = sequence

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free `epoch` and older ones; nothing happens where none is open."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.opened.epoch <= epoch:
            self._forget(sequence)

    def submit(self, work: StageWork) -> bool:
        """Queue a work. False where its sequence is not open (a late frame: ignored).

        Raises FrameError for a wrong position, shape or token, and
        OverloadedError(reason="queue_full").
        """
        sequence = self._sequences.get(work.request_id)
        if sequence is None or sequence.opened.epoch != work.epoch:
            return False
        assert self._spec is not None
        _check(work, sequence, self._spec)
        if self.queue_tokens + work.num_tokens > self._queue_tokens_max and self._queue:
            raise OverloadedError(
                f"{self.queue_tokens} tokens wait for a step already", reason="queue_full"
            )
        sequence.next_position = work.position + work.num_tokens
        self._queue.append(StepItem(sequence, work))
        self._mark_queued(sequence)
        self.queue_tokens += work.num_tokens
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
        sequence = next((item.sequence for item in self._queue if item.work is work), None)
        return [] if sequence is None else self._unqueue(sequence)

    def take(self) -> tuple[list[Hashable], list[StepItem]]:
        """Keys of sequences that ran and were closed since the last call, and the works of the
        next step."""
        closed, self._closed = self._closed, []
        taken: list[StepItem] = []
        later: deque[StepItem] = deque()
        busy: set[Hashable] = set()
        prefill_tokens = 0
        while self._queue:
            item = self._queue.popleft()
            rows = item.work.num_tokens if item.work.num_tokens > 1 else 0
            fits = not taken or rows == 0 or prefill_tokens + rows <= self._step_tokens_max
            if fits and item.sequence.key not in busy and item.work not in self._set_aside:
                taken.append(item)
                prefill_tokens += rows
            else:
                later.append(item)
            busy.add(item.sequence.key)
        self._queue = later
        self._regroup([item.sequence for item in taken])
        self.queue_tokens -= sum(item.work.num_tokens for item in taken)
        return closed, taken

    def _mark_queued(self, sequence: Sequence) -> None:
        sequence.num_queued += 1
        if sequence.num_queued == 1:
            self._num_ready += 1
            if sequence.group is not None:
                sequence.group.num_ready += 1

    def _regroup(self, sequences: list[Sequence]) -> None:
        """Those that go into one step leave their old groups and become a new one."""
        group = StepGroup()
        for sequence in sequences:
            self._leave_group(sequence)
            sequence.group = group
            sequence.has_run = True
            sequence.num_queued -= 1
            group.num_open += 1
            if sequence.num_queued > 0:
                group.num_ready += 1
            else:
                self._num_ready -= 1

    def _leave_group(self, sequence: Sequence) -> None:
        if sequence.group is not None:
            sequence.group.num_open -= 1
            if sequence.num_queued > 0:
                sequence.group.num_ready -= 1

    def _forget(self, sequence: Sequence) -> None:
        sequence.is_open = False
        self._unqueue(sequence)
        self._leave_group(sequence)
        self._ledger.release(sequence.key)
        del self._sequences[sequence.opened.request_id]
        if sequence.has_run:
            self._closed.append(sequence.key)

    def _unqueue(self, sequence: Sequence) -> list[StageWork]:
        """Take a sequence's works out of the queue; returns them."""
        if sequence.num_queued == 0:
            return []
        self._num_ready -= 1
        if sequence.group is not None:
            sequence.group.num_ready -= 1
        sequence.num_queued = 0
        removed = [item.work for item in self._queue if item.sequence is sequence]
        self._queue = deque(item for item in self._queue if item.sequence is not sequence)
        self._set_aside.difference_update(removed)
        self.queue_tokens -= sum(work.num_tokens for work in removed)
        return removed


def _fit(opened: SequenceOpen, vocab_size: int) -> bool:
    biases = () if opened.sampling is None else opened.sampling.logit_bias
    biased = [token for token, _ in biases]
    return all(
        0 <= token < vocab_size
        for ids in (opened.penalty_prompt_ids, opened.penalty_generated_ids, biased)
        for token in ids
    )


def _check(work: StageWork, sequence: Sequence, spec: ModelSpec) -> None:
    """Everything in a work came from outside. Raises FrameError where it does not fit."""
    opened = sequence.opened
    if work.num_tokens < 1 or work.position != sequence.next_position:
        raise FrameError(
            f"{work.num_tokens} rows at position {work.position} of {work.request_id}: "
            f"position {sequence.next_position} comes next",
            reason="position_invalid",
        )
    if work.position + work.num_tokens > opened.kv_tokens:
        raise FrameError(
            f"{work.request_id} reserved {opened.kv_tokens} KV slots and sends more",
            reason="position_invalid",
        )
    if opened.span.start == 0:
        ids = work.token_ids
        if ids is None or len(ids) != work.num_tokens:
            raise FrameError(
                "a first stage takes one token id for each row", reason="shape_invalid"
            )
        if min(ids) < 0 or max(ids) >= spec.vocab_size:
            raise FrameError(
                f"a token id is outside the vocabulary of {spec.vocab_size}",
                reason="token_invalid",
            )
    else:
        expected = work.num_tokens * spec.hidden_size * work.dtype.num_bytes
        hidden_bytes = 0 if work.hidden is None else memoryview(work.hidden).nbytes
        if work.token_ids is not None or hidden_bytes != expected:
            raise FrameError(
                f"{hidden_bytes} bytes of hidden states, {expected} expected",
                reason="shape_invalid",
            )
    if work.sample and opened.span.end == spec.num_layers and opened.sampling is None:
        raise FrameError("a token was asked of a sequence without sampling parameters")
