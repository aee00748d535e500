"""A node's core in tests: given these events, these effects."""

import itertools
from typing import TypeVar

from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.core.messages import Activations, Broken, Close, StageOpen, Token
from node.core.speculation import Proposers
from node.core.state import Limits
from plait.types import (
    DType,
    FinishReason,
    HeldSpan,
    LayerSpan,
    ModelId,
    ModelSource,
    NodeId,
    RequestId,
    SamplingParams,
    SourceKind,
    TicketStage,
)
from tests.unit.node.fake_engine import Drawn, tiny_spec

SPEC = tiny_spec(6)
SOURCE = ModelSource(kind=SourceKind.PATH, name="none")
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
SPANS = {1: ((0, 6),), 2: ((0, 3), (3, 6)), 3: ((0, 2), (2, 4), (4, 6))}
ROW = bytes(SPEC.hidden_size * 4)

_Effect = TypeVar("_Effect")


def rid(name: str = "r1") -> RequestId:
    return RequestId(name)


def held(span: LayerSpan, *, epoch: int = 1, kv_tokens_max: int = 1000) -> HeldSpan:
    return HeldSpan(
        model_id=SPEC.model_id,
        span=span,
        allocation_epoch=epoch,
        digest="d",
        weight_bytes=1,
        read_bytes=1,
        kv_tokens_max=kv_tokens_max,
    )


def assign(span: LayerSpan, *, epoch: int = 1, model: str = "tiny", kv: int = 1) -> ev.SpanAssigned:
    return ev.SpanAssigned(
        allocation_epoch=epoch, model_id=ModelId(model), span=span, kv_tokens_min=kv, reason="test"
    )


def stages(names: tuple[NodeId, ...]) -> tuple[TicketStage, ...]:
    return tuple(
        TicketStage(node_id=name, incarnation=1, span=LayerSpan(*span), addresses=(f"{name}:1",))
        for name, span in zip(names, SPANS[len(names)], strict=True)
    )


def opened(
    index: int,
    *,
    names: tuple[NodeId, ...] = (A, B, C),
    request: str = "r1",
    epoch: int = 1,
    kv_tokens: int = 64,
    prompt_tokens: int = 4,
    max_new_tokens: int = 8,
    stop: tuple[int, ...] = (),
    model: str = "tiny",
    route: tuple[TicketStage, ...] | None = None,
    hops: tuple[DType, ...] = (),
    cache_salt: bytes = b"",
    block_names: tuple[bytes, ...] = (),
    cached_blocks: int = 0,
    drafts_max: int | None = None,
) -> StageOpen:
    return StageOpen(
        request_id=rid(request),
        epoch=epoch,
        ticket=(b"payload", b"signature"),
        valid_ms=600_000,
        model_id=ModelId(model),
        stages=route if route is not None else stages(names),
        stage_index=index,
        kv_tokens=kv_tokens,
        wire_dtype=DType.FLOAT32,
        sampling=SamplingParams(temperature=0.0),
        stop_token_ids=stop,
        max_new_tokens=max_new_tokens,
        prompt_tokens=prompt_tokens,
        hop_dtypes=hops,
        cache_salt=cache_salt,
        block_names=block_names,
        cached_blocks=cached_blocks,
        drafts_max=drafts_max,
    )


class Outcome:
    """What a step made of a work; see node.core.events.RowOutcome."""

    def __init__(
        self,
        position: int,
        num_tokens: int = 1,
        *,
        request: str = "r1",
        epoch: int = 1,
        hidden: bytes | None = None,
        token_id: int | None = None,
        accepted: tuple[int, ...] = (),
        sample: bool = False,
        error: object = None,
    ) -> None:
        self.request_id = rid(request)
        self.epoch = epoch
        self.position = position
        self.num_tokens = num_tokens
        self.hidden = hidden
        self.token_id = token_id
        self.accepted = [Drawn(accepted_id, None, ()) for accepted_id in accepted]
        self.sample = sample
        self.logprob = None
        self.top_logprobs = ()
        self.error = error


