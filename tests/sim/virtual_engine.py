"""A stage's engine in virtual time: KV in slots, steps that take a while, sums of integers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from node.core import effects as ef
from node.ports import StageResult
from plait.types import LayerSpan, RequestId, StepTotals
from tests.sim import arithmetic
from tests.sim.clockwork import Clockwork


@dataclass(slots=True)
class Sequence:
    """KV of one epoch of a request; `kept[p]` is what the layers kept of the rows before p."""

    epoch: int
    kv_tokens: int
    span: LayerSpan
    is_last: bool
    kept: list[tuple[int, ...]] = field(default_factory=list)


class VirtualEngine:
    """Runs what is submitted, all waiting rows in one step; tells `sink`."""

    def __init__(
        self,
        clock: Clockwork,
        sink: Callable[[list[StageResult]], None],
        *,
        kv_tokens_max: int,
        row_bytes: int,
        step_ms: Callable[[int], float],
    ) -> None:
        self._clock = clock
        self._sink = sink
        self._row_bytes = row_bytes
        self._step_ms = step_ms
        self._waiting: list[ef.SubmitRows] = []
        self._is_running = False
        self.kv_tokens_max = kv_tokens_max
        self.sequences: dict[RequestId, Sequence] = {}
        self._newest: dict[RequestId, int] = {}
        self.num_tokens = 0
        self.stage_ms = 0.0
        self.steps = StepTotals()

    @property
    def kv_tokens_used(self) -> int:
        return sum(each.kv_tokens for each in self.sequences.values())

    def open(self, effect: ef.ReserveKv) -> bool:
        """Reserve; False where there is no room."""
        opened = effect.open
        request_id = opened.request_id
        assert request_id not in self.sequences, "the older attempt's KV was not freed"
        if self.kv_tokens_used + opened.kv_tokens > self.kv_tokens_max:
            return False
        newest = self._newest.get(request_id, 0)
        assert opened.epoch > newest, f"epoch {opened.epoch} of {request_id} after {newest}"
        self._newest[request_id] = opened.epoch
        span, is_last = (
            opened.stages[opened.stage_index].span,
            not opened.stages[opened.stage_index + 1 :],
        )
        kept = [(0,) * len(span)]
        self.sequences[request_id] = Sequence(opened.epoch, opened.kv_tokens, span, is_last, kept)
        return True

    def close(self, request_id: RequestId, epoch: int) -> None:
        """Free this epoch and older ones."""
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.epoch <= epoch:
            del self.sequences[request_id]

    def rewind(self, effect: ef.RewindKv) -> None:
        """Forget rows from a position on."""
        sequence = self.sequences.get(effect.request_id)
        if sequence is not None and sequence.epoch == effect.epoch:
            del sequence.kept[effect.position + 1 :]

    def submit(self, rows: ef.SubmitRows) -> None:
        """Queue rows for a step."""
        self._waiting.append(rows)
        if not self._is_running:
            self._start()

    def _start(self) -> None:
        self._is_running = True
        self.stage_ms = self._step_ms(self._num_layers())
        self._clock.after(self.stage_ms, self._finish)

    def _num_layers(self) -> int:
        """That the widest of the waiting rows' sequences runs."""
        found = [self.sequences.get(rows.request_id) for rows in self._waiting]
        return max((len(sequence.span) for sequence in found if sequence is not None), default=0)

    def _count(self, batch: list[ef.SubmitRows], num_layers: int) -> None:
        """Steps of decodes alone: what nodes are priced by."""
        if num_layers and all(rows.num_tokens == 1 for rows in batch):
            steps = self.steps
            self.steps = replace(
                steps,
                decode_steps=steps.decode_steps + 1,
                decode_ms=steps.decode_ms + self.stage_ms,
                decode_rows=steps.decode_rows + len(batch),
                decode_layers=steps.decode_layers + num_layers,
            )

    def _finish(self) -> None:
        num_layers = self._num_layers()
        batch, self._waiting = self._waiting, []
        self._is_running = False
        self._count(batch, num_layers)
        results = [result for rows in batch if (result := self._run(rows)) is not None]
        if results:
            self._sink(results)
        if self._waiting and not self._is_running:
            self._start()

    def _run(self, rows: ef.SubmitRows) -> StageResult | None:
        sequence = self.sequences.get(rows.request_id)
        if sequence is None or sequence.epoch != rows.epoch:
            return None
        end = rows.position + rows.num_tokens
        assert rows.position == len(sequence.kept) - 1, "rows with a gap, or twice"
        assert end <= sequence.kv_tokens, "rows beyond the reserved slots"
        states, values = list(sequence.kept[-1]), []
        for at in range(rows.num_tokens):
            value = arithmetic.run_row(sequence.span, self._input(rows, at), states)
            sequence.kept.append(tuple(states))
            values.append(value)
        self.num_tokens += rows.num_tokens
        result = StageResult(
            rows.request_id, rows.epoch, rows.position, rows.num_tokens, sample=rows.sample
        )
        if not sequence.is_last:
            result.hidden = b"".join(arithmetic.to_bytes(v, self._row_bytes) for v in values)
        elif rows.sample:
            result.token_id = arithmetic.draw(values[-1])
        return result

    def _input(self, rows: ef.SubmitRows, at: int) -> int:
        if rows.token_ids is not None:
            return arithmetic.embed(rows.token_ids[at], rows.position + at)
        assert rows.hidden is not None, "rows without numbers"
        return arithmetic.from_bytes(rows.hidden[at * self._row_bytes :])
