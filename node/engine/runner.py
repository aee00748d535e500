"""Runs one step: works of several sequences through the layers each of them asked for."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from node.engine.background import JobDone
from node.engine.device import Device
from node.engine.grammar_thread import GrammarThread
from node.engine.kv_cache import KvPool
from node.engine.lanes import Lanes, lanes_for
from node.engine.sampler import SequenceSampler
from node.engine.sequence import StepItem
from node.engine.speculation import Check, draw_checked
from node.engine.stage import HeldStage
from node.engine.step_plan import Chunk, StepPlan
from node.engine.tensor_bytes import is_finite
from node.engine.wire_rows import rows_from_wire, rows_to_wire
from node.ports import StageResult, StageWork
from plait.errors import FrameError, ModelError, OverloadedError, PlaitError
from plait.types import LayerSpan, Reason

_NOT_FINITE = "nan_activations"
_ARRIVED_SPOILT = "the hidden states that arrived hold NaN or Inf"
_COMPUTED_SPOILT = "this stage computed NaN or Inf"


class Runner:
    """Turns a batch of works into results. Lives in the engine's thread.

    `gather_decodes` attends to all decodes in one call over padded copies; the default is what
    suits the device. `grammars` makes the grammars of constrained requests.
    """

    def __init__(
        self,
        stage: HeldStage,
        pool: KvPool,
        device: Device,
        *,
        gather_decodes: bool | None = None,
        grammars: GrammarThread | None = None,
    ) -> None:
        self.stage = stage
        self.pool = pool
        self._lanes = Lanes()
        self._device = device
        self._grammars = grammars
        self._gather = device.kind == "cuda" if gather_decodes is None else gather_decodes

    def prepare(self, work: StageWork, sampler: SequenceSampler | None, done: JobDone) -> bool:
        """Whether what `work` needs is on this machine: the rows of the embedding (see
        `node.engine.embedding`) and, where a token is to be drawn, the request's grammar."""
        if not work.sample or sampler is None or sampler.is_ready:
            return self._has_rows(work, done)
        if self._grammars is None:
            raise OverloadedError("this stage makes no grammars", reason="vocabulary_unavailable")

        def compiled(error: PlaitError | None) -> None:
            try:
                is_done = error is not None or self._has_rows(work, done)
            except OverloadedError as overload:
                error, is_done = overload, True
            if is_done:
                done(error)

        self._grammars.ask(sampler, compiled)
        return False

    def _has_rows(self, work: StageWork, done: JobDone) -> bool:
        embedding = self.stage.embedding
        if work.token_ids is None or embedding is None:
            return True
        return embedding.prepare(work.token_ids, done)

    def close(self) -> None:
        """Let go of the weights' file and the grammars. Idempotent."""
        if self._grammars is not None:
            self._grammars.close()
        self._lanes.close()
        self.stage.close()

    def run(self, items: list[StepItem]) -> list[StageResult]:
        """One result for each work, in their order; NaN or Inf becomes the work's error, and so
        does a row of the embedding that cannot be read any more."""
        if not torch.is_inference_mode_enabled():  # the engine's thread never leaves it
            with torch.inference_mode():
                return self.run(items)
        results: dict[int, StageResult] = {}
        inputs: dict[int, Tensor] = {}
        for index, item in enumerate(items):
            try:
                rows = self.input_rows(item)
            except (ModelError, FrameError) as error:
                results[index] = _failed(item, error.message, code=error.code)
                continue
            is_many = item.work.hidden is not None and item.work.num_tokens > 1
            if is_many and not is_finite(rows):
                results[index] = _failed(item, _ARRIVED_SPOILT)
            else:
                inputs[index] = rows
        if inputs:
            outputs = self._forward([items[i] for i in inputs], list(inputs.values()))
            finished = dict(zip(inputs, outputs, strict=True))
            self._collect(items, finished, results)
        return [results[index] for index in range(len(items))]

    @torch.inference_mode()
    def forward(self, items: list[StepItem], rows: list[Tensor]) -> list[Tensor]:
        """Hidden rows (num_tokens, hidden) of each item after the layers of its span.

        Writes keys and values into the cache. Items with one span run as one batch; where spans
        differ, rows join at their first layer and leave after their last.
        """
        return self._forward(items, rows)

    def _forward(self, items: list[StepItem], rows: list[Tensor]) -> list[Tensor]:
        if len(items) == 1:  # nothing to put in order: what follows costs as much as a layer
            return list(self._run_part(items[0].sequence.opened.span, items, rows))
        order = sorted(range(len(items)), key=lambda i: items[i].work.num_tokens > 1)
        rows = list(rows)
        cuts = sorted({cut for i in items for cut in _ends(i.sequence.opened.span)})
        for start, end in pairwise(cuts):
            part = LayerSpan(start, end)
            active = [i for i in order if items[i].sequence.opened.span.contains(part)]
            if active:
                batch = self._run_lanes(part, [items[i] for i in active], [rows[i] for i in active])
                for i, result in zip(active, batch, strict=True):
                    rows[i] = result
        return rows

    def _run_lanes(
        self, part: LayerSpan, items: list[StepItem], rows: list[Tensor]
    ) -> list[Tensor]:
        """As one batch, or as several side by side where the kernels use one thread each."""
        num_lanes = torch.get_num_threads() if self.stage.runs_in_lanes else 1
        lanes = lanes_for([len(r) for r in rows], num_lanes)
        jobs = [
            partial(
                self._run_part, part, items[lane.start : lane.stop], rows[lane.start : lane.stop]
            )
            for lane in lanes
        ]
        return [result for batch in self._lanes.run(jobs) for result in batch]

    def _run_part(
        self, part: LayerSpan, items: list[StepItem], rows: list[Tensor]
    ) -> tuple[Tensor, ...]:
        spec = self.stage.spec
        plan = StepPlan(
            self._chunks(items),
            self.pool,
            self.stage.rotations.tables,
            num_heads=spec.num_heads,
            rows_min=self.stage.rows_min,
            gather_decodes=self._gather,
        )
        hidden = self.stage.run_layers(_padded(rows, self.stage.rows_min), part, plan)
        if len(rows) == 1:
            return (hidden if len(hidden) == plan.num_rows else hidden[: plan.num_rows],)
        return torch.split(hidden[: plan.num_rows], [len(r) for r in rows])

    def _chunks(self, items: list[StepItem]) -> list[Chunk]:
        chunks: list[Chunk] = []
        row = 0
        for item in items:
            rotation_row = self.stage.rotations.first_row(item.sequence.opened.kv_tokens)
            chunks.append(
                Chunk(row, item.work.num_tokens, item.work.position, item.runs, rotation_row)
            )
            row += item.work.num_tokens
        return chunks

    def input_rows(self, item: StepItem) -> Tensor:
        """(num_tokens, hidden) on the device: embedded ids, or the bytes that arrived."""
        work = item.work
        if work.token_ids is not None:
            return self.stage.embed(work.token_ids)
        assert work.hidden is not None
        arrived = rows_from_wire(
            work.hidden,
            work.dtype,
            num_tokens=work.num_tokens,
            hidden_size=self.stage.spec.hidden_size,
        )
        device = self._device
        if device.kind == "cpu" and arrived.dtype is device.dtype:
            return arrived
        return arrived.to(device.torch_device, device.dtype)

    def _whose_fault(self, item: StepItem) -> str:
        """Of rows that came out as no numbers. A single row that arrived is looked at only now:
        whatever was wrong with it, residuals carried to the end."""
        has_come_so = item.work.hidden is not None and not is_finite(self.input_rows(item))
        return _ARRIVED_SPOILT if has_come_so else _COMPUTED_SPOILT

    def _collect(
        self, items: list[StepItem], outputs: dict[int, Tensor], results: dict[int, StageResult]
    ) -> None:
        """Add a result for each output: bytes for the next stage, or a drawn token."""
        sampled: list[int] = []
        for index, rows in outputs.items():
            item = items[index]
            is_last = item.sequence.opened.span.end == self.stage.spec.num_layers
            if is_last:
                payload, is_sound = None, is_finite(_judged(item, rows))
            else:
                payload = rows_to_wire(rows, item.sequence.opened.wire_dtype)
                is_sound = payload is not None
            if not is_sound:
                results[index] = _failed(item, self._whose_fault(item))
            elif not is_last:
                results[index] = _result(item, hidden=payload)
            elif item.work.sample:
                sampled.append(index)
            else:
                results[index] = _result(item)
        if sampled:
            self._sample(items, outputs, results, sampled)

    def _sample(
        self,
        items: list[StepItem],
        outputs: dict[int, Tensor],
        results: dict[int, StageResult],
        sampled: list[int],
    ) -> None:
        judged = [_judged(items[i], outputs[i]) for i in sampled]
        logits = self.stage.logits(_padded(judged, self.stage.rows_min))
        checks: list[Check] = []
        first_row = 0
        for index, rows in zip(sampled, judged, strict=True):
            work, sampler = items[index].work, items[index].sequence.sampler
            assert sampler is not None, "a last stage samples with what the request asked for"
            position = work.position + work.num_tokens - len(work.drafted_ids)
            checks.append(Check(sampler, first_row, position, work.drafted_ids))
            first_row += len(rows)
        for index, drawn in zip(sampled, draw_checked(logits, checks), strict=True):
            if isinstance(drawn, Reason):
                results[index] = _failed(items[index], drawn.message, code=drawn.code)
                continue
            result = _result(items[index])
            *result.accepted, last = drawn
            result.num_tokens -= len(items[index].work.drafted_ids) - len(result.accepted)
            result.token_id = last.token_id
            result.logprob = last.logprob
            result.top_logprobs = last.top_logprobs
            results[index] = result


def _ends(span: LayerSpan) -> tuple[int, int]:
    return span.start, span.end


def _judged(item: StepItem, rows: Tensor) -> Tensor:
    """The last row, and those in front of it that guesses may turn out to continue."""
    num_judged = 1 + len(item.work.drafted_ids)
    return rows if len(rows) == num_judged else rows[-num_judged:]


def _padded(rows: list[Tensor], rows_min: int) -> Tensor:
    """All rows in one tensor of at least `rows_min` rows; padding is zero."""
    missing = rows_min - sum(len(r) for r in rows)
    if missing > 0:
        return torch.cat([*rows, rows[0].new_zeros((missing, rows[0].shape[1]))])
    return torch.cat(rows) if len(rows) > 1 else rows[0].contiguous()


def _result(item: StepItem, hidden: bytes | None = None) -> StageResult:
    work = item.work
    return StageResult(
        work.request_id,
        work.epoch,
        work.position,
        work.num_tokens,
        hidden=hidden,
        sample=work.sample,
    )


def _failed(item: StepItem, message: str, *, code: str = _NOT_FINITE) -> StageResult:
    result = _result(item)
    result.error = Reason(code=code, message=message)
    return result
