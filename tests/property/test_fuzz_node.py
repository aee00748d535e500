"""Malformed frames against a node: what neighbours, the gateway and the coordinator may send.

`PLAIT_FUZZ_FRAMES=100000` for a long run by hand.
"""

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from node.agent.reports import command_event, welcome_event
from node.core import effects as ef
from node.core import events as ev
from node.core.messages import Activations, Broken, Close, PrefixShort, StatusCode, Token
from node.ports import Signed
from node.transport import encode
from node.transport.decode import FrameReader
from plait.clock import ManualClock
from plait.crypto.tickets import check_hop, check_shape
from plait.errors import FrameError
from plait.types import (
    DType,
    FinishReason,
    LayerSpan,
    ModelId,
    NodeId,
    Reason,
    RequestId,
    RouteTicket,
    TicketStage,
)
from plait.wire.tickets import decode_payload, ticket_payload
from plait.wire.v1 import common_pb2, control_pb2, data_pb2
from tests.kit.mutator import EXAMPLES, Memory, mutants
from tests.unit.node.story import ROW, A, B, C, Outcome, Story, only, opened, rid, sent

SEEDS = st.integers(0, 2**32 - 1)
STRANGER = NodeId("stranger")


class TrustingTickets:
    """Believes every signature, so that what is behind the ticket is reached."""

    def verify(
        self,
        ticket: Signed,
        *,
        stage_index: int,
        held_model: ModelId | None,
        sender_node_id: NodeId | None,
        incarnation: int,
    ) -> RouteTicket:
        content = decode_payload(ticket.payload)
        check_shape(content)
        check_hop(
            content,
            stage_index=stage_index,
            node_id=B,
            held_model=held_model,
            sender_node_id=sender_node_id,
            incarnation=incarnation,
        )
        return content


def _payload(request: str, epoch: int, names: tuple[NodeId, ...], kv_tokens: int = 64) -> bytes:
    spans = {1: ((0, 6),), 2: ((0, 3), (3, 6)), 3: ((0, 2), (2, 4), (4, 6))}[len(names)]
    return ticket_payload(
        RouteTicket(
            ticket_id=f"{request}-{epoch}",
            network_id="net",
            request_id=RequestId(request),
            epoch=epoch,
            model_id=ModelId("tiny"),
            stages=tuple(
                TicketStage(
                    node_id=name, incarnation=1, span=LayerSpan(*span), addresses=(f"{name}:1",)
                )
                for name, span in zip(names, spans, strict=True)
            ),
            kv_tokens=kv_tokens,
            issued_unix_ms=1,
            expires_unix_ms=2_000_000_000_000,
            wire_dtype=DType.FLOAT32,
        )
    ).SerializeToString()


def _links() -> list[bytes]:
    """What a neighbour may say of its own requests, some of them twice."""
    frames = []
    for epoch in (1, 2, 3):
        order = opened(0, names=(A, B, C), epoch=epoch)
        frames.append(encode.link_frame(1, order))
        frame = data_pb2.LinkFrame.FromString(frames[-1])
        frame.open.ticket.payload = _payload("r1", epoch, (A, B, C))
        frames[-1] = frame.SerializeToString()
        rows = [Activations(rid(), epoch, p, 1, ROW, sample=True) for p in (0, 3, 4, 5)]
        rows.append(Activations(rid(), epoch, 0, 4, ROW * 4, sample=True, dtype=DType.FLOAT32))
        frames += [encode.link_frame(2, each) for each in rows]
        token = Token(rid(), epoch, 4, 7, finish_reason=FinishReason.STOP)
        reason = Reason(code="hop_lost", message="gone")
        broken = Broken(
            request_id=rid(),
            epoch=epoch,
            stage_index=2,
            node_id=C,
            code=StatusCode.UNAVAILABLE,
            reason=reason,
        )
        close = Close(request_id=rid(), epoch=epoch, reason=FinishReason.LENGTH)
        for message in (token, broken, close, PrefixShort(rid(), epoch, 0)):
            frames.append(encode.link_frame(3, message))
    frames += [encode.credit_frame(4, 3), encode.ping_frame(5, 9), encode.pong_frame(6, 9)]
    return frames


def _starts() -> list[bytes]:
    """What the gateway may say."""
    frames = []
    for epoch in (1, 2, 3):
        opening = data_pb2.Open(stage_index=0, max_new_tokens=8, prompt_tokens=3)
        opening.ticket.payload = _payload("r1", epoch, (B, C))
        start = data_pb2.StartRequest(open=opening, prompt_token_ids=[1, 2, 3])
        close = data_pb2.Close(
            request_id="r1", epoch=epoch, reason=common_pb2.FINISH_REASON_CANCELLED
        )
        frames += [
            data_pb2.GatewayToNode(start=start).SerializeToString(),
            data_pb2.GatewayToNode(close=close).SerializeToString(),
        ]
    return frames


