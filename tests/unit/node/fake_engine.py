"""A deterministic engine without tensors: enough arithmetic to notice a lost or repeated row.

A row holds one 32-bit number, repeated. The first stage folds the ids seen so far into it, every
layer adds one, and the drawn token is the number modulo the vocabulary.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from node.ports import (
    DeviceReport,
    EngineStats,
    LoadProgress,
    ResultSink,
    SequenceOpen,
    StageResult,
    StageWork,
)
from plait.errors import OverloadedError
from plait.types import (
    Architecture,
    DType,
    HeldSpan,
    LayerSpan,
    LayerTiming,
    ModelId,
    ModelSource,
    ModelSpec,
    Reason,
    RequestId,
    TokenLogprob,
)

_MASK = 0xFFFFFFFF


def tiny_spec(num_layers: int = 6, *, model_id: str = "tiny", context: int = 512) -> ModelSpec:
    """A model's shape; nothing is computed with it but sizes."""
    return ModelSpec(
        model_id=ModelId(model_id),
        architecture=Architecture.LLAMA,
        num_layers=num_layers,
        hidden_size=16,
        intermediate_size=32,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=1000,
        context_tokens_max=context,
        norm_eps=1e-5,
        rope_theta=1e4,
        eos_token_ids=(0,),
    )


def fold(state: int, token_id: int) -> int:
    """One id into the running number."""
    return (state * 1_000_003 + token_id + 1) & _MASK


def expected_tokens(prompt: list[int], num_tokens: int, spec: ModelSpec) -> list[int]:
    """What any correct chain draws."""
    state, drawn = 0, []
    ids = list(prompt)
    for token_id in ids:
        state = fold(state, token_id)
    for _ in range(num_tokens):
        token_id = ((state + spec.num_layers) & _MASK) % spec.vocab_size
        drawn.append(token_id)
        state = fold(state, token_id)
    return drawn


class Drawn(NamedTuple):
    """A token that a last stage drew; see node.core.events.DrawnToken."""

    token_id: int
    logprob: float | None
    top_logprobs: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class _Sequence:
    opened: SequenceOpen
    state: int = 0
    next_position: int = 0
    num_drafted: int = 0
    states: dict[int, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)


