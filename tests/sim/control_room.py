"""One coordinator process in virtual time: the real core, relay and generator, and what their
shells do between them and the nodes' streams."""

import asyncio
from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.generate import Generator
from coordinator.gateway.links import NodeLink
from coordinator.gateway.relay import Relay
from coordinator.gateway.tokens import TokenizerRegistry
from node.core import events as nev
from plait.clock import SteadyClock
from plait.errors import UnavailableError
from plait.types import ModelSource, NodeId, Reason, SourceKind
from plait.wire.v1 import data_pb2
from scheduler.allocation import allocate_greedy
from tests.kit.scripted_network import ByteTokenizer
from tests.sim.network import Host, Stream
from tests.sim.process import ControlFrame, Welcome

if TYPE_CHECKING:
    from tests.sim.fleet import Fleet

SOURCE = ModelSource(kind=SourceKind.PATH, name="none")
_TO_NODES: Final = (
    Welcome,
    fx.AssignSpan,
    fx.UnassignSpan,
    fx.DrainNode,
    fx.EvictNode,
    fx.ProbeNeighbours,
)


class _Session:
    """A node's control stream. Its incarnation is known from the hello on."""

    __slots__ = ("incarnation", "node_id", "stream")

    def __init__(self, node_id: NodeId, stream: Stream[ControlFrame]) -> None:
        self.node_id = node_id
        self.stream = stream
        self.incarnation = 0