def _commands() -> list[bytes]:
    """What the coordinator may say."""
    span = common_pb2.LayerSpan(start=2, end=4)
    commands = [
        control_pb2.NodeCommand(
            assign_span=control_pb2.AssignSpan(
                allocation_epoch=epoch, model_id="tiny", span=span, kv_tokens_min=64
            )
        )
        for epoch in (1, 2, 9)
    ]
    commands.append(
        control_pb2.NodeCommand(unassign_span=control_pb2.UnassignSpan(allocation_epoch=3))
    )
    commands.append(control_pb2.NodeCommand(drain=control_pb2.Drain(limit_ms=1_000)))
    commands.append(
        control_pb2.NodeCommand(evict=control_pb2.Evict(reason="lease_expired", may_rejoin=True))
    )
    welcome = control_pb2.Welcome(heartbeat_ms=1_000, frame_bytes_max=1 << 20)
    commands.append(control_pb2.NodeCommand(welcome=welcome))
    return [command.SerializeToString() for command in commands]


LINKS, STARTS, COMMANDS = _links(), _starts(), _commands()


class Victim:
    """A middle stage with an honest request, an engine's ledger, and its decoders."""

    def __init__(self) -> None:
        self.story = Story(1)
        self.open: dict[RequestId, int] = {}
        self.reader = FrameReader(
            tickets=TrustingTickets(),
            clock=ManualClock(),
            incarnation=1,
            held_model=lambda: None if (held := self.story.core.held) is None else held.model_id,
        )
        self.take(self.story.open(request="honest"))

    def tell(self, event: ev.Event) -> None:
        self.take(self.story.tell(event))

    def take(self, effects: list[ef.Effect]) -> None:
        """KV is reserved and freed as an engine would."""
        for effect in effects:
            if isinstance(effect, ef.ReserveKv):
                assert effect.open.request_id not in self.open
                self.open[effect.open.request_id] = effect.open.epoch
            elif (
                isinstance(effect, ef.ReleaseKv)
                and self.open.get(effect.request_id, effect.epoch + 1) <= effect.epoch
            ):
                del self.open[effect.request_id]
        for effect in effects:
            if isinstance(effect, ef.ReserveKv):
                self.tell(ev.KvReserved(effect.open.request_id, effect.open.epoch))

    def check_the_honest(self) -> None:
        """Its rows run, and its results go on, as if nothing had happened."""
        assert len(self.open) == self.story.core.num_sessions
        (work,) = only(self.story.rows(0, 4, request="honest"), ef.SubmitRows)
        assert (work.position, work.num_tokens) == (0, 4)
        outcome = Outcome(0, 4, request="honest", hidden=bytes(len(ROW) * 4))
        assert [n for n, _ in sent(self.story.step(outcome), Activations)] == [C]


def test_frames_of_neighbours() -> None:
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS, st.sampled_from([A, C, STRANGER]))
    def hear(seed: int, sender: NodeId) -> None:
        memory.count()
        victim = Victim()
        for data in mutants(seed, LINKS):
            try:
                frame = data_pb2.LinkFrame.FromString(data)
            except DecodeError:
                continue
            victim.tell(victim.reader.link_event(sender, frame))
        victim.check_the_honest()

    hear()
    memory.check("neighbours")


def test_messages_of_the_gateway() -> None:
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS)
    def hear(seed: int) -> None:
        memory.count()
        victim = Victim()
        for data in mutants(seed, STARTS):
            victim.tell(victim.reader.gateway_event(data))
        victim.check_the_honest()

    hear()
    memory.check("gateway")


def test_commands_of_the_coordinator() -> None:
    """They may end what runs; they crash nothing."""
    memory = Memory()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(SEEDS)
    def obey(seed: int) -> None:
        memory.count()
        victim = Victim()
        for data in mutants(seed, COMMANDS):
            try:
                command = control_pb2.NodeCommand.FromString(data)
                if command.WhichOneof("command") == "welcome":
                    event: ev.Event | None = welcome_event(command.welcome)
                else:
                    event = command_event(command)
            except (DecodeError, FrameError):
                continue
            if event is not None:
                victim.tell(event)
        assert len(victim.open) == victim.story.core.num_sessions

    obey()
    memory.check("commands")
