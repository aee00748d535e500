"""A ring of nodes that decide by the engine's own parts (batcher, patience, step budget), on a
virtual clock: the simulator's naive twin. Steps take what the pool says, frames what it is told."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from node.engine.batcher import Batcher
from node.engine.patience import Patience, Wait
from node.engine.sequence import StepItem
from node.engine.step_budget import StepBudget
from node.ports import SequenceOpen, StageWork
from plait.types import DType, HeldSpan, LayerSpan, ModelId, RequestId
from scheduler.simulation.pool import Pool
from tests.unit.engine.kit import tiny_model

GROUP_MAX = 6
STEP_TOKENS_MAX = 256
FRAME_TOKENS = 128
SPEC = replace(tiny_model("llama").spec, context_tokens_max=4096)


@dataclass(slots=True, eq=False)
class Node:
    """A stage, as `node.engine.host` runs it."""

    at: int
    span: LayerSpan
    batcher: Batcher = field(
        default_factory=lambda: Batcher(
            step_tokens_max=STEP_TOKENS_MAX, queue_tokens_max=1 << 16, companions_max=GROUP_MAX
        )
    )
    budget: StepBudget = field(default_factory=StepBudget)
    stage_ms: float = 0.0
    num_steps: int = 0
    is_busy: bool = False
    waits: Iterator[Wait] | None = None
    expecting: Callable[[], bool] | None = None
    until_s: float = 0.0
    patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self.patience = Patience(self.batcher, group_max=GROUP_MAX, limit_ms=15.0)
        held = HeldSpan(
            model_id=ModelId(SPEC.model_id),
            span=LayerSpan(0, 1),
            allocation_epoch=1,
            digest="",
            weight_bytes=0,
            read_bytes=0,
            kv_tokens_max=1 << 16,
        )
        self.batcher.hold(SPEC, held)


class RealRing:
    """`spans` over the pool's machines in order. A frame takes `frame_s`, and those of one step
    come one after the other."""

    def __init__(self, pool: Pool, spans: list[LayerSpan], *, frame_s: float) -> None:
        self._pool, self._frame_s = pool, frame_s
        self._nodes = [Node(at, span) for at, span in enumerate(spans)]
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now_s = 0.0
        self._left: dict[RequestId, int] = {}
        self.tokens_s: dict[RequestId, list[float]] = {}

    def ask(
        self, at_s: float, there_s: float, name: str, prompt_tokens: int, new_tokens: int
    ) -> None:
        """A request that all stages know from `at_s` on, and whose prompt is there at `there_s`."""
        request_id = RequestId(name)
        self._at(at_s, lambda: self._open(request_id, prompt_tokens, new_tokens))
        self._at(there_s, lambda: self._prefill(request_id, prompt_tokens))

    def run(self) -> dict[RequestId, list[float]]:
        """When each request's tokens were drawn."""
        while self._heap:
            self._now_s, _, act = heapq.heappop(self._heap)
            act()
        return self.tokens_s

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._count), act))

    def _open(self, request_id: RequestId, prompt_tokens: int, new_tokens: int) -> None:
        self._left[request_id], self.tokens_s[request_id] = new_tokens, []
        for node in self._nodes:
            opened = SequenceOpen(
                request_id=request_id,
                epoch=1,
                span=LayerSpan(0, 1),
                kv_tokens=prompt_tokens + new_tokens,
                wire_dtype=DType.FLOAT32,
            )
            node.batcher.open(opened)
            node.patience.sequence_opened(node.num_steps, 0.0)

    def _prefill(self, request_id: RequestId, prompt_tokens: int) -> None:
        for start in range(0, prompt_tokens, FRAME_TOKENS):
            tokens = min(FRAME_TOKENS, prompt_tokens - start)
            is_end = start + tokens == prompt_tokens
            self._arrive(self._nodes[0], request_id, start, tokens, sample=is_end)

    def _arrive(
        self, node: Node, request_id: RequestId, position: int, tokens: int, *, sample: bool
    ) -> None:
        work = StageWork(request_id, 1, position, tokens, token_ids=[1] * tokens, sample=sample)
        if node.batcher.submit(work):
            self._look(node)

    def _look(self, node: Node) -> None:
        """As the host's thread does when it is woken."""
        if node.is_busy or not node.batcher.has_work:
            return
        if node.waits is None:
            node.waits = node.patience.waits(node.stage_ms, node.num_steps)
            node.expecting = None
        while True:
            if node.expecting is not None and node.expecting() and self._now_s < node.until_s:
                return
            wait = next(node.waits, None)
            if wait is None:
                break
            node.expecting, limit_s = wait
            node.until_s = self._now_s + limit_s
            if limit_s > 0 and node.expecting():
                self._at(node.until_s, lambda: self._look(node))
        node.waits = None
        self._start(node)

    def _start(self, node: Node) -> None:
        batcher = node.batcher
        rows_max = node.budget.prompt_rows_max(
            is_decoding=batcher.is_decoding, is_decode_ready=batcher.is_decode_ready
        )
        items = batcher.take(rows_max, decodes_max=node.patience.decodes_max)
        if not items:
            return
        decodes = sum(item.work.is_decode for item in items)
        rows = sum(item.work.num_tokens for item in items) - decodes
        is_last = node is self._nodes[-1]
        heads = sum(item.work.sample for item in items) if is_last else 0
        took_s = self._pool.step_s(node.at, len(node.span), decodes, rows, num_heads=heads)
        node.is_busy = True
        self._at(self._now_s + took_s, lambda: self._done(node, items, took_s))

    def _done(self, node: Node, items: list[StepItem], took_s: float) -> None:
        node.is_busy = False
        node.num_steps += 1
        node.patience.stepped(len(items), 1e3 * took_s, 1e3 * self._now_s)
        kept = 0.9 if node.stage_ms else 0.0
        node.stage_ms = kept * node.stage_ms + (1 - kept) * 1e3 * took_s
        node.budget.record(items, 1e3 * took_s)
        node.batcher.finished(items, [True] * len(items))
        num_frames = 0
        for item in items:
            num_frames += self._go_on(node, item.work, (1 + num_frames) * self._frame_s)
        self._look(node)

    def _go_on(self, node: Node, work: StageWork, takes_s: float) -> bool:
        """Whether a frame leaves for another node."""
        there_s = self._now_s + takes_s
        request_id = work.request_id
        if node is not self._nodes[-1]:
            after = self._nodes[node.at + 1]
            place, sample = (work.position, work.num_tokens), work.sample
            self._at(there_s, lambda: self._arrive(after, request_id, *place, sample=sample))
            return True
        if not work.sample:
            return False
        self.tokens_s[request_id].append(self._now_s)
        self._left[request_id] -= 1
        if self._left[request_id] == 0:
            for each in self._nodes:
                each.batcher.close(request_id, 1)
                self._look(each)
            return False
        position, first = work.position + work.num_tokens, self._nodes[0]
        self._at(there_s, lambda: self._arrive(first, request_id, position, 1, sample=True))
        return True
