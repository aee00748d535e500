"""Messages as bytes and back; what strangers may send."""

from dataclasses import replace

import pytest

from node.core import events as ev
from node.core.messages import Activations, Broken, Close, Opened, StatusCode, Token
from node.transport import encode
from node.transport.decode import (
    PENALTY_IDS_MAX,
    REQUEST_ID_CHARS_MAX,
    STOP_TOKENS_MAX,
    FrameReader,
)
from plait.clock import ManualClock
from plait.errors import OverloadedError, TicketError
from plait.types import (
    DType,
    FinishReason,
    ModelId,
    NodeId,
    Reason,
    RequestId,
    RouteTicket,
    TokenLogprob,
)
from plait.wire.v1 import common_pb2, data_pb2
from tests.unit.node.story import A, opened, rid, stages

CLOCK = ManualClock()


def ticket(index: int = 1) -> RouteTicket:
    order = opened(index)
    return RouteTicket(
        ticket_id="t",
        network_id="n",
        request_id=order.request_id,
        epoch=order.epoch,
        model_id=order.model_id,
        stages=order.stages,
        kv_tokens=order.kv_tokens,
        issued_unix_ms=CLOCK.unix_ms(),
        expires_unix_ms=CLOCK.unix_ms() + order.valid_ms,
        wire_dtype=order.wire_dtype,
    )


class Tickets:
    """Accepts everything as `ticket()`, or raises; remembers what it was asked."""

    def __init__(
        self, error: Exception | None = None, *, request_id: RequestId | None = None
    ) -> None:
        self.error = error
        self.request_id = request_id
        self.asked: list[tuple[int, ModelId | None, NodeId | None, int]] = []

    def verify(
        self,
        ticket: object,
        *,
        stage_index: int,
        held_model: ModelId | None,
        sender_node_id: NodeId | None,
        incarnation: int,
    ) -> RouteTicket:
        self.asked.append((stage_index, held_model, sender_node_id, incarnation))
        if self.error is not None:
            raise self.error
        accepted: RouteTicket = globals()["ticket"](1)
        return replace(accepted, request_id=self.request_id or accepted.request_id)


def reader(tickets: Tickets | None = None) -> FrameReader:
    return FrameReader(
        tickets=tickets or Tickets(),
        clock=CLOCK,
        incarnation=3,
        held_model=lambda: ModelId("tiny"),
    )


def read(data: bytes, tickets: Tickets | None = None) -> ev.DataEvent:
    return reader(tickets).link_event(A, data_pb2.LinkFrame.FromString(data))


@pytest.mark.parametrize("dtype", list(DType))
def test_a_decode_frame_is_the_rows_and_at_most_128_bytes(dtype: DType) -> None:
    payload = b"\xff" * (576 * dtype.num_bytes)
    rows = Activations(RequestId("x" * 32), 2**20, 2**30, 1, payload, sample=True, dtype=dtype)
    assert len(encode.link_frame(2**60, rows)) <= len(payload) + 128


def test_rows_survive_the_wire() -> None:
    rows = Activations(rid(), 2, 7, 3, b"abc", sample=True)
    event = read(encode.link_frame(1, rows))
    assert isinstance(event, ev.ActivationsReceived)
    got = event.activations
    assert (event.sender, got.request_id, got.epoch, got.position) == (A, "r1", 2, 7)
    assert (got.num_tokens, got.payload, got.sample, got.dtype) == (3, b"abc", True, None)


def test_one_row_is_told_as_none() -> None:
    frame = data_pb2.LinkFrame.FromString(
        encode.link_frame(1, Activations(rid(), 1, 0, 1, b"", sample=False))
    )
    assert frame.activations.num_tokens == 0
    event = reader().link_event(A, frame)
    assert isinstance(event, ev.ActivationsReceived)
    assert event.activations.num_tokens == 1


def test_a_ring_token_carries_no_logprobs_and_the_gateways_does() -> None:
    token = Token(
        rid(),
        1,
        5,
        9,
        finish_reason=FinishReason.STOP,
        logprob=-0.5,
        top_logprobs=(TokenLogprob(9, -0.5),),
    )
    ring = data_pb2.LinkFrame.FromString(encode.link_frame(1, token)).token
    up = data_pb2.NodeToGateway.FromString(encode.gateway_frame(token)).token
    assert not ring.HasField("logprob")
    assert len(ring.top_logprobs) == 0
    assert (up.logprob, up.top_logprobs[0].token_id) == (-0.5, 9)
    event = read(encode.link_frame(1, token))
    assert isinstance(event, ev.TokenReceived)
    assert (event.token.token_id, event.token.finish_reason) == (9, FinishReason.STOP)


def test_close_broken_and_opened_survive_the_wire() -> None:
    close = Close(request_id=rid(), epoch=2, reason=FinishReason.LENGTH)
    event = read(encode.link_frame(1, close))
    assert event == ev.CloseReceived(
        sender=A, request_id=rid(), epoch=2, reason=FinishReason.LENGTH
    )
    broken = Broken(
        request_id=rid(),
        epoch=2,
        stage_index=1,
        node_id=A,
        code=StatusCode.PERMISSION_DENIED,
        reason=Reason(code="ticket_forged", message="no"),
    )
    assert read(encode.link_frame(1, broken)) == ev.BrokenReceived(A, broken)
    up = data_pb2.NodeToGateway.FromString(encode.gateway_frame(broken)).broken
    assert (up.status.code, up.status.reason) == (7, "ticket_forged")
    frame = encode.gateway_frame(Opened(request_id=rid(), epoch=2, cached_tokens=48))
    opened_up = data_pb2.NodeToGateway.FromString(frame).opened
    assert (opened_up.epoch, opened_up.cached_tokens) == (2, 48)


