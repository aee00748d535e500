"""A volunteer's machine in virtual time: processes come and go on it, links are dialled again."""

from functools import partial
from typing import TYPE_CHECKING

from coordinator.core import effects as fx
from coordinator.core import events as cev
from node.backoff import Backoff
from node.core import effects as ef
from node.core import events as ev
from plait.types import NodeProfile
from scheduler.cost import stage_cost
from tests.sim.network import Stream
from tests.sim.process import BEAT_MS, ControlFrame, Process, Welcome
from tests.sim.walls import Wall

if TYPE_CHECKING:
    from tests.sim.fleet import Fleet


class Machine:
    """What stays of a node while its processes change: its name, its speed, its clock's error."""

    def __init__(
        self,
        fleet: "Fleet",
        profile: NodeProfile,
        *,
        layers_max: int,
        kv_tokens: int,
        is_as_measured: bool = False,
    ) -> None:
        """`is_as_measured`: its steps take what its profile says, and it tells of them."""
        self.fleet = fleet
        self.profile = profile
        self.node_id = profile.node_id
        self.layers_max = layers_max
        self.kv_tokens = kv_tokens
        self.is_as_measured = is_as_measured
        self._cost = stage_cost(profile, fleet.spec)
        self.wall = Wall(fleet.clock, fleet.draw_clock_offset_ms())
        self.slowness = 1.0
        self.process: Process | None = None
        self._incarnation = 0
        self._asked_ms = 0
        self._control_backoff = Backoff(fleet.rng)
        self._gateway_backoff = Backoff(fleet.rng)

    # Life.

    def boot(self) -> None:
        """Start a process, unless one runs."""
        if self.process is not None and self.process.is_alive:
            return
        if self.process is not None:
            for stream in list(self.process.streams):
                stream.end("the machine has started anew", silent=self.process)
        self._incarnation = max(self._incarnation + 1, self.fleet.clock.now_ms)
        self.process = Process(self, self._incarnation)
        self._control_backoff, self._gateway_backoff = (
            Backoff(self.fleet.rng),
            Backoff(self.fleet.rng),
        )
        self.dial_control_soon()
        self.dial_gateway_soon()
        self._beat(self.process)

    def kill(self, *, is_noticed: bool, back_ms: int) -> None:
        """The process ends; another one is started after a while."""
        if self.process is not None and self.process.is_alive:
            process = self.process
            self.fleet.network.kill(process, is_noticed=is_noticed)
            if is_noticed:
                self.process = None
            self.fleet.clock.after(back_ms, self.boot)

    def stop(self) -> None:
        """The owner wants the node to leave in order."""
        if self.process is not None:
            self.process.post(ev.StopAsked("sigterm"))

    def exited(self, process: Process, effect: ef.Exit) -> None:
        """The process ends as its core asked; someone starts it again some day."""
        if process is not self.process or not process.is_alive:
            return
        self.fleet.exits[effect.reason.code] += 1
        self.kill(is_noticed=True, back_ms=self.fleet.draw_absence_ms())

    def _beat(self, process: Process) -> None:
        if not process.is_alive:
            return
        if not process.is_frozen:
            self.fleet.trouble(self)
            process.beat()
        self.fleet.clock.after(BEAT_MS, partial(self._beat, process))

    # What its engine is like.

    def step_ms(self, num_layers: int) -> float:
        """One step over so many layers."""
        if self.is_as_measured:
            return self.slowness * self._cost.decode_ms(num_layers, 1)
        return self.fleet.rng.uniform(1.0, 6.0) * self.slowness

    def load_ms(self) -> float:
        """Getting a span into memory."""
        return self.fleet.rng.uniform(300, 4_000)

    def does_load_fail(self) -> bool:
        """Whether the weights turn out to be damaged."""
        return self.fleet.rng.random() < self.fleet.faults.load_fails

    # Links to the coordinator.

    def dial_control_soon(self) -> None:
        """After a pause that grows while it fails."""
        process = self.process
        if process is not None:
            wait_ms = self._control_backoff.next_s() * 1e3
            self.fleet.clock.after(
                wait_ms, lambda: process.when_awake(lambda: self._dial_control(process))
            )

    def _dial_control(self, process: Process) -> None:
        fleet = self.fleet
        if process is not self.process or not process.is_alive or process.control is not None:
            return
        room = fleet.room
        if room is None or fleet.network.is_cut(self.node_id, room.name):
            self.dial_control_soon()
            return
        stream: Stream[ControlFrame] = Stream(fleet.network, (process, room))
        stream.listen(
            0,
            lambda frame: process.when_awake(lambda: self._obey(process, stream, frame)),
            process.control_ended,
        )
        room.accept_control(stream, self.node_id)
        self._asked_ms = fleet.clock.now_ms
        held = process.core.held if process.is_serving else None
        stream.send(
            0,
            cev.NodeAttached(
                node_id=self.node_id,
                incarnation=process.incarnation,
                display_name=self.node_id,
                addresses=self.profile.addresses,
                held=held,
            ),
        )

    def _obey(self, process: Process, stream: Stream[ControlFrame], frame: ControlFrame) -> None:
        """Commands of the coordinator."""
        match frame:
            case Welcome():
                self._control_backoff.reset()
                trip_ms = self.fleet.clock.now_ms - self._asked_ms
                process.time.heard(frame.unix_ms, trip_ms=trip_ms)
                process.control_up(stream, frame.attached)
                profiled = cev.NodeProfiled(profile=self.profile, incarnation=process.incarnation)
                process.say(profiled)
            case fx.AssignSpan():
                process.post(
                    ev.SpanAssigned(
                        allocation_epoch=frame.epoch,
                        model_id=frame.model_id,
                        span=frame.span,
                        kv_tokens_min=frame.kv_tokens_min,
                        reason=frame.reason,
                    )
                )
            case fx.UnassignSpan():
                process.post(ev.SpanUnassigned(frame.epoch))
            case fx.DrainNode():
                process.post(ev.DrainOrdered(frame.limit_ms))
            case fx.EvictNode():
                process.post(ev.Evicted(reason=frame.reason, may_rejoin=frame.may_rejoin))
            case fx.ProbeNeighbours():
                self._probe(process, frame)
            case _:
                raise AssertionError(f"no command: {frame}")

    def _probe(self, process: Process, order: fx.ProbeNeighbours) -> None:
        for neighbour_id, _ in order.neighbours:
            target = self.fleet.machines[neighbour_id].process
            is_there = target is not None and target.is_alive and not target.is_frozen
            is_cut = self.fleet.network.is_cut(self.node_id, neighbour_id)
            process.say(
                cev.NeighbourMeasured(
                    node_id=self.node_id,
                    neighbour_id=neighbour_id,
                    rtt_ms=self.fleet.rng.uniform(0.5, 40.0),
                    bytes_per_s=0.0,
                    is_reachable=is_there and not is_cut,
                )
            )

    def dial_gateway_soon(self) -> None:
        """The same for tokens."""
        process = self.process
        if process is not None:
            wait_ms = self._gateway_backoff.next_s() * 1e3
            self.fleet.clock.after(
                wait_ms, lambda: process.when_awake(lambda: self._dial_gateway(process))
            )

    def _dial_gateway(self, process: Process) -> None:
        fleet, room = self.fleet, self.fleet.room
        if process is not self.process or not process.is_alive or process.gateway is not None:
            return
        if room is None or fleet.network.is_cut(self.node_id, room.name):
            self.dial_gateway_soon()
            return
        self._gateway_backoff.reset()
        stream: Stream[bytes] = Stream(fleet.network, (process, room))
        room.accept_gateway(stream, self.node_id, process.incarnation)
        process.gateway_up(stream)