class Story:
    """One node that serves its span; `tell` returns the effects."""

    def __init__(
        self,
        index: int = 1,
        names: tuple[NodeId, ...] = (A, B, C),
        *,
        limits: Limits | None = None,
        proposers: Proposers | None = None,
        is_serving: bool = True,
    ) -> None:
        self.now_ms = 1_000
        self.index = index
        self.names = names
        self.span = LayerSpan(*SPANS[len(names)][index])
        self.core = NodeCore(names[index], 1, limits, proposers=proposers)
        self._clock = itertools.count()
        if is_serving:
            self.attach()
            self.tell(assign(self.span))
            self.tell(ev.SpanLoaded(held(self.span)))

    def attach(self) -> list[ef.Effect]:
        offer = ev.ModelOffered(SPEC, SOURCE)
        return self.tell(ev.ControlAttached(models=(offer,), frame_bytes_max=4 << 20))

    def tell(self, event: ev.Event) -> list[ef.Effect]:
        return self.core.handle(event, self.now_ms)

    def later(self, delta_ms: int) -> list[ef.Effect]:
        self.now_ms += delta_ms
        return self.tell(ev.Ticked())

    @property
    def before(self) -> NodeId:
        return self.names[self.index - 1]

    def open(self, **kwargs: object) -> list[ef.Effect]:
        """Open the stage and grant its KV, of which `has_tokens` are there; effects of both."""
        has_tokens = kwargs.pop("has_tokens", 0)
        assert isinstance(has_tokens, int)
        order = opened(self.index, names=self.names, **kwargs)  # type: ignore[arg-type]
        if self.index == 0:
            prompt = tuple(range(order.prompt_tokens))
            out = self.tell(ev.RequestStarted(open=order, prompt_token_ids=prompt))
        else:
            out = self.tell(ev.OpenReceived(self.before, order))
        if any(isinstance(effect, ef.ReserveKv) for effect in out):
            out += self.tell(ev.KvReserved(order.request_id, order.epoch, has_tokens))
        return out

    def rows(
        self,
        position: int,
        num_tokens: int = 1,
        *,
        sender: NodeId | None = None,
        request: str = "r1",
        epoch: int = 1,
        payload: bytes | None = None,
        dtype: DType | None = None,
        sample: bool = True,
        drafted: tuple[int, ...] = (),
        block_name: bytes | None = None,
    ) -> list[ef.Effect]:
        message = Activations(
            rid(request),
            epoch,
            position,
            num_tokens,
            ROW * num_tokens if payload is None else payload,
            sample=sample,
            dtype=dtype,
            drafted_ids=drafted,
            block_name=block_name,
        )
        return self.tell(ev.ActivationsReceived(sender or self.before, message))

    def step(self, outcome: Outcome) -> list[ef.Effect]:
        return self.tell(ev.StepFinished([outcome]))  # type: ignore[list-item]

    def ring_token(
        self,
        position: int,
        token_id: int = 5,
        *,
        sender: NodeId | None = None,
        epoch: int = 1,
        finish: FinishReason | None = None,
        drafts_max: int = 0,
    ) -> list[ef.Effect]:
        token = Token(rid(), epoch, position, token_id, finish_reason=finish, drafts_max=drafts_max)
        return self.tell(ev.TokenReceived(sender or self.names[-1], token))

    def close(self, *, sender: NodeId | None, epoch: int = 1) -> list[ef.Effect]:
        return self.tell(
            ev.CloseReceived(
                sender=sender, request_id=rid(), epoch=epoch, reason=FinishReason.CANCELLED
            )
        )


def only(effects: list[ef.Effect], kind: type[_Effect]) -> list[_Effect]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[ef.Effect], kind: type[_Effect]) -> list[tuple[NodeId, _Effect]]:
    """(neighbour, message) of the messages of one kind."""
    return [
        (effect.neighbour_id, effect.message)
        for effect in only(effects, ef.Send)
        if isinstance(effect.message, kind)
    ]


def to_gateway(effects: list[ef.Effect], kind: type[_Effect]) -> list[_Effect]:
    """Messages of one kind to the gateway."""
    return [
        effect.message
        for effect in only(effects, ef.SendToGateway)
        if isinstance(effect.message, kind)
    ]


def broken_code(effects: list[ef.Effect]) -> str:
    """The reason word of the one Broken that reached the gateway."""
    (broken,) = to_gateway(effects, Broken)
    return broken.reason.code


__all__ = ["Activations", "Broken", "Close", "Token"]
