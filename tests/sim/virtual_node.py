"""A volunteer's machine in virtual time. It knows what it measured and what it was told."""

from typing import TYPE_CHECKING, assert_never

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.types import (
    HeldSpan,
    NodeLoad,
    NodeProfile,
    Reason,
    RequestId,
)

if TYPE_CHECKING:
    from tests.sim.world import World

RECONNECT_MS = (200, 3_000)


class VirtualNode:
    """Process, control stream, gateway link, and the KV it really has."""

    def __init__(self, world: "World", profile: NodeProfile, kv_tokens: int) -> None:
        self.world = world
        self.profile = profile
        self.node_id = profile.node_id
        self.kv_tokens = kv_tokens
        self.incarnation = 0
        self.is_up = False
        self.frozen_until_ms = 0
        self.stream = 0
        """Counts control streams; 0 before the first. Reports of an older one are not sent."""
        self.is_attached = False
        self.is_linked = False
        self.is_leaving = False
        self.held: HeldSpan | None = None
        self.sequences: dict[RequestId, tuple[int, int]] = {}
        self.closed: dict[RequestId, int] = {}
        """Latest closed epochs: an opening that was overtaken by its close stays shut."""
        self.failures_left = 2

    # Life.

    def boot(self) -> None:
        """A new process: nothing loaded, nothing open."""
        if self.is_up:
            return
        self.incarnation = max(self.incarnation + 1, self.world.clock.now_ms)
        self.is_up, self.is_leaving = True, False
        self.held = None
        self.sequences.clear()
        self.connect()
        self.link()
        self._beat(self.incarnation)

    @property
    def is_running(self) -> bool:
        return self.is_up and self.frozen_until_ms <= self.world.clock.now_ms

    def connect(self) -> None:
        """Dial the control stream and say what is held."""
        if not self.is_up or self.is_attached:
            return
        self.stream += 1
        self.is_attached = True
        self.world.attach(self)
        self.say(ev.NodeProfiled(profile=self.profile, incarnation=self.incarnation))

    def link(self) -> None:
        """Dial the gateway."""
        if self.is_up and not self.is_linked:
            self.is_linked = True
            self.world.post(
                ev.GatewayLinkChanged(
                    node_id=self.node_id, incarnation=self.incarnation, is_up=True
                )
            )

    def unlink(self) -> None:
        """The gateway link dropped."""
        if self.is_linked:
            self.is_linked = False
            self.world.post(
                ev.GatewayLinkChanged(
                    node_id=self.node_id, incarnation=self.incarnation, is_up=False
                )
            )

    def say(self, event: ev.Event) -> None:
        """A report on the control stream; lost if there is none."""
        if self.is_running and self.is_attached:
            self.world.send(self, event)

    def _beat(self, incarnation: int) -> None:
        if not self.is_up or self.incarnation != incarnation:
            return
        if self.is_running:
            self.world.trouble(self)
            if self.is_up:
                self.say(
                    ev.NodeReported(
                        node_id=self.node_id, incarnation=incarnation, load=self._load()
                    )
                )
                if not self.is_attached and self.is_leaving:
                    self._exit()
                elif not self.is_attached:
                    self.connect()
        self.world.clock.after(1_000, lambda: self._beat(incarnation))

    def _load(self) -> NodeLoad:
        return NodeLoad(
            kv_tokens_reserved=sum(kv for _, kv in self.sequences.values()),
            num_requests=len(self.sequences),
            stage_ms=5.0 if self.sequences else 0.0,
            tokens_total=0,
            sent_bytes_total=0,
            frames_dropped_total=0,
            queue_tokens=0,
        )

    def crash(self) -> None:
        """The process is gone."""
        self.is_up = False
        self.sequences.clear()
        self.held = None

    def _exit(self) -> None:
        """The process ends in order, and is started again some day."""
        self.crash()
        self.unlink()
        self.world.clock.after(15_000, self.boot)

    # Orders.

    def obey(self, order: fx.NodeEffect) -> None:
        """An order that arrived on the control stream."""
        if not self.is_running or order.incarnation != self.incarnation:
            return
        match order:
            case fx.AssignSpan():
                self._assign(order)
            case fx.UnassignSpan():
                self.held = None
                self.sequences.clear()
            case fx.DrainNode():
                self.is_leaving = True
                self._drain(self.world.clock.now_ms + order.limit_ms)
            case fx.EvictNode():
                self.is_attached = False
                self.sequences.clear()
                if self.is_leaving or not order.may_rejoin:
                    self._exit()
            case fx.ProbeNeighbours():
                for neighbour_id, _ in order.neighbours:
                    self.say(
                        ev.NeighbourMeasured(
                            node_id=self.node_id,
                            neighbour_id=neighbour_id,
                            rtt_ms=self.world.rng.uniform(0.5, 40.0),
                            bytes_per_s=0.0,
                            is_reachable=True,
                        )
                    )
            case _:
                assert_never(order)

    def _assign(self, order: fx.AssignSpan) -> None:
        incarnation = self.incarnation
        self.held = None
        self.sequences.clear()

        def done() -> None:
            if not self.is_up or self.incarnation != incarnation:
                return
            if self.failures_left and self.world.rng.random() < self.world.faults.load_fails:
                self.failures_left -= 1
                reason = Reason(code="weights_corrupt", message="a bit flipped")
                self.say(
                    ev.NodeLoadFailed(
                        node_id=self.node_id,
                        incarnation=incarnation,
                        epoch=order.epoch,
                        reason=reason,
                    )
                )
                return
            self.held = HeldSpan(
                model_id=order.model_id,
                span=order.span,
                allocation_epoch=order.epoch,
                digest="d",
                weight_bytes=1,
                read_bytes=1,
                kv_tokens_max=self.kv_tokens,
            )
            self.say(ev.NodeLoaded(node_id=self.node_id, incarnation=incarnation, held=self.held))

        self.world.clock.after(self.world.rng.uniform(200, 4_000), done)

    def _drain(self, until_ms: int) -> None:
        if not self.is_up:
            return
        if self.sequences and self.world.clock.now_ms < until_ms:
            self.world.clock.after(200, lambda: self._drain(until_ms))
            return
        self.say(ev.NodeDrained(node_id=self.node_id, incarnation=self.incarnation))

    # Requests.

    def open_stage(self, route: fx.OpenRoute, index: int) -> str | None:
        """Reserve KV, or say why not."""
        stage = route.route[index]
        if self.incarnation != stage.incarnation:
            return "ticket_invalid"
        if self.held is None or not self.held.span.contains(stage.span):
            return "span_not_held"
        own = self.sequences.get(route.request_id, (0, 0))
        if max(own[0], self.closed.get(route.request_id, 0) + 1) > route.epoch:
            return "stale_epoch"
        used = sum(kv for r, (_, kv) in self.sequences.items() if r != route.request_id)
        if used + route.kv_tokens > self.kv_tokens:
            return "kv_full"
        self.sequences[route.request_id] = (route.epoch, route.kv_tokens)
        return None

    def close_stage(self, request_id: RequestId, epoch: int) -> None:
        """Free this epoch and older ones."""
        self.closed[request_id] = max(epoch, self.closed.get(request_id, 0))
        own = self.sequences.get(request_id)
        if own is not None and own[0] <= epoch:
            del self.sequences[request_id]