class FakeEngineHost:
    """Steps run on the event loop, all queued works at once."""

    def __init__(self, *, kv_tokens_max: int = 4_096, load_error: Exception | None = None):
        self.kv_tokens_max = kv_tokens_max
        self.load_error = load_error
        self.sequences: dict[RequestId, _Sequence] = {}
        self.max_reserved = 0
        self.cache: dict[bytes, int] = {}
        self.num_rewinds = 0
        self.num_rows = 0
        self.num_loads = 0
        self.load_gate: asyncio.Event | None = None
        self.is_paused = False
        self._spec = tiny_spec()
        self._held: HeldSpan | None = None
        self._queue: deque[StageWork] = deque()
        self._is_scheduled = False
        self._tokens_total = 0
        self._steps_total = 0

    def start(self, sink: ResultSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        self._queue.clear()

    async def measure_device(self) -> DeviceReport:
        return DeviceReport(
            device_kind="cpu",
            device_name="fake",
            memory_bytes=1 << 30,
            memory_bytes_per_s=1e9,
            flops_per_s=1e9,
            compute_dtype=DType.FLOAT32,
        )

    async def measure_layer(self, spec: ModelSpec) -> LayerTiming:
        return LayerTiming(
            model_id=spec.model_id,
            decode_layer_ms=1.0,
            decode_layer_ms_per_extra=0.1,
            prefill_layer_ms_per_token=0.1,
            head_ms=1.0,
            embed_ms=0.1,
            step_overhead_ms=0.1,
        )

    async def load(
        self,
        spec: ModelSpec,
        source: ModelSource,
        span: LayerSpan,
        *,
        allocation_epoch: int,
        kv_tokens_min: int,
        progress: LoadProgress,
    ) -> HeldSpan:
        self.num_loads += 1
        self._held = None
        self.sequences.clear()
        progress("fetching", 1, 2)
        if self.load_gate is not None:
            await self.load_gate.wait()
        if self.load_error is not None:
            raise self.load_error
        progress("loading", 2, 2)
        self._spec = spec
        self._held = HeldSpan(
            model_id=spec.model_id,
            span=span,
            allocation_epoch=allocation_epoch,
            digest="d",
            weight_bytes=spec.weight_bytes(span, DType.FLOAT32),
            read_bytes=2,
            kv_tokens_max=self.kv_tokens_max,
        )
        return self._held

    async def unload(self) -> None:
        self._held = None
        self.sequences.clear()

    @property
    def reserved(self) -> int:
        return sum(sequence.opened.kv_tokens for sequence in self.sequences.values())

    def open(self, sequence: SequenceOpen) -> int:
        if self.reserved + sequence.kv_tokens > self.kv_tokens_max:
            raise OverloadedError("no KV slots are free", reason="kv_full")
        made = _Sequence(sequence)
        for index, name in enumerate(sequence.prefix):
            made.names[16 * (index + 1)] = sequence.cache_path + name
        for end in range(16, 16 * sequence.cached_blocks + 1, 16):
            state = self.cache.get(made.names[end])
            if state is None:
                break
            made.next_position, made.state, made.states[end] = end, state, state
        self.sequences[sequence.request_id] = made
        self.max_reserved = max(self.max_reserved, self.reserved)
        return made.next_position

    def rewind(self, request_id: RequestId, epoch: int, position: int) -> None:
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.opened.epoch == epoch:
            self.num_rewinds += 1
            sequence.next_position = position
            sequence.state = sequence.states[position] if position else 0
            self._queue = deque(work for work in self._queue if work.request_id != request_id)

    def close(self, request_id: RequestId, epoch: int) -> None:
        sequence = self.sequences.get(request_id)
        if sequence is not None and sequence.opened.epoch <= epoch:
            del self.sequences[request_id]

    def submit(self, work: StageWork) -> None:
        self._queue.append(work)
        if not self._is_scheduled and not self.is_paused:
            self._is_scheduled = True
            self._loop.call_soon(self._step)

    def resume(self) -> None:
        """Run what was queued while `is_paused`."""
        self.is_paused = False
        self._loop.call_soon(self._step)

    def stats(self) -> EngineStats:
        return EngineStats(
            kv_tokens_max=self.kv_tokens_max,
            kv_tokens_reserved=self.reserved,
            num_sequences=len(self.sequences),
            stage_ms=0.0,
            tokens_total=self._tokens_total,
            queue_tokens=len(self._queue),
            steps_total=self._steps_total,
        )

    def _step(self) -> None:
        self._is_scheduled = False
        works, self._queue = self._queue, deque()
        results = [result for work in works if (result := self._run(work)) is not None]
        self._steps_total += 1
        if results:
            self._sink(results)

    def _run(self, work: StageWork) -> StageResult | None:
        sequence = self.sequences.get(work.request_id)
        if sequence is None or sequence.opened.epoch != work.epoch:
            return None
        back = sequence.next_position - work.position
        if not 0 <= back <= sequence.num_drafted:
            error = Reason(code="engine_position", message=f"{work.position} is out of order")
            return StageResult(
                work.request_id, work.epoch, work.position, work.num_tokens, error=error
            )
        if back and work.token_ids is not None:
            sequence.state = sequence.states[work.position]
        sequence.next_position = work.position + work.num_tokens
        sequence.num_drafted = len(work.drafted_ids)
        self.num_rows += work.num_tokens
        if work.block_name is not None:
            end = (sequence.next_position - sequence.num_drafted) // 16 * 16
            sequence.names[end] = sequence.opened.cache_path + work.block_name
        self._tokens_total += work.num_tokens
        rows = self._rows(sequence, work)
        is_last = sequence.opened.span.end == self._spec.num_layers
        result = StageResult(
            work.request_id, work.epoch, work.position, work.num_tokens, sample=work.sample
        )
        if is_last:
            if work.sample:
                self._draw(result, work, rows)
        else:
            width = self._spec.hidden_size * sequence.opened.wire_dtype.num_bytes // 4
            result.hidden = b"".join(row.to_bytes(4, "little") * width for row in rows)
        return result

    def _draw(self, result: StageResult, work: StageWork, rows: list[int]) -> None:
        """One row after the other, as far as the guesses are right."""
        vocab_size, drafted = self._spec.vocab_size, work.drafted_ids
        drawn = [row % vocab_size for row in rows[-1 - len(drafted) :]]
        num_right = 0
        while num_right < len(drafted) and drawn[num_right] == drafted[num_right]:
            num_right += 1
        result.accepted = [Drawn(token_id, None, ()) for token_id in drawn[:num_right]]
        result.token_id = drawn[num_right]
        result.num_tokens -= len(drafted) - num_right

    def _rows(self, sequence: _Sequence, work: StageWork) -> list[int]:
        added = len(sequence.opened.span)
        if work.token_ids is not None:
            states = []
            for at, token_id in enumerate(work.token_ids, work.position + 1):
                sequence.state = fold(sequence.state, token_id)
                states.append(sequence.state)
                sequence.states[at] = sequence.state
        else:
            hidden = bytes(work.hidden or b"")
            row_bytes = len(hidden) // work.num_tokens
            states = [
                int.from_bytes(hidden[at : at + 4], "little")
                for at in range(0, len(hidden), row_bytes)
            ]
        valid_end = work.position + work.num_tokens - len(work.drafted_ids)
        for end in range(max(1, work.position - 14), valid_end + 1):
            if end in sequence.names:
                self.cache[sequence.names[end]] = sequence.states.get(end, 0)
        return [(state + added) & _MASK for state in states]
