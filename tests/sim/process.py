"""One node's process in virtual time around the real node core: it knows what frames told it."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from coordinator.core import effects as fx
from coordinator.core import events as cev
from node.agent.network_time import NetworkTime
from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.core.machines import NodeState
from node.core.messages import Activations, LinkMessage, StatusCode
from node.core.state import Limits
from node.ports import StageResult
from node.transport import encode
from node.transport.decode import FrameReader
from plait.crypto.tickets import TicketVerifier
from plait.types import HeldSpan, NodeId, NodeLoad, Reason, StepTotals
from plait.wire.tickets import decode_payload
from plait.wire.v1 import data_pb2
from tests.sim.network import DIAL_MS, Host, Stream
from tests.sim.virtual_engine import VirtualEngine

if TYPE_CHECKING:
    from tests.sim.machine import Machine

BEAT_MS = 1_000
LIMITS = Limits(prefill_chunk_tokens=8, drain_ms=6_000)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The coordinator's first word, and when it said it."""

    attached: ev.ControlAttached
    unix_ms: int


ControlFrame = cev.Event | fx.NodeEffect | Welcome


class _Way:
    """How frames reach a neighbour: through a stream, or not yet."""

    __slots__ = ("side", "stream", "waiting")

    def __init__(self) -> None:
        self.stream: Stream[bytes] | None = None
        self.side = 0
        self.waiting: list[LinkMessage] = []


