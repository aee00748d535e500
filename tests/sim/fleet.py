"""A whole network in virtual time: real coordinator core, relay, router, planner and node cores.

Nothing is shared between processes but frames. Same seed, same run.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.invariants import check
from coordinator.core.machines import NodeState
from coordinator.core.state import Limits
from node.core.machines import NodeState as OwnState
from plait.crypto.tickets import TicketSigner
from plait.types import DType, LayerSpan, NodeId, NodeProfile, RequestId
from scheduler.cost import need_bytes
from tests.sim import arithmetic
from tests.sim.client import Client
from tests.sim.clockwork import Clockwork
from tests.sim.control_room import ControlRoom
from tests.sim.cover import Cover
from tests.sim.disk import Disk
from tests.sim.fleet_faults import FleetFaults
from tests.sim.machine import Machine
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.promises import Witness
from tests.sim.virtual_loop import VirtualLoop
from tests.sim.walls import Wall
from tests.unit.scheduler.pools import node as profile_of
from tests.unit.scheduler.pools import tiny_model

LIMITS = Limits(kv_tokens_min=256, request_limit_ms=300_000, solve_limit_ms=8_000)
LAYERS_MAX = (3, 4, 6)
CHECK_MS = 1_000
RETURN_MS = 30_000


def _drawn(rng: Random, seed: int) -> FleetFaults:
    return FleetFaults.draw(rng, later=Random(f"later {seed}"))


class Fleet:
    """Machines, one coordinator at a time, clients, and what befalls them."""

    def __init__(
        self,
        seed: int,
        *,
        num_nodes: int = 50,
        num_requests: int = 60,
        duration_ms: int = 600_000,
        num_layers: int = 16,
        faults: FleetFaults | None = None,
        profiles: Sequence[NodeProfile] = (),
    ) -> None:
        """`profiles`: of machines that are not drawn, instead of `num_nodes` that are."""
        self.rng = Random(seed)
        self.faults = faults if faults is not None else _drawn(self.rng, seed)
        self._any_per_s = self.faults.any_per_s
        self.clock = Clockwork()
        self.loop = VirtualLoop(self.clock)  # type: ignore[abstract]  # all that is called
        self.limits = LIMITS
        self.network_id = "net"
        self.spec = replace(
            tiny_model(num_layers, hidden_size=64, intermediate_size=4096),
            vocab_size=arithmetic.VOCAB,
        )
        self.row_bytes = DType.FLOAT32.row_bytes(self.spec.hidden_size)
        key = hashlib.sha256(f"plait-sim-{seed}".encode()).digest()
        self.signer = TicketSigner(Ed25519PrivateKey.from_private_bytes(key))
        self.wall = Wall(self.clock)
        self.network = Network(self.clock, self.rng, self.faults.delay_ms)
        self.exits: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self.disk = Disk(seed)
        self._later = Random(f"troubles {seed}")
        self.num_events = 0
        self.num_restarts = 0
        self.is_healed = False
        self.duration_ms = duration_ms
        self._num_ids = 0
        self.room: ControlRoom | None = None
        self.witness = Witness(LIMITS)
        self.epochs: dict[RequestId, int] = {}
        self.machines: dict[NodeId, Machine] = {}
        for index in range(len(profiles) or num_nodes):
            machine = self._machine(index) if not profiles else self._given(profiles[index])
            self.machines[machine.node_id] = machine
            self.clock.after(self.rng.randrange(8_000), machine.boot)
        self.cover = Cover(self)
        self.clients = [self._client(index, duration_ms) for index in range(num_requests)]
        self.start_room()
        self.clock.after(CHECK_MS, self._look)

    def _machine(self, index: int) -> Machine:
        rng, num_layers = self.rng, self.spec.num_layers
        profile = profile_of(
            f"n{index:04d}", layer_ms=rng.uniform(0.5, 4.0), rtt_ms=rng.uniform(1, 40)
        )
        layers_max = rng.choice(LAYERS_MAX)
        span = LayerSpan(num_layers - layers_max, num_layers)
        memory_bytes = need_bytes(profile, self.spec, span, LIMITS.kv_tokens_min) + (1 << 16)
        profile = replace(profile, memory_bytes=memory_bytes)
        return Machine(
            self, profile, layers_max=layers_max, kv_tokens=rng.choice([300, 600, 1_200])
        )

    def _given(self, profile: NodeProfile) -> Machine:
        return Machine(self, profile, layers_max=0, kv_tokens=1_200, is_as_measured=True)

    def _client(self, index: int, duration_ms: int) -> Client:
        rng = self.rng
        prompt = tuple(rng.randrange(arithmetic.VOCAB) for _ in range(rng.randrange(3, 40)))
        client = Client(
            self,
            RequestId(f"r{index:04d}"),
            prompt=prompt,
            num_tokens=rng.randrange(4, 48),
            resumes=rng.random() < self.faults.clients_resume,
        )
        at_ms = 5_000 + rng.randrange(max(1, duration_ms - 10_000))
        self.clock.after(at_ms, client.ask)
        if rng.random() < self.faults.client_leaves:
            self.clock.after(at_ms + rng.uniform(0, 8_000), client.leave)
        if rng.random() < self.faults.client_breaks:
            self.clock.after(at_ms + rng.uniform(0, 4_000), client.lose_stream)
        return client

    # What others draw.

    def draw_clock_offset_ms(self) -> int:
        """How far a machine's time of day is off."""
        most = self.faults.clock_offset_ms
        return self.rng.randint(-most, most)

    def draw_absence_ms(self) -> int:
        """How long a machine stays away."""
        return self.rng.randint(*self.faults.absence_ms)

    def new_id(self) -> str:
        """A name that nothing else has."""
        self._num_ids += 1
        return f"id{self._num_ids}"

    # The coordinator's life.

    def start_room(self) -> None:
        """A new process, which knows what nodes and clients tell it, and nothing else."""
        self.witness = Witness(LIMITS)
        self.room = ControlRoom(self, self.rng.getrandbits(32))
        self.cover.start_over()
        recalled = self.disk.recall()
        if recalled is not None:
            self.room.post(recalled)
        waiting = [(m, m.process) for m in self.machines.values() if m.process is not None]
        check = partial(self._check_return, self.room, waiting, self.clock.now_ms)
        self.clock.after(RETURN_MS, check)

    def _check_return(
        self, room: ControlRoom, waiting: list[tuple[Machine, Process]], since_ms: int
    ) -> None:
        """All that waited for a coordinator and could reach it are back, however many."""
        if self.room is not room:
            return
        for machine, process in waiting:
            is_well = process is machine.process and process.frozen_until_ms <= since_ms
            if is_well and process.is_alive and not self.network.was_cut(process, room, since_ms):
                assert machine.node_id in self.witness.incarnation, (
                    f"{machine.node_id} is not back after {RETURN_MS} ms"
                )

    def crash(self) -> None:
        """The coordinator's machine loses its power; another process is started later."""
        room, self.room = self.room, None
        if room is None:
            return
        self.num_restarts += 1
        self.disk.lose_power(room.new_core, self.clock.now_ms)
        self.network.kill(room, is_noticed=True)
        self.clock.after(self.rng.randint(*self.faults.outage_ms), self.start_room)
        for client in self.clients:
            client.lose_stream()

    def note(self, event: ev.Event, effects: Sequence[fx.Effect]) -> None:
        """What went into the core and came out of it."""
        self.num_events += 1
        names = ",".join([type(effect).__name__ for effect in effects]) if effects else ""
        self.digest.update(f"{self.clock.now_ms}{type(event).__name__}{names}".encode())
        self.disk.note(event, effects, self.clock.now_ms)
        for effect in effects:
            if isinstance(effect, fx.OpenRoute):
                newest = self.epochs.get(effect.request_id, 0)
                assert effect.epoch > newest, (
                    f"epoch {effect.epoch} of {effect.request_id} after {newest}"
                )
                self.epochs[effect.request_id] = effect.epoch

    # Troubles.

    def trouble(self, machine: Machine) -> None:
        """Once a second, something may happen to a node."""
        if self.is_healed:
            return
        faults, process = self.faults, machine.process
        chance = self.rng.random()
        if chance > self._any_per_s:
            return
        for per_s, happen in (
            (faults.leave_per_s, self._leave),
            (faults.freeze_per_s, self._freeze),
            (faults.control_drop_per_s, self._drop_control),
            (faults.gateway_drop_per_s, self._drop_gateway),
            (faults.link_drop_per_s, self._drop_link),
            (faults.partition_per_s, self._partition),
            (faults.cut_off_per_s, self._cut_off),
            (faults.slow_per_s, self._slow_down),
        ):
            if chance < per_s and process is not None:
                happen(machine)
                return
            chance -= per_s

    def _leave(self, machine: Machine) -> None:
        if self.rng.random() < self.faults.drains:
            machine.stop()
        else:
            is_noticed = self.rng.random() < self.faults.is_noticed
            machine.kill(is_noticed=is_noticed, back_ms=self.draw_absence_ms())

    def _freeze(self, machine: Machine) -> None:
        process = machine.process
        if process is not None:
            process.freeze(self.rng.randint(*self.faults.freeze_ms))
            self.network.watch(list(process.streams))

    def _drop_control(self, machine: Machine) -> None:
        if machine.process is not None and machine.process.control is not None:
            machine.process.control.end("reset")

    def _drop_gateway(self, machine: Machine) -> None:
        if machine.process is not None and machine.process.gateway is not None:
            machine.process.gateway.end("reset")

    def _drop_link(self, machine: Machine) -> None:
        if machine.process is not None and machine.process.streams:
            self.rng.choice(list(machine.process.streams)).end("reset")

    def _partition(self, machine: Machine) -> None:
        other = self.rng.choice(list(self.machines.values()))
        if machine.process is not None and other.process is not None and other is not machine:
            both_ways = self.rng.random() >= self.faults.one_way
            num_ms = self.rng.randrange(1_000, 30_000)
            self.network.cut(machine.process, other.process, num_ms, both_ways=both_ways)

    def _cut_off(self, machine: Machine) -> None:
        """The node and the coordinator lose each other; its neighbours still hear it."""
        if machine.process is not None and self.room is not None:
            both_ways = self.rng.random() >= self.faults.one_way
            num_ms = self.rng.randrange(1_000, 20_000)
            self.network.cut(machine.process, self.room, num_ms, both_ways=both_ways)

    def _slow_down(self, machine: Machine) -> None:
        machine.slowness = self.faults.slowness
        self.clock.after(20_000, lambda: setattr(machine, "slowness", 1.0))

    def _set_a_clock(self) -> None:
        """Somebody's time of day is wrong for a while: a machine's, or the coordinator's."""
        most = self.faults.clock_jump_ms
        wall = self._later.choice([self.wall, *(m.wall for m in self.machines.values())])
        num_ms = self._later.randint(-most, most)
        wall.jump(num_ms)
        self.clock.after(self._later.randrange(5_000, 40_000), partial(wall.jump, -num_ms))

    def _look(self) -> None:
        """Once a second: what must hold between events."""
        room = self.room
        if room is not None:
            state = room.core.state
            check(state)
            known = [(n.node_id, n.state is NodeState.SERVING) for n in state.nodes.values()]
            self.witness.check_silence(known, self.clock.now_ms)
            self.cover.look(state)
        if not self.is_healed and self.rng.random() < self.faults.restart_per_s:
            self.crash()
        if not self.is_healed and self._later.random() < self.faults.clock_jump_per_s:
            self._set_a_clock()
        self.disk.flush()
        self.clock.after(CHECK_MS, self._look)

    # The end.

    def run(self, until_ms: int | None = None) -> None:
        """Let the troubles go on until then; all of the duration by default."""
        before = self.loop.enter()
        try:
            self.clock.run(until_ms if until_ms is not None else self.duration_ms)
        finally:
            self.loop.leave(before)

    def heal_and_finish(self, budget_ms: int = 150_000) -> None:
        """No more troubles: everything ends, and a new request is served."""
        self.is_healed = True
        self.faults = FleetFaults(delay_ms=3.0)
        self.network.heal()
        self.network.mean_ms = 3.0
        for machine in self.machines.values():
            self.clock.after(10_000, machine.boot)
        self.run(self.clock.now_ms + budget_ms)
        self._check_the_end()
        last = self._client(9_999, 10_001)
        self.clock.after(0, last.ask)
        self.run(self.clock.now_ms + 30_000)
        assert last.outcome == "length", f"a healthy network did not serve: {last.outcome!r}"

    def _check_the_end(self) -> None:
        lost = [c.request_id for c in self.clients if not c.is_over]
        assert not lost, f"{len(lost)} requests never ended: {lost[:5]}"
        assert not self.witness.open, "routes were left open"
        room = self.room
        assert room is not None, "the coordinator did not come back"
        assert not room.core.state.pipelines and not room.core.state.requests
        for machine in self.machines.values():
            process = machine.process
            assert process is not None and process.is_alive, f"{machine.node_id} is not there"
            kept = list(process.engine.sequences)
            assert not kept, f"KV was left behind on {machine.node_id}: {kept[:3]}"
            assert not process.core.num_sessions, f"{machine.node_id} keeps sessions"
            assert process.core.state is not OwnState.GONE, f"{machine.node_id} has gone"
        missing = sorted(set(self.machines) - set(room.core.state.nodes))
        assert not missing, f"healthy nodes are not attached: {missing[:5]}"
        view = room.core.view(self.clock.now_ms)
        assert view.models[0].is_ready, "the model is not served though nodes suffice"

    @property
    def outcomes(self) -> Counter[str]:
        """How clients fared."""
        return Counter(client.outcome for client in self.clients)
