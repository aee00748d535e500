"""Tickets: one right way in, and every wrong one told apart."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.clock import ManualClock
from plait.crypto.identity import new_ed25519
from plait.crypto.tickets import SKEW_MS, TicketSigner, TicketVerifier
from plait.errors import OverloadedError, TicketError
from plait.types import (
    DType,
    LayerSpan,
    ModelId,
    NodeId,
    RequestId,
    RouteTicket,
    TicketStage,
)
from plait.wire.tickets import decode_payload, signed_ticket
from plait.wire.v1 import data_pb2

MODEL = ModelId("smol")
A, B, C = NodeId("na"), NodeId("nb"), NodeId("nc")
LIFE_MS = 600_000
KEY = new_ed25519()


@dataclass
class Scene:
    """Node B, which holds the middle of a route A, B, C."""

    clock: ManualClock
    signer: TicketSigner
    verifier: TicketVerifier

    def ticket(self, **changes: object) -> RouteTicket:
        now_ms = self.clock.unix_ms()
        ticket = RouteTicket(
            ticket_id="t1",
            network_id="net",
            request_id=RequestId("r1"),
            epoch=1,
            model_id=MODEL,
            stages=tuple(
                TicketStage(
                    node_id=node_id,
                    incarnation=7,
                    span=LayerSpan(at, at + 10),
                    addresses=("127.0.0.1:1",),
                )
                for node_id, at in ((A, 0), (B, 10), (C, 20))
            ),
            kv_tokens=128,
            issued_unix_ms=now_ms,
            expires_unix_ms=now_ms + LIFE_MS,
            wire_dtype=DType.FLOAT32,
        )
        return replace(ticket, **changes)  # type: ignore[arg-type]

    def signed(self, **changes: object) -> data_pb2.Ticket:
        return signed_ticket(self.ticket(**changes), self.signer.sign)

    def verify(self, ticket: data_pb2.Ticket, **changes: object) -> RouteTicket:
        hop: dict[str, object] = {
            "stage_index": 1,
            "held_model": MODEL,
            "sender_node_id": A,
            "incarnation": 7,
        }
        return self.verifier.verify(ticket, **{**hop, **changes})  # type: ignore[arg-type]

    def refusal(self, ticket: data_pb2.Ticket, **changes: object) -> str:
        with pytest.raises(TicketError) as caught:
            self.verify(ticket, **changes)
        return caught.value.code


def make_scene(remembered_max: int = 1000) -> Scene:
    clock, signer = ManualClock(), TicketSigner(KEY)
    verifier = TicketVerifier(
        public_key=signer.public_bytes,
        network_id="net",
        node_id=B,
        clock=clock,
        decode=decode_payload,
        remembered_max=remembered_max,
    )
    return Scene(clock, signer, verifier)


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def test_a_good_ticket_says_what_was_signed(scene: Scene) -> None:
    assert scene.verify(scene.signed()) == scene.ticket()


def test_a_ticket_works_once_on_a_stage(scene: Scene) -> None:
    ticket = scene.signed()
    scene.verify(ticket)
    assert scene.refusal(ticket) == "ticket_replayed"
    scene.verify(scene.signed(ticket_id="t2", epoch=2))


def test_a_refused_ticket_is_not_used_up(scene: Scene) -> None:
    ticket = scene.signed()
    assert scene.refusal(ticket, sender_node_id=C) == "ticket_wrong_hop"
    scene.verify(ticket)


def test_a_forged_ticket(scene: Scene) -> None:
    ticket = scene.signed()
    forged = signed_ticket(scene.ticket(kv_tokens=9999), TicketSigner(new_ed25519()).sign)
    assert scene.refusal(forged) == "ticket_forged"
    other = scene.signed(kv_tokens=9999)
    swapped = data_pb2.Ticket(payload=other.payload, signature=ticket.signature)
    assert scene.refusal(swapped) == "ticket_forged"
    bare = KEY.sign(ticket.payload)  # the same key in another role signs without our context
    assert scene.refusal(data_pb2.Ticket(payload=ticket.payload, signature=bare)) == (
        "ticket_forged"
    )


@pytest.mark.parametrize("length", [0, 1, 63, 65])
def test_a_signature_of_the_wrong_length(scene: Scene, length: int) -> None:
    ticket = scene.signed()
    ticket.signature = (ticket.signature * 2)[:length]
    assert scene.refusal(ticket) == "ticket_forged"


def test_a_ticket_of_another_network(scene: Scene) -> None:
    assert scene.refusal(scene.signed(network_id="other")) == "ticket_wrong_network"


def test_a_ticket_expires_after_its_life_and_the_skew(scene: Scene) -> None:
    ticket, second = scene.signed(), scene.signed(ticket_id="t2")
    scene.clock.advance(LIFE_MS + SKEW_MS)
    scene.verify(ticket)
    scene.clock.advance(1)
    assert scene.refusal(second) == "ticket_expired"


def test_a_ticket_from_a_clock_ahead(scene: Scene) -> None:
    now_ms = scene.clock.unix_ms()
    ahead = {"expires_unix_ms": now_ms + LIFE_MS}
    scene.verify(scene.signed(issued_unix_ms=now_ms + SKEW_MS, **ahead))
    late = scene.signed(ticket_id="t2", issued_unix_ms=now_ms + SKEW_MS + 1, **ahead)
    assert scene.refusal(late) == "ticket_expired"


@pytest.mark.parametrize(
    "hop",
    [
        {"stage_index": 0},
        {"stage_index": 2},
        {"stage_index": 3},
        {"stage_index": -1},
        {"sender_node_id": C},
        {"sender_node_id": None},
        {"incarnation": 8},
        {"held_model": ModelId("another")},
        {"held_model": None},
    ],
)
def test_a_ticket_on_the_wrong_hop(scene: Scene, hop: dict[str, object]) -> None:
    assert scene.refusal(scene.signed(), **hop) == "ticket_wrong_hop"


def test_a_ticket_for_another_node_by_the_right_sender(scene: Scene) -> None:
    a, b, c = scene.ticket().stages
    stages = (a, replace(b, node_id=NodeId("nother")), c)
    assert scene.refusal(scene.signed(stages=stages)) == "ticket_wrong_hop"


def test_the_first_stage_hears_from_the_gateway_alone(scene: Scene) -> None:
    stages = scene.ticket().stages
    first = (replace(stages[1], span=LayerSpan(0, 10)),)
    ticket = scene.signed(stages=first)
    assert scene.refusal(ticket, stage_index=0, sender_node_id=A) == "ticket_wrong_hop"
    scene.verify(ticket, stage_index=0, sender_node_id=None)


def test_a_node_may_run_two_stages_of_a_route(scene: Scene) -> None:
    stages = scene.ticket().stages
    route = (*stages, replace(stages[1], span=LayerSpan(30, 40)))
    ticket = scene.signed(stages=route)
    scene.verify(ticket)
    scene.verify(ticket, stage_index=3, sender_node_id=C)
    assert scene.refusal(ticket, stage_index=3, sender_node_id=C) == "ticket_replayed"


@pytest.mark.parametrize(
    "change",
    [
        {"ticket_id": ""},
        {"ticket_id": "x" * 65},
        {"request_id": ""},
        {"epoch": 0},
        {"kv_tokens": 0},
        {"stages": ()},
        {"expires_unix_ms": 1},
    ],
)
def test_a_signed_ticket_with_nonsense_in_it(scene: Scene, change: dict[str, object]) -> None:
    assert scene.refusal(scene.signed(**change)) == "ticket_malformed"


def test_a_route_with_a_gap_or_an_overlap(scene: Scene) -> None:
    a, b, c = scene.ticket().stages
    for start in (9, 11):
        stages = (a, replace(b, span=LayerSpan(start, 20)), c)
        assert scene.refusal(scene.signed(stages=stages)) == "ticket_malformed"


def test_bytes_that_are_no_ticket(scene: Scene) -> None:
    for payload in (b"", b"\xff" * 40, b"x" * 70_000):
        ticket = data_pb2.Ticket(payload=payload, signature=scene.signer.sign(payload))
        assert scene.refusal(ticket) == "ticket_malformed"


@given(payload=st.binary(max_size=200), signature=st.binary(max_size=80), is_signed=st.booleans())
def test_random_bytes_raise_ticket_error_and_nothing_else(
    payload: bytes, signature: bytes, is_signed: bool
) -> None:
    scene = make_scene()
    if is_signed:
        signature = scene.signer.sign(payload)
    with pytest.raises(TicketError):
        scene.verify(data_pb2.Ticket(payload=payload, signature=signature))
    assert scene.verifier.num_remembered == 0


@given(data=st.data())
def test_a_signed_but_damaged_payload_raises_ticket_error_or_is_read(data: st.DataObject) -> None:
    scene = make_scene()
    payload = bytearray(scene.signed().payload)
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    content = bytes(payload)
    ticket = data_pb2.Ticket(payload=content, signature=scene.signer.sign(content))
    try:
        scene.verify(ticket)
    except TicketError as error:
        assert error.code.startswith("ticket_")


def test_memory_is_bounded_by_time_and_by_number(scene: Scene) -> None:
    for number in range(50):
        scene.verify(scene.signed(ticket_id=f"t{number}"))
    assert scene.verifier.num_remembered == 50
    scene.clock.advance(LIFE_MS + SKEW_MS + 1)
    scene.verify(scene.signed(ticket_id="fresh"))
    assert scene.verifier.num_remembered == 1

    small = make_scene(remembered_max=2)
    small.verify(small.signed(ticket_id="a"))
    small.verify(small.signed(ticket_id="b"))
    with pytest.raises(OverloadedError):
        small.verify(small.signed(ticket_id="c"))
    assert small.refusal(small.signed(ticket_id="a")) == "ticket_replayed"


def test_a_ticket_is_remembered_as_long_as_it_could_be_used(scene: Scene) -> None:
    """Its life and the skew: one that others end within the skew does not make the node forget."""
    used, unused = scene.signed(), scene.signed(ticket_id="unused")
    scene.verify(used)
    scene.clock.advance(LIFE_MS + SKEW_MS // 2)
    scene.verify(scene.signed(ticket_id="fresh"))
    assert scene.refusal(used) == "ticket_replayed"
    scene.verify(unused)


def test_a_clock_set_back_does_not_revive_a_forgotten_ticket(scene: Scene) -> None:
    old = scene.signed()
    scene.verify(old)
    scene.clock.advance(LIFE_MS + SKEW_MS + 1)
    scene.verify(scene.signed(ticket_id="later"))
    scene.clock.advance(-LIFE_MS)
    assert scene.refusal(old) == "ticket_expired"
    scene.verify(scene.signed(ticket_id="new", issued_unix_ms=scene.clock.unix_ms()))


def test_a_coordinator_whose_clock_was_ahead_and_is_right_again_is_believed(scene: Scene) -> None:
    scene.clock.advance(LIFE_MS * 6)
    scene.verify(scene.signed(issued_unix_ms=scene.clock.unix_ms()))
    scene.clock.advance(LIFE_MS * 2)
    scene.verify(scene.signed(ticket_id="later", issued_unix_ms=scene.clock.unix_ms()))
    scene.clock.advance(-LIFE_MS * 7)
    now = scene.signed(ticket_id="now", issued_unix_ms=scene.clock.unix_ms())
    assert scene.refusal(now) == "ticket_expired"
    scene.verifier.accept_earlier()
    scene.verify(now)
    assert scene.refusal(now) == "ticket_replayed"
