"""The relay: only the last stage of the current epoch may speak, in order; all else is dropped."""

import asyncio
import math

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.gateway.generation import Generation
from coordinator.gateway.links import NodeLink
from coordinator.gateway.relay import Relay
from plait.clock import ManualClock
from plait.errors import FrameError
from plait.types import (
    DType,
    FinishReason,
    LayerSpan,
    ModelId,
    NodeId,
    PipelineId,
    Reason,
    RequestId,
    SamplingParams,
    Stage,
)
from plait.wire.tickets import decode_payload
from plait.wire.v1 import common_pb2, data_pb2
from tests.kit.inbox import ListInbox
from tests.kit.scripted_network import EOS_ID, ByteTokenizer

A, B, C = NodeId("na"), NodeId("nb"), NodeId("nc")
R = RequestId("r")
ROUTE = (Stage(A, 1, LayerSpan(0, 1)), Stage(B, 1, LayerSpan(1, 3)), Stage(C, 1, LayerSpan(3, 4)))


class Rig:
    """A relay with three attached nodes and one generation."""

    def __init__(
        self, sampling: SamplingParams | None = None, *, draft_tokens: int | None = None
    ) -> None:
        self.inbox = ListInbox()
        self.relay = Relay(
            inbox=self.inbox,
            sign=lambda payload: b"s" * 64,
            network_id="net",
            clock=ManualClock(),
            new_id=lambda: "ticket-1",
            ticket_life_ms=1000,
        )
        self.links: dict[NodeId, NodeLink] = {n: self.relay.attach(n, 1) for n in (A, B, C)}
        self.generation = Generation(
            request_id=R,
            model_id=ModelId("tiny"),
            key_id="k",
            prompt_ids=[7, 7, 8],
            max_new_tokens=10,
            sampling=sampling if sampling is not None else SamplingParams(),
            stop=(),
            stop_token_ids=(EOS_ID,),
            vocab_size=257,
            tokenizer=ByteTokenizer(),
            clock=ManualClock(),
            draft_tokens=draft_tokens,
        )
        self.relay.add(self.generation)
        self.inbox.take()

    def open(self, epoch: int = 1, hop_dtypes: tuple[DType, ...] = ()) -> None:
        self.relay.perform_request(
            fx.OpenRoute(
                request_id=R,
                epoch=epoch,
                pipeline_id=PipelineId(epoch),
                model_id=ModelId("tiny"),
                route=ROUTE,
                addresses=(("a:1",), ("b:1",), ("c:1",)),
                kv_tokens=13,
                hop_dtypes=hop_dtypes,
            )
        )

    def opened(self, epoch: int = 1, node_id: NodeId = C) -> None:
        message = data_pb2.Opened(request_id=R, epoch=epoch)
        self.relay.receive(node_id, data_pb2.NodeToGateway(opened=message))

    def token(
        self,
        position: int,
        token_id: int = 97,
        *,
        epoch: int = 1,
        node_id: NodeId = C,
        logprob: float | None = None,
        top: tuple[int, ...] = (),
        finish: "common_pb2.FinishReason.ValueType" = common_pb2.FINISH_REASON_UNSPECIFIED,
    ) -> None:
        message = data_pb2.SampledToken(
            request_id=R,
            epoch=epoch,
            position=position,
            token_id=token_id,
            logprob=logprob,
            finish_reason=finish,
            top_logprobs=[common_pb2.TokenLogprob(token_id=each, logprob=-1.0) for each in top],
        )
        self.relay.receive(node_id, data_pb2.NodeToGateway(token=message))

    def broken(self, *, epoch: int = 1, node_id: NodeId = B, blamed: str = C) -> None:
        status = common_pb2.Status(reason="hop_lost", message="gone")
        message = data_pb2.Broken(request_id=R, epoch=epoch, node_id=blamed, status=status)
        self.relay.receive(node_id, data_pb2.NodeToGateway(broken=message))

    async def sent(self, node_id: NodeId) -> data_pb2.GatewayToNode:
        async with asyncio.timeout(1):
            message = await self.links[node_id].next_message()
        assert message is not None
        return message


async def test_a_route_opens_with_a_ticket_and_the_prompt() -> None:
    rig = Rig()
    rig.open()
    start = (await rig.sent(A)).start
    ticket = decode_payload(start.open.ticket.payload)
    assert list(start.prompt_token_ids) == [7, 7, 8]
    assert (start.open.prompt_tokens, start.open.max_new_tokens) == (3, 10)
    assert list(start.open.stop_token_ids) == [EOS_ID]
    assert (ticket.network_id, ticket.request_id, ticket.epoch) == ("net", R, 1)
    assert ticket.kv_tokens == 13
    assert [stage.node_id for stage in ticket.stages] == [A, B, C]
    assert [stage.addresses for stage in ticket.stages] == [("a:1",), ("b:1",), ("c:1",)]
    assert ticket.expires_unix_ms - ticket.issued_unix_ms == 1000
    assert start.open.ticket.signature == b"s" * 64
    assert not start.open.penalty_prompt_ids