def test_an_open_is_passed_on_one_stage_further_with_the_same_ticket() -> None:
    frame = data_pb2.LinkFrame.FromString(encode.link_frame(1, opened(0)))
    assert frame.open.stage_index == 1
    assert (frame.open.ticket.payload, frame.open.ticket.signature) == (b"payload", b"signature")
    tickets = Tickets()
    event = reader(tickets).link_event(A, frame)
    assert tickets.asked == [(1, "tiny", A, 3)]
    assert event == ev.OpenReceived(A, opened(1))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TicketError("no", reason="ticket_forged"), StatusCode.PERMISSION_DENIED),
        (TicketError("no", reason="ticket_expired"), StatusCode.PERMISSION_DENIED),
        (OverloadedError("full"), StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_a_bad_ticket_becomes_a_refusal(
    error: TicketError | OverloadedError, code: StatusCode
) -> None:
    event = read(encode.link_frame(1, opened(0)), Tickets(error))
    assert isinstance(event, ev.OpenRefused)
    assert (event.sender, event.code, event.reason.code) == (A, code, error.code)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"stage_index": 7}, "ticket_wrong_hop"),
        ({"stop_token_ids": range(STOP_TOKENS_MAX + 1)}, "open_invalid"),
        ({"penalty_prompt_ids": [1] * (PENALTY_IDS_MAX + 1)}, "open_invalid"),
        (
            {"penalty_prompt_ids": [1] * PENALTY_IDS_MAX, "penalty_generated_ids": [1]},
            "open_invalid",
        ),
        ({"sampling": common_pb2.SamplingParams(temperature=float("nan"))}, "sampling_invalid"),
    ],
    ids=["stage", "stop ids", "penalty ids", "both kinds of penalty ids", "sampling"],
)
def test_an_open_with_nonsense_beside_its_ticket_is_refused(
    change: dict[str, object], code: str
) -> None:
    sampling = {"sampling": common_pb2.SamplingParams()} | change
    message = data_pb2.Open(ticket=data_pb2.Ticket(payload=b"p"), **sampling)  # type: ignore[arg-type]
    event = reader().link_event(A, data_pb2.LinkFrame(sequence=1, open=message))
    assert isinstance(event, ev.OpenRefused)
    assert event.reason.code == code


def test_what_is_allowed_beside_a_ticket_passes() -> None:
    message = data_pb2.Open(
        ticket=data_pb2.Ticket(payload=b"p"),
        stop_token_ids=range(STOP_TOKENS_MAX),
        penalty_prompt_ids=[1] * PENALTY_IDS_MAX,
        sampling=common_pb2.SamplingParams(),
    )
    event = reader().link_event(A, data_pb2.LinkFrame(sequence=1, open=message))
    assert isinstance(event, ev.OpenReceived)


def test_a_request_may_not_have_a_name_of_any_length() -> None:
    def event(name: str) -> ev.DataEvent:
        tickets = Tickets(request_id=RequestId(name))
        message = data_pb2.Open(sampling=common_pb2.SamplingParams())
        return reader(tickets).link_event(A, data_pb2.LinkFrame(sequence=1, open=message))

    assert isinstance(event("x" * REQUEST_ID_CHARS_MAX), ev.OpenReceived)
    refused = event("x" * (REQUEST_ID_CHARS_MAX + 1))
    assert isinstance(refused, ev.OpenRefused)
    assert refused.reason.code == "open_invalid"


def test_an_unknown_dtype_is_rejected_under_its_requests_name() -> None:
    rows = data_pb2.Activations(request_id="r1", epoch=1, payload=b"x")
    rows.dtype = 99  # type: ignore[assignment]
    event = reader().link_event(A, data_pb2.LinkFrame(sequence=1, activations=rows))
    assert isinstance(event, ev.FrameRejected)
    assert (event.request_id, event.reason.code) == ("r1", "dtype_unknown")


def test_an_empty_frame_is_rejected() -> None:
    assert isinstance(reader().link_event(A, data_pb2.LinkFrame(sequence=1)), ev.FrameRejected)


def test_a_start_carries_the_prompt_and_no_sender() -> None:
    start = data_pb2.StartRequest(open=data_pb2.Open(stage_index=1), prompt_token_ids=[1, 2])
    tickets = Tickets()
    data = data_pb2.GatewayToNode(start=start).SerializeToString()
    event = reader(tickets).gateway_event(data)
    assert isinstance(event, ev.RequestStarted)
    assert (event.prompt_token_ids, tickets.asked[0][2]) == ((1, 2), None)
    assert event.open.stages == stages((A, NodeId("b"), NodeId("c")))


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b""])
def test_an_unreadable_message_of_the_gateway_is_rejected(data: bytes) -> None:
    assert isinstance(reader().gateway_event(data), ev.FrameRejected)


def test_guesses_survive_the_wire_and_so_does_what_stages_take() -> None:
    rows = Activations(rid(), 2, 7, 3, b"abc", sample=True, drafted_ids=(9, 300))
    event = read(encode.link_frame(1, rows))
    assert isinstance(event, ev.ActivationsReceived)
    assert event.activations.drafted_ids == (9, 300) and not event.activations.is_prompt
    event = read(encode.link_frame(1, Token(rid(), 1, 5, 9, drafts_max=4)))
    assert isinstance(event, ev.TokenReceived) and event.token.drafts_max == 4
    for said, sent in ((None, False), (0, False), (7, True)):
        frame = data_pb2.LinkFrame.FromString(encode.link_frame(1, opened(0, drafts_max=said)))
        assert frame.open.HasField("drafts_max") is sent
        assert frame.open.drafts_max == (said or 0)