class ControlRoom(Host):
    """From its start to its crash."""

    def __init__(self, fleet: "Fleet", seed: int) -> None:
        super().__init__("coordinator", fleet.clock)
        self._fleet = fleet
        self._seed = seed
        self.core = self.new_core()
        self.time = SteadyClock(fleet.wall)
        self.relay = Relay(
            inbox=self,
            sign=fleet.signer.sign,
            network_id=fleet.network_id,
            clock=self.time,
            new_id=fleet.new_id,
        )
        tokenizers = TokenizerRegistry()
        tokenizers.add(fleet.spec.model_id, ByteTokenizer())
        self.generator = Generator(
            relay=self.relay,
            inbox=self,
            catalogue=Catalogue([fleet.spec]),
            tokenizers=tokenizers,
            clock=fleet.wall,
            new_id=fleet.new_id,
            network_id=fleet.network_id,
        )
        self._sessions: dict[NodeId, _Session] = {}
        self._pending: deque[ev.Event] = deque()
        self._is_handling = False
        self._wake_at_ms: int | None = None
        self._writers: list[asyncio.Task[None]] = []

    def new_core(self) -> Core:
        """The core as it was at its start."""
        return Core((self._fleet.spec,), self._fleet.limits, Random(self._seed))

    # The loop.

    def post(self, event: ev.Event) -> None:
        """The core's inbox."""
        if not self.is_alive:
            return
        self._pending.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        while self._pending:
            self._step(self._pending.popleft())
        self._is_handling = False

    def _step(self, event: ev.Event) -> None:
        now_ms = self.clock.now_ms
        witness = self._fleet.witness
        witness.hear(event, now_ms)
        effects = self.core.handle(event, now_ms)
        witness.judge(event, effects, now_ms)
        self._fleet.note(event, effects)
        for effect in effects:
            self._perform(effect)
        due_ms = self.core.next_deadline_ms()
        if due_ms is not None and (self._wake_at_ms is None or due_ms < self._wake_at_ms):
            self._wake_at_ms = due_ms
            self.clock.after(due_ms - now_ms, partial(self._wake, due_ms))

    def _wake(self, due_ms: int) -> None:
        if self._wake_at_ms == due_ms:
            self._wake_at_ms = None
            self.post(ev.Ticked())

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.SolveAllocation():
                self._solve(effect)
            case (
                fx.AssignSpan()
                | fx.UnassignSpan()
                | fx.DrainNode()
                | fx.EvictNode()
                | fx.ProbeNeighbours()
            ):
                self._command(effect)
            case fx.OpenRoute() | fx.CloseRoute() | fx.NotifyQueued() | fx.EndRequest():
                self.relay.perform_request(effect)
            case _:
                pass  # of use to people, or to the next process

    # Nodes.

    def accept_control(self, stream: Stream[ControlFrame], node_id: NodeId) -> None:
        """A node has dialled; its hello comes first."""
        session = _Session(node_id, stream)
        stream.listen(1, partial(self._hear, session), partial(self._gone, session))

    def _hear(self, session: _Session, frame: ControlFrame) -> None:
        if isinstance(frame, ev.NodeAttached):
            self._admit(session, frame)
        elif self._sessions.get(session.node_id) is session:
            assert not isinstance(frame, _TO_NODES)
            self.post(frame)

    def _admit(self, session: _Session, hello: ev.NodeAttached) -> None:
        """The newest process of a node speaks for it."""
        session.incarnation = hello.incarnation
        old = self._sessions.get(session.node_id)
        if old is not None and old.incarnation > hello.incarnation:
            reason = Reason(code="already_connected", message="another one is newer")
            self._send_off(session, reason)
            return
        self._sessions[session.node_id] = session
        if old is not None:
            if old.incarnation != hello.incarnation:
                self._send_off(old, Reason(code="already_connected", message="another is newer"))
            else:
                old.stream.end("a newer stream")
            self.post(ev.NodeDetached(node_id=old.node_id, incarnation=old.incarnation))
        offer = nev.ModelOffered(self._fleet.spec, SOURCE)
        attached = nev.ControlAttached(models=(offer,), frame_bytes_max=1 << 20)
        session.stream.send(1, Welcome(attached, self.time.unix_ms()))
        self.post(hello)

    def _send_off(self, session: _Session, reason: Reason) -> None:
        evict = fx.EvictNode(
            node_id=session.node_id,
            incarnation=session.incarnation,
            reason=reason,
            may_rejoin=False,
        )
        session.stream.send(1, evict)
        self.clock.after(1_000, lambda: session.stream.end("evicted"))

    def _gone(self, session: _Session, reason: str) -> None:
        del reason
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]
            self.post(ev.NodeDetached(node_id=session.node_id, incarnation=session.incarnation))

    def _command(self, effect: fx.NodeEffect) -> None:
        session = self._sessions.get(effect.node_id)
        if session is None or session.incarnation != effect.incarnation:
            return
        session.stream.send(1, effect)
        if isinstance(effect, fx.EvictNode):
            self.clock.after(1_000, lambda: session.stream.end("evicted"))

    def accept_gateway(self, stream: Stream[bytes], node_id: NodeId, incarnation: int) -> None:
        """A node's stream for tokens."""
        link = self.relay.attach(node_id, incarnation)

        def hear(frame: bytes) -> None:
            if not link.is_closed:
                self.relay.receive(node_id, data_pb2.NodeToGateway.FromString(frame))

        def ended(reason: str) -> None:
            del reason
            self.relay.detach(link)

        stream.listen(1, hear, ended)
        self._writers.append(self._fleet.loop.create_task(_write(link, stream)))

    # The solver's process.

    def _solve(self, effect: fx.SolveAllocation) -> None:
        fleet = self._fleet
        if fleet.rng.random() < fleet.faults.solver_hangs:
            return
        answer = ev.AllocationSolved(epoch=effect.epoch, allocation=None)
        try:
            plan = allocate_greedy(effect.problem)
            answer = ev.AllocationSolved(epoch=effect.epoch, allocation=plan)
        except UnavailableError as error:
            reason = Reason(code=error.code, message=error.message)
            answer = ev.AllocationSolved(epoch=effect.epoch, allocation=None, reason=reason)
        delay_ms = fleet.rng.uniform(20, fleet.faults.solver_ms_max)
        self.clock.after(delay_ms, lambda: self.post(answer))


async def _write(link: NodeLink, stream: Stream[bytes]) -> None:
    """Sends what the relay queues for a node, as the shell does."""
    while (message := await link.next_message()) is not None:
        stream.send(1, message.SerializeToString())
    stream.end(link.close_reason)