async def test_a_ticket_says_what_each_hop_carries() -> None:
    rig = Rig()
    rig.open(hop_dtypes=(DType.INT8, DType.FLOAT16, DType.FLOAT32))
    ticket = decode_payload((await rig.sent(A)).start.open.ticket.payload)
    assert [ticket.hop_dtype(0), ticket.hop_dtype(1)] == [DType.INT8, DType.FLOAT16]


async def test_tokens_become_events_once_each() -> None:
    rig = Rig()
    rig.open()
    rig.opened()
    rig.token(3)
    rig.token(4)
    rig.token(5, EOS_ID, finish=common_pb2.FINISH_REASON_STOP)
    assert rig.inbox.take() == [
        ev.RouteOpened(request_id=R, epoch=1),
        ev.FirstTokenSent(request_id=R, epoch=1),
        ev.LastTokenSent(request_id=R, epoch=1, finish_reason=FinishReason.STOP, num_generated=3),
    ]
    assert rig.generation.generated_ids == [97, 97, EOS_ID]


async def test_wrong_senders_old_epochs_and_duplicates_are_dropped_and_counted() -> None:
    rig = Rig()
    rig.open(2)
    rig.opened(2, node_id=B)
    rig.opened(1)
    rig.token(3, epoch=2)
    rig.opened(2)
    rig.opened(2)
    rig.token(3, epoch=2, node_id=A)
    rig.token(3, epoch=1)
    rig.token(3, epoch=3)
    rig.token(3, epoch=2)
    rig.token(3, epoch=2)
    rig.broken(epoch=1)
    rig.broken(epoch=2, node_id=NodeId("stranger"))
    assert rig.generation.generated_ids == [97]
    assert rig.inbox.take() == [
        ev.RouteOpened(request_id=R, epoch=2),
        ev.FirstTokenSent(request_id=R, epoch=2),
    ]
    assert rig.relay.dropped == {
        "wrong_sender": 3,
        "late": 4,
        "token_before_opened": 1,
        "duplicate_opened": 1,
        "duplicate_token": 1,
    }


@pytest.mark.parametrize(
    ("position", "token_id", "logprob", "top", "code"),
    [
        (4, 97, None, (), "token_gap"),
        (3, 300, None, (), "frame_invalid"),
        (3, 97, math.nan, (), "frame_invalid"),
        (3, 97, -0.5, (97, 300), "frame_invalid"),
    ],
)
async def test_a_bad_token_breaks_the_route_and_blames_the_sender(
    position: int, token_id: int, logprob: float | None, top: tuple[int, ...], code: str
) -> None:
    rig = Rig()
    rig.open()
    rig.opened()
    rig.inbox.take()
    rig.token(position, token_id, logprob=logprob, top=top)
    (broke,) = rig.inbox.take()
    assert isinstance(broke, ev.RouteBroke)
    assert (broke.node_id, broke.reason.code, broke.num_generated) == (C, code, 0)
    rig.token(3)
    assert rig.generation.generated_ids == []


@pytest.mark.parametrize(
    "finish", [common_pb2.FINISH_REASON_ERROR, common_pb2.FINISH_REASON_CANCELLED]
)
async def test_a_node_cannot_end_a_request_as_failed_by_a_token(
    finish: "common_pb2.FinishReason.ValueType",
) -> None:
    rig = Rig()
    rig.open()
    rig.opened()
    rig.token(3, finish=finish)
    assert rig.generation.finished is None
    rig.token(4)
    assert rig.generation.generated_ids == [97, 97]


@pytest.mark.parametrize("draft_tokens", [None, 0, 3])
async def test_the_first_stage_hears_how_much_may_be_guessed(draft_tokens: int | None) -> None:
    rig = Rig(draft_tokens=draft_tokens)
    rig.open()
    opened = (await rig.sent(A)).start.open
    assert (opened.drafts_max if opened.HasField("drafts_max") else None) == draft_tokens


