"""A ring of node cores and real engines in one thread, and a gateway that starts preempted requests
anew: what happens next, a message or half a step, is drawn by a seed."""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.core.messages import (
    Activations,
    Broken,
    Close,
    GatewayMessage,
    LinkMessage,
    PrefixShort,
    StageOpen,
    Token,
)
from node.core.speculation import Proposers
from node.core.state import Limits
from node.engine.batcher import Batcher
from node.engine.runner import Runner
from node.engine.sequence import StepItem
from node.ports import SequenceOpen, StageResult, StageWork
from plait.prefixes import BLOCK_TOKENS
from plait.types import (
    PREEMPTED,
    DType,
    FinishReason,
    HeldSpan,
    LayerSpan,
    ModelSource,
    ModelSpec,
    NodeId,
    Reason,
    RequestId,
    SamplingParams,
    SourceKind,
    TicketStage,
)

STEP_TOKENS = 32
_SOURCE = ModelSource(kind=SourceKind.PATH, name="none")


class RingNode:
    """A core with its engine. A step is begun and ended apart: messages come in between."""

    def __init__(
        self, ring: "EngineRing", stage: "RingStage", core: NodeCore, node_id: NodeId
    ) -> None:
        span = stage.span
        self.node_id = node_id
        self.core = core
        self.batcher = Batcher(step_tokens_max=STEP_TOKENS, queue_tokens_max=4_096)
        self.stepping: list[StepItem] = []
        self.preempted: Counter[str] = Counter()
        """Who gave its KV back, by what was under way."""
        self._ring = ring
        self._runner = stage.runner
        self._pending: deque[ev.Event] = deque()
        held = HeldSpan(
            model_id=ring.spec.model_id,
            span=span,
            allocation_epoch=1,
            digest="d",
            weight_bytes=1,
            read_bytes=1,
            kv_tokens_max=stage.num_blocks * BLOCK_TOKENS,
        )
        self.batcher.hold(ring.spec, held)
        offer = ev.ModelOffered(ring.spec, _SOURCE)
        self.post(ev.ControlAttached(models=(offer,), frame_bytes_max=4 << 20))
        self.post(
            ev.SpanAssigned(
                allocation_epoch=1,
                model_id=ring.spec.model_id,
                span=span,
                kv_tokens_min=1,
                reason="test",
            )
        )
        self.post(ev.SpanLoaded(held))

    def post(self, event: ev.Event) -> None:
        """Handle an event, and what follows from it."""
        self._pending.append(event)
        while self._pending:
            for effect in self.core.handle(self._pending.popleft(), self._ring.now_ms):
                self._perform(effect)

    def begin_step(self) -> None:
        """Take what is ready; who lost its KV for it hears so."""
        self.stepping = self.batcher.take()
        results = []
        for sequence in self.batcher.preempted():
            opened = sequence.opened
            is_guessing = self._ring.is_guessing(opened.request_id)
            self.preempted["guessing" if is_guessing else "plain"] += 1
            reason = Reason(code=PREEMPTED, message="its slots went to an earlier one")
            results.append(
                StageResult(
                    opened.request_id, opened.epoch, sequence.next_position, 0, error=reason
                )
            )
        if results:
            self.post(ev.StepFinished(results))

    def end_step(self) -> None:
        """Run it."""
        items, self.stepping = self.stepping, []
        results = self._runner.run(items)
        wanted = [item.is_wanted for item in items]
        self.batcher.finished(items, [result.error is None for result in results])
        live = [result for result, is_wanted in zip(results, wanted, strict=True) if is_wanted]
        if live:
            self.post(ev.StepFinished(live))

    def _perform(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Send():
                self._ring.links[self.node_id, effect.neighbour_id].append(effect.message)
            case ef.SendToGateway():
                self._ring.up[self.node_id].append(effect.message)
            case ef.ReserveKv():
                self._reserve(effect)
            case ef.ReleaseKv():
                self.batcher.close(effect.request_id, effect.epoch)
            case ef.RewindKv():
                self.batcher.rewind(effect.request_id, effect.epoch, effect.position)
            case ef.SubmitRows():
                self.batcher.submit(
                    StageWork(
                        effect.request_id,
                        effect.epoch,
                        effect.position,
                        effect.num_tokens,
                        token_ids=effect.token_ids,
                        hidden=effect.hidden,
                        dtype=effect.dtype,
                        sample=effect.sample,
                        block_name=effect.block_name,
                        drafted_ids=effect.drafted_ids,
                    )
                )
            case _:
                pass  # dialling, reports

    def _reserve(self, effect: ef.ReserveKv) -> None:
        opened = effect.open
        is_last = opened.stage_index == len(opened.stages) - 1
        cached_tokens = self.batcher.open(
            SequenceOpen(
                request_id=opened.request_id,
                epoch=opened.epoch,
                span=opened.stages[opened.stage_index].span,
                kv_tokens=opened.kv_tokens,
                wire_dtype=opened.sent_dtype,
                prefix=opened.block_names,
                cached_blocks=opened.cached_blocks,
                cache_path=effect.cache_path,
                admission=opened.admission,
                sampling=opened.sampling if is_last else None,
            )
        )
        self._pending.append(ev.KvReserved(opened.request_id, opened.epoch, cached_tokens))


@dataclass(frozen=True, slots=True)
class RingStage:
    """What a node of the ring holds, and so many blocks of KV, at most those of the runner."""

    span: LayerSpan
    runner: Runner
    num_blocks: int


@dataclass(slots=True)
class Asked:
    """A request as the gateway knows it."""

    request_id: RequestId
    prompt: tuple[int, ...]
    num_new: int
    sampling: SamplingParams
    admission: int
    epoch: int = 0
    drawn: list[int] = field(default_factory=list)
    is_running: bool = False

    @property
    def is_done(self) -> bool:
        return len(self.drawn) == self.num_new

    @property
    def waits(self) -> bool:
        """Whether it is to be started, or started anew."""
        return not (self.is_done or self.is_running)


class EngineRing:
    """The stages, first to last. The same seed, the same story."""

    def __init__(
        self,
        spec: ModelSpec,
        stages: Sequence[RingStage],
        *,
        seed: int,
        limits: Limits,
        proposers: Proposers | None = None,
    ) -> None:
        self.spec = spec
        self.now_ms = 1_000
        self.asked: list[Asked] = []
        ids = [NodeId(f"n{number}") for number in range(len(stages))]
        self.links: dict[tuple[NodeId, NodeId], deque[LinkMessage]] = {
            (a, b): deque() for a in ids for b in ids if a != b
        }
        self.up: dict[NodeId, deque[GatewayMessage]] = {each: deque() for each in ids}
        self._random = random.Random(seed)
        self._stages = tuple(
            TicketStage(node_id=node_id, incarnation=1, span=stage.span, addresses=("a:1",))
            for node_id, stage in zip(ids, stages, strict=True)
        )
        self.nodes = [
            RingNode(self, stage, NodeCore(node_id, 1, limits, proposers=proposers), node_id)
            for node_id, stage in zip(ids, stages, strict=True)
        ]
        self._by_id = dict(zip(ids, self.nodes, strict=True))

    def run(self, asked: Sequence[Asked], *, turns_max: int = 50_000) -> None:
        """Until all are answered and nothing is under way."""
        self.asked = list(asked)
        for _ in range(turns_max):
            if not self._turn():
                return
        raise AssertionError("some request starves")

    def is_guessing(self, request_id: RequestId) -> bool:
        """Whether guesses of the request are anywhere on the ring."""
        session = self.nodes[0].core._node.sessions.get(request_id)
        return session is not None and bool(session.drafted_ids)

    def _turn(self) -> bool:
        """One thing that may happen; False where nothing may."""
        choices: list[Callable[[], None]] = []
        choices += [partial(self._deliver, *way) for way, queue in self.links.items() if queue]
        choices += [partial(self._hear, queue) for queue in self.up.values() if queue]
        choices += [partial(self._start, one) for one in self.asked if one.waits]
        for node in self.nodes:
            if node.stepping:
                choices.append(node.end_step)
            elif node.batcher.has_work:
                choices.append(node.begin_step)
        if not choices:
            return False
        self.now_ms += self._random.randrange(4)
        self._random.choice(choices)()
        return True

    def _deliver(self, sender: NodeId, receiver: NodeId) -> None:
        message = self.links[sender, receiver].popleft()
        node = self._by_id[receiver]
        match message:
            case StageOpen():
                opened = replace(message, stage_index=message.stage_index + 1)
                node.post(ev.OpenReceived(sender, opened))
            case Activations():
                node.post(ev.ActivationsReceived(sender, message))
            case Token():
                node.post(ev.TokenReceived(sender, message))
            case Broken():
                node.post(ev.BrokenReceived(sender, message))
            case PrefixShort():
                node.post(ev.PrefixShortReceived(sender, message))
            case Close():
                node.post(_closed(sender, message.request_id, message.epoch, message.reason))

    # The gateway.

    def _start(self, one: Asked) -> None:
        one.epoch += 1
        one.is_running = True
        prompt = (*one.prompt, *one.drawn)
        opened = StageOpen(
            request_id=one.request_id,
            epoch=one.epoch,
            ticket=(b"payload", b"signature"),
            valid_ms=600_000,
            model_id=self.spec.model_id,
            stages=self._stages,
            stage_index=0,
            kv_tokens=len(one.prompt) + one.num_new,
            wire_dtype=DType.FLOAT32,
            sampling=one.sampling,
            stop_token_ids=(),
            max_new_tokens=one.num_new - len(one.drawn),
            prompt_tokens=len(prompt),
            cache_salt=b"salt",
            admission=one.admission,
        )
        self.nodes[0].post(ev.RequestStarted(open=opened, prompt_token_ids=prompt))

    def _hear(self, queue: deque[GatewayMessage]) -> None:
        message = queue.popleft()
        one = next(each for each in self.asked if each.request_id == message.request_id)
        if not isinstance(message, Token | Broken):
            return
        if message.epoch != one.epoch or not one.is_running:
            return
        if isinstance(message, Broken):
            assert message.reason.code == PREEMPTED, message.reason
            self._close(one, FinishReason.ERROR)
            return
        assert message.position == len(one.prompt) + len(one.drawn), "in order, without a gap"
        one.drawn.append(message.token_id)
        if one.is_done:
            assert message.finish_reason is FinishReason.LENGTH
            self._close(one, FinishReason.LENGTH)

    def _close(self, one: Asked, reason: FinishReason) -> None:
        one.is_running = False
        for node in self.nodes:
            node.post(_closed(None, one.request_id, one.epoch, reason))


def _closed(
    sender: NodeId | None, request_id: RequestId, epoch: int, reason: FinishReason
) -> ev.CloseReceived:
    return ev.CloseReceived(sender=sender, request_id=request_id, epoch=epoch, reason=reason)