class Process(Host):
    """Performs the core's effects. Streams to the coordinator are the machine's business."""

    def __init__(self, machine: "Machine", incarnation: int) -> None:
        fleet = machine.fleet
        super().__init__(machine.node_id, fleet.clock)
        self.machine = machine
        self.incarnation = incarnation
        self.core = NodeCore(machine.node_id, incarnation, LIMITS)
        self.engine = VirtualEngine(
            fleet.clock,
            self._stepped,
            kv_tokens_max=machine.kv_tokens,
            row_bytes=fleet.row_bytes,
            step_ms=machine.step_ms,
        )
        self.time = NetworkTime(machine.wall)
        self._reader = FrameReader(
            tickets=TicketVerifier(
                public_key=fleet.signer.public_bytes,
                network_id=fleet.network_id,
                node_id=machine.node_id,
                clock=self.time,
                decode=decode_payload,
            ),
            clock=self.time,
            incarnation=incarnation,
            held_model=lambda: None if self.core.held is None else self.core.held.model_id,
        )
        self._ways: dict[NodeId, _Way] = {}
        self._pending: deque[ev.Event] = deque()
        self._is_handling = False
        self._is_ticking = False
        self._loads: deque[ef.LoadSpan | ef.UnloadSpan] = deque()
        self._is_loading = False
        self.control: Stream[ControlFrame] | None = None
        self.gateway: Stream[bytes] | None = None
        self._unsent: deque[bytes] = deque()
        self._reported: cev.NodeReported | None = None
        self._report_of: tuple[float, ...] = ()

    # The loop.

    def post(self, event: ev.Event) -> None:
        """Handle an event now, or when the process thaws, and all that follows."""
        self.when_awake(lambda: self._handle(event))

    def _handle(self, event: ev.Event) -> None:
        self._pending.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        while self._pending and self.is_alive:
            for effect in self.core.handle(self._pending.popleft(), self.clock.now_ms):
                if self.is_alive:
                    self._perform(effect)
        self._is_handling = False
        if not self._is_ticking and self.core.next_deadline_ms() is not None:
            self._is_ticking = True
            self.clock.after(500, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self.post(ev.Ticked())

    def _stepped(self, results: list[StageResult]) -> None:
        self.post(ev.StepFinished(results))

    def _perform(self, effect: ef.Effect) -> None:
        match effect:
            case ef.Send():
                self._send(effect.neighbour_id, effect.message)
            case ef.SubmitRows():
                self.engine.submit(effect)
            case ef.SendToGateway():
                self._to_gateway(encode.gateway_frame(effect.message))
            case ef.Dial():
                self._dial(effect.neighbour_id)
            case ef.ReserveKv():
                self._reserve(effect)
            case ef.ReleaseKv():
                self.engine.close(effect.request_id, effect.epoch)
            case ef.RewindKv():
                self.engine.rewind(effect)
            case ef.Draft():
                raise AssertionError("simulated nodes have no draft model")
            case ef.LoadSpan() | ef.UnloadSpan():
                self._loads.append(effect)
                self._load_next()
            case ef.Exit():
                self.machine.exited(self, effect)
            case (
                ef.ReportSpanLoaded()
                | ef.ReportLoadFailed()
                | ef.ReportHopBroken()
                | ef.ReportDrainAsked()
                | ef.ReportDrained()
            ):
                self._report(effect)
            case _:
                assert_never(effect)

    def _reserve(self, effect: ef.ReserveKv) -> None:
        request_id, epoch = effect.open.request_id, effect.open.epoch
        if self.engine.open(effect):
            self._pending.append(ev.KvReserved(request_id, epoch))
        else:
            reason = Reason(code="kv_full", message="no slots are left")
            refused = ev.KvRefused(request_id, epoch, StatusCode.RESOURCE_EXHAUSTED, reason)
            self._pending.append(refused)

    def _load_next(self) -> None:
        while self._loads and not self._is_loading:
            effect = self._loads.popleft()
            self.engine.sequences.clear()
            if isinstance(effect, ef.LoadSpan):
                self._is_loading = True
                self.clock.after(self.machine.load_ms(), lambda e=effect: self._loaded(e))  # type: ignore[misc]

    def _loaded(self, effect: ef.LoadSpan) -> None:
        def done() -> None:
            self._is_loading = False
            if self.machine.does_load_fail():
                reason = Reason(code="weights_corrupt", message="a bit flipped")
                code = StatusCode.FAILED_PRECONDITION
                self._handle(ev.SpanLoadFailed(effect.allocation_epoch, code, reason))
            else:
                self._handle(ev.SpanLoaded(self._held(effect)))
            self._load_next()

        self.when_awake(done)

    def _held(self, effect: ef.LoadSpan) -> HeldSpan:
        return HeldSpan(
            model_id=effect.spec.model_id,
            span=effect.span,
            allocation_epoch=effect.allocation_epoch,
            digest="d",
            weight_bytes=1,
            read_bytes=1,
            kv_tokens_max=self.machine.kv_tokens,
        )

    # Neighbours.

    def _dial(self, neighbour_id: NodeId) -> None:
        if neighbour_id in self._ways:
            return
        self._ways[neighbour_id] = _Way()
        network = self.machine.fleet.network
        self.clock.after(2 * network.delay_ms(), lambda: self._dialled(neighbour_id))

    def _dialled(self, neighbour_id: NodeId) -> None:
        fleet = self.machine.fleet
        target = fleet.machines[neighbour_id].process
        if target is None:
            self.post_down(neighbour_id, "refused")
            return
        is_silent = not target.is_alive or target.is_frozen
        is_silent = is_silent or fleet.network.is_cut(self.name, target.name)
        if is_silent or fleet.network.is_cut(target.name, self.name):
            self.clock.after(DIAL_MS, lambda: self.post_down(neighbour_id, "no answer"))
            return
        if not self.is_alive:
            return
        stream: Stream[bytes] = Stream(fleet.network, (self, target))
        self._adopt(neighbour_id, stream, 0)
        target._adopt(self.machine.node_id, stream, 1)

    def _adopt(self, neighbour_id: NodeId, stream: Stream[bytes], side: int) -> None:
        """A stream stands: the first one carries our frames, others are only listened to."""
        stream.listen(
            side,
            lambda frame: self._hear_neighbour(neighbour_id, frame),
            lambda reason: self._stream_ended(neighbour_id, stream, reason),
        )
        way = self._ways.setdefault(neighbour_id, _Way())
        if way.stream is not None:
            return
        way.stream, way.side = stream, side
        self.post(ev.LinkUp(neighbour_id))
        waiting, way.waiting = way.waiting, []
        for message in waiting:
            self._send(neighbour_id, message)

    def _stream_ended(self, neighbour_id: NodeId, stream: Stream[bytes], reason: str) -> None:
        way = self._ways.get(neighbour_id)
        if way is not None and way.stream is stream:
            del self._ways[neighbour_id]
            self._handle(ev.LinkDown(neighbour_id, reason))

    def post_down(self, neighbour_id: NodeId, reason: str) -> None:
        """A dial has failed."""
        way = self._ways.get(neighbour_id)
        if way is not None and way.stream is None:
            del self._ways[neighbour_id]
            self.post(ev.LinkDown(neighbour_id, reason))

    def _send(self, neighbour_id: NodeId, message: LinkMessage) -> None:
        way = self._ways.get(neighbour_id)
        if way is None:
            request_id, epoch = message.request_id, message.epoch
            refused = ev.SendRefused(neighbour_id=neighbour_id, request_id=request_id, epoch=epoch)
            self._pending.append(refused)
        elif way.stream is None:
            way.waiting.append(message)
        else:
            is_rows = isinstance(message, Activations)
            is_bulk = is_rows and (
                message.num_tokens > 1 or way.stream.has_bulk(way.side, message.request_id)  # type: ignore[union-attr]
            )
            frame = encode.link_frame(0, message)
            way.stream.send(way.side, frame, message.request_id if is_bulk else "")

    def _hear_neighbour(self, neighbour_id: NodeId, frame: bytes) -> None:
        parsed = data_pb2.LinkFrame.FromString(frame)
        self.post(self._reader.link_event(neighbour_id, parsed))

    # The gateway.

    def gateway_up(self, stream: Stream[bytes]) -> None:
        """The stream stands: say what is kept, and all that waited."""
        stream.listen(0, self._hear_gateway, self._gateway_ended)
        self.gateway = stream
        self.post(ev.GatewayLinkUp())
        while self._unsent:
            stream.send(0, self._unsent.popleft())

    def _to_gateway(self, frame: bytes) -> None:
        if self.gateway is None:
            self._unsent.append(frame)
        else:
            self.gateway.send(0, frame)

    def _hear_gateway(self, frame: bytes) -> None:
        self.post(self._reader.gateway_event(frame))

    def _gateway_ended(self, reason: str) -> None:
        del reason
        self.gateway = None
        self._handle(ev.GatewayLinkDown())
        self.machine.dial_gateway_soon()

    # The control stream.

    def control_up(self, stream: Stream[ControlFrame], attached: ev.ControlAttached) -> None:
        """The coordinator has said welcome."""
        self.control = stream
        self.post(attached)

    def control_ended(self, reason: str) -> None:
        """It closed, or went silent."""
        del reason
        if self.control is not None:
            self.control = None
            self._handle(ev.ControlDetached())
        self.machine.dial_control_soon()

    def _report(self, effect: ef.ReportEffect) -> None:
        node_id, incarnation = self.machine.node_id, self.incarnation
        match effect:
            case ef.ReportSpanLoaded():
                self.say(cev.NodeLoaded(node_id=node_id, incarnation=incarnation, held=effect.held))
            case ef.ReportLoadFailed():
                self.say(
                    cev.NodeLoadFailed(
                        node_id=node_id,
                        incarnation=incarnation,
                        epoch=effect.allocation_epoch,
                        reason=effect.reason,
                    )
                )
            case ef.ReportHopBroken():
                self.say(
                    cev.HopBroke(
                        node_id=node_id, neighbour_id=effect.neighbour_id, reason=effect.reason
                    )
                )
            case ef.ReportDrainAsked():
                self.say(
                    cev.NodeDrainAsked(
                        node_id=node_id,
                        incarnation=incarnation,
                        reason=effect.reason,
                        limit_ms=effect.limit_ms,
                    )
                )
            case ef.ReportDrained():
                self.say(cev.NodeDrained(node_id=node_id, incarnation=incarnation))
            case _:
                assert_never(effect)

    def say(self, event: cev.Event) -> None:
        """A report; lost where there is no stream, as the next hello says how things are."""
        if self.control is not None:
            self.control.send(0, event)

    def beat(self) -> None:
        """A heartbeat."""
        engine, num_dropped = self.engine, self.core.counters.frames_dropped
        now = (len(engine.sequences), engine.num_tokens, engine.kv_tokens_used, engine.stage_ms)
        if self._reported is None or self._report_of != (*now, num_dropped):
            self._report_of = (*now, num_dropped)
            load = NodeLoad(
                kv_tokens_reserved=engine.kv_tokens_used,
                num_requests=len(engine.sequences),
                stage_ms=engine.stage_ms,
                tokens_total=engine.num_tokens,
                sent_bytes_total=0,
                frames_dropped_total=num_dropped,
                queue_tokens=0,
                steps=engine.steps if self.machine.is_as_measured else StepTotals(),
            )
            self._reported = cev.NodeReported(
                node_id=self.machine.node_id, incarnation=self.incarnation, load=load
            )
        self.say(self._reported)

    @property
    def is_serving(self) -> bool:
        return self.core.state is NodeState.SERVING