async def test_a_second_attempt_goes_on_where_the_first_one_stopped() -> None:
    rig = Rig(SamplingParams(repetition_penalty=1.2))
    rig.open()
    rig.opened()
    rig.token(3, 97)
    rig.token(4, 98)
    rig.broken(blamed="stranger")
    broke = rig.inbox.take()[-1]
    assert isinstance(broke, ev.RouteBroke)
    assert broke.node_id is None
    await rig.sent(A)
    rig.open(2)
    start = (await rig.sent(A)).start
    assert list(start.prompt_token_ids) == [7, 7, 8, 97, 98]
    assert (start.open.prompt_tokens, start.open.max_new_tokens) == (5, 8)
    assert list(start.open.penalty_prompt_ids) == [7, 8]
    assert list(start.open.penalty_generated_ids) == [97, 98]
    rig.token(5, 99, epoch=1)
    rig.opened(2)
    rig.token(5, 99, epoch=2)
    assert rig.generation.generated_ids == [97, 98, 99]


@pytest.mark.parametrize("node_id", [A, C])
async def test_a_lost_link_of_the_first_or_last_stage_breaks_its_routes(node_id: NodeId) -> None:
    rig = Rig()
    rig.open()
    rig.inbox.take()
    rig.relay.detach(rig.links[node_id])
    down, broke = rig.inbox.take()
    assert down == ev.GatewayLinkChanged(node_id=node_id, incarnation=1, is_up=False)
    assert isinstance(broke, ev.RouteBroke)
    assert broke.node_id == node_id
    rig.open(2)
    (again,) = rig.inbox.take()
    assert isinstance(again, ev.RouteBroke)
    assert (again.epoch, again.node_id, again.reason.code) == (2, node_id, "gateway_link_down")


async def test_a_middle_stage_may_lose_its_link() -> None:
    rig = Rig()
    rig.open()
    rig.relay.detach(rig.links[B])
    assert not [event for event in rig.inbox.take() if isinstance(event, ev.RouteBroke)]


async def test_a_newer_stream_replaces_the_older_one() -> None:
    rig = Rig()
    newer = rig.relay.attach(A, 2)
    assert await rig.links[A].next_message() is None
    rig.relay.detach(rig.links[A])
    assert rig.relay.is_attached(A)
    assert rig.inbox.take() == [
        ev.GatewayLinkChanged(node_id=A, incarnation=1, is_up=False),
        ev.GatewayLinkChanged(node_id=A, incarnation=2, is_up=True),
    ]
    rig.open()
    async with asyncio.timeout(1):
        assert (await newer.next_message()) is not None


async def test_close_goes_to_every_stage_that_can_hear_it() -> None:
    rig = Rig()
    rig.open()
    await rig.sent(A)
    rig.relay.detach(rig.links[B])
    rig.relay.perform_request(
        fx.CloseRoute(
            request_id=R,
            epoch=1,
            pipeline_id=PipelineId(1),
            route=ROUTE,
            finish_reason=FinishReason.CANCELLED,
        )
    )
    for node_id in (A, C):
        close = (await rig.sent(node_id)).close
        assert (close.request_id, close.epoch) == (R, 1)
        assert close.reason == common_pb2.FINISH_REASON_CANCELLED
    rig.opened()
    assert rig.relay.dropped["late"] == 1


async def test_the_core_ends_a_request_and_the_relay_forgets_it() -> None:
    rig = Rig()
    reason = Reason(code="span_unavailable", message="no layers")
    rig.relay.perform_request(
        fx.EndRequest(request_id=R, finish_reason=FinishReason.ERROR, reason=reason)
    )
    assert rig.generation.finished is not None
    assert str(rig.generation.finished.error) == "no layers"
    assert rig.relay.num_generations == 0
    assert rig.relay.progress() == {R: 0}, "views still ask how long it had become"
    rig.open()
    assert rig.inbox.take() == [ev.RequestCancelled(request_id=R)]


async def test_events_wait_in_order_while_the_inbox_is_full() -> None:
    rig = Rig()
    rig.open()
    rig.inbox.is_full = True
    rig.opened()
    rig.token(3)
    rig.inbox.is_full = False
    rig.token(4, finish=common_pb2.FINISH_REASON_LENGTH)
    assert rig.inbox.events == []
    async with asyncio.timeout(2):
        while len(rig.inbox.events) < 3:  # noqa: ASYNC110 - a plain list carries no event
            await asyncio.sleep(0.01)
    assert [type(event).__name__ for event in rig.inbox.events] == [
        "RouteOpened",
        "FirstTokenSent",
        "LastTokenSent",
    ]


async def test_a_node_that_does_not_read_is_cut_off() -> None:
    link = NodeLink(A, 1, outbox_max=2)
    message = data_pb2.GatewayToNode(close=data_pb2.Close(request_id=R))
    assert [link.send(message) for _ in range(4)] == [True, True, False, False]
    assert await link.next_message() is None


async def test_an_empty_message_is_the_nodes_mistake() -> None:
    rig = Rig()
    with pytest.raises(FrameError):
        rig.relay.receive(A, data_pb2.NodeToGateway())
