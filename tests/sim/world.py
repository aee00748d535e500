"""A whole plait network in one thread of virtual time. Same seed, same run."""

import hashlib
from dataclasses import replace
from functools import partial
from random import Random

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.core.invariants import check
from coordinator.core.machines import NodeState
from coordinator.core.state import Limits
from plait.errors import UnavailableError
from plait.types import LayerSpan, ModelId, NodeId, Reason, RequestId
from scheduler.allocation import allocate_greedy
from tests.sim.clockwork import Clockwork
from tests.sim.faults import Faults
from tests.sim.promises import Witness
from tests.sim.virtual_gateway import Generation, VirtualGateway
from tests.sim.virtual_node import VirtualNode
from tests.unit.scheduler.pools import node as profile_of
from tests.unit.scheduler.pools import tiny_model

LIMITS = Limits(kv_tokens_min=256, request_limit_ms=300_000, solve_limit_ms=8_000)


class World:
    """Nodes, gateway and shell around one core."""

    def __init__(
        self,
        seed: int,
        *,
        num_nodes: int = 9,
        num_requests: int = 60,
        faults: Faults | None = None,
        arrivals_ms: int = 60_000,
    ) -> None:
        self.rng = Random(seed)
        self.faults = faults if faults is not None else Faults.draw(self.rng)
        self.clock = Clockwork()
        self.core = Core((tiny_model(12),), LIMITS, Random(seed + 1))
        self.witness = Witness(LIMITS)
        self.gateway = VirtualGateway(self)
        self.digest = hashlib.sha256()
        self.num_events = 0
        self.wake_at_ms: int | None = None
        self.is_healed = False
        self.nodes: dict[NodeId, VirtualNode] = {}
        self._channel_free_ms: dict[NodeId, int] = {}
        for index in range(num_nodes):
            profile = profile_of(
                f"n{index:02d}",
                memory_mib=self.rng.choice([180, 220, 260]),
                layer_ms=self.rng.uniform(0.5, 4.0),
                rtt_ms=self.rng.uniform(1, 40),
            )
            own = VirtualNode(self, profile, self.rng.choice([300, 600, 1_200]))
            self.nodes[profile.node_id] = own
            self.clock.after(self.rng.randrange(8_000), own.boot)
        for index in range(num_requests):
            at_ms = 3_000 + self.rng.randrange(arrivals_ms)
            self.clock.after(at_ms, partial(self.submit, RequestId(f"r{index:03d}")))

    # Into the core and out of it.

    def post(self, event: ev.Event) -> None:
        """Hand one event to the core, and perform what it asks for."""
        now_ms = self.clock.now_ms
        self.witness.hear(event, now_ms)
        effects = self.core.handle(event, now_ms)
        self.num_events += 1
        self.digest.update(repr((now_ms, event, effects)).encode())
        self.witness.judge(event, effects, now_ms)
        check(self.core.state)
        known = [(n.node_id, n.state is NodeState.SERVING) for n in self.core.state.nodes.values()]
        self.witness.check_silence(known, now_ms)
        for effect in effects:
            self._perform(effect)
        due_ms = self.core.next_deadline_ms()
        if due_ms is not None and (self.wake_at_ms is None or due_ms < self.wake_at_ms):
            self.wake_at_ms = due_ms
            self.clock.after(due_ms - now_ms, partial(self._wake, due_ms))

    def _wake(self, due_ms: int) -> None:
        if self.wake_at_ms == due_ms:
            self.wake_at_ms = None
            self.post(ev.Ticked())

    def post_late(self, event: ev.Event) -> None:
        """From the gateway's links: delayed, sometimes twice."""
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            delay_ms = self.rng.expovariate(1 / self.faults.delay_ms)
            self.clock.after(delay_ms, partial(self.post, event))

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
                node = self.nodes[effect.node_id]
                stream = node.stream
                self.clock.after(
                    self.rng.expovariate(1 / self.faults.delay_ms),
                    partial(self._order, node, stream, effect),
                )
            case fx.RememberSessions():
                pass  # no store in this world
            case _:
                self.gateway.perform(effect)

    def _order(self, node: VirtualNode, stream: int, effect: fx.NodeEffect) -> None:
        if not node.is_attached or node.stream != stream:
            return
        if node.is_up and not node.is_running:
            # TCP keeps it until the process thaws.
            wait_ms = node.frozen_until_ms - self.clock.now_ms
            self.clock.after(wait_ms, partial(self._order, node, stream, effect))
            return
        node.obey(effect)

    # The shell's control service: reports of one stream keep their order.

    def attach(self, node: VirtualNode) -> None:
        """A stream is up."""
        self.send(
            node,
            ev.NodeAttached(
                node_id=node.node_id,
                incarnation=node.incarnation,
                display_name=node.node_id,
                addresses=(f"{node.node_id}:1",),
                held=node.held,
            ),
        )

    def send(self, node: VirtualNode, event: ev.Event) -> None:
        """A report on the node's stream; delivered unless a newer stream has taken over."""
        delay_ms = self.rng.expovariate(1 / self.faults.delay_ms)
        free_ms = self._channel_free_ms.get(node.node_id, 0)
        at_ms = max(free_ms, self.clock.now_ms + int(delay_ms))
        self._channel_free_ms[node.node_id] = at_ms
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        if isinstance(event, ev.NodeAttached):
            copies = 1
        for _ in range(copies):
            self.clock.after(
                at_ms - self.clock.now_ms, partial(self._deliver, node, node.stream, event)
            )

    def _deliver(self, node: VirtualNode, stream: int, event: ev.Event) -> None:
        if stream == node.stream:
            self.post(event)

    def drop_stream(self, node: VirtualNode) -> None:
        """The control stream ends and the shell notices."""
        if node.is_attached:
            node.is_attached = False
            node.stream += 1
            self.post(ev.NodeDetached(node_id=node.node_id, incarnation=node.incarnation))

    # Troubles.

    def trouble(self, node: VirtualNode) -> None:
        """Once a second, something may happen to a node."""
        if self.is_healed:
            return
        faults, rng = self.faults, self.rng
        if rng.random() < faults.crash_per_s:
            self._crash(node)
        elif rng.random() < faults.freeze_per_s:
            node.frozen_until_ms = self.clock.now_ms + rng.randrange(500, 9_000)
        elif rng.random() < faults.control_drop_per_s:
            self.drop_stream(node)
        elif rng.random() < faults.gateway_drop_per_s:
            node.unlink()
            self.clock.after(rng.randrange(100, 3_000), node.link)
        elif rng.random() < faults.hop_break_per_s:
            other = rng.choice(list(self.nodes))
            node.say(ev.HopBroke(node_id=node.node_id, neighbour_id=other, reason="reset"))
        elif rng.random() < faults.drain_per_s:
            node.say(
                ev.NodeDrainAsked(
                    node_id=node.node_id,
                    incarnation=node.incarnation,
                    reason="sigterm",
                    limit_ms=4_000,
                )
            )

    def _crash(self, node: VirtualNode) -> None:
        is_noticed = self.rng.random() < self.faults.crash_is_noticed
        node.crash()
        if is_noticed:
            self.drop_stream(node)
            node.unlink()
        else:
            node.is_attached = node.is_linked = False
            node.stream += 1
        self.clock.after(self.rng.choice([300, 3_000, 20_000]), node.boot)

    # Clients.

    def submit(self, request_id: RequestId) -> None:
        """A client asks; now and then it goes away."""
        prompt, new = self.rng.randrange(5, 120), self.rng.randrange(5, 120)
        self.gateway.generations[request_id] = Generation(new)
        self.post(
            ev.RequestSubmitted(
                request_id=request_id,
                model_id=ModelId("tiny"),
                prompt_tokens=prompt,
                max_new_tokens=new,
                key_id="k",
            )
        )
        if self.rng.random() < self.faults.cancel:
            cancel = ev.RequestCancelled(request_id=request_id)
            self.clock.after(self.rng.uniform(0, 8_000), partial(self.post, cancel))

    # The solver's process.

    def _solve(self, effect: fx.SolveAllocation) -> None:
        rng, faults = self.rng, self.faults
        if not self.is_healed and rng.random() < faults.solver_hangs:
            return
        delay_ms = rng.uniform(5, faults.solver_ms_max)
        self.clock.after(delay_ms, partial(self.post, self._answer(effect)))

    def _answer(self, effect: fx.SolveAllocation) -> ev.AllocationSolved:
        if not self.is_healed and self.rng.random() < self.faults.solver_fails:
            reason = Reason(code="solver_failed", message="it crashed")
            return ev.AllocationSolved(epoch=effect.epoch, allocation=None, reason=reason)
        try:
            plan = allocate_greedy(effect.problem)
        except UnavailableError as error:
            reason = Reason(code=error.code, message=error.message)
            return ev.AllocationSolved(epoch=effect.epoch, allocation=None, reason=reason)
        if not self.is_healed and self.rng.random() < self.faults.solver_lies:
            liar = self.rng.randrange(len(plan.placements))
            placements = list(plan.placements)
            placements[liar] = replace(placements[liar], span=LayerSpan(0, 1))
            plan = replace(plan, placements=tuple(placements))
        return ev.AllocationSolved(epoch=effect.epoch, allocation=plan)

    # The end.

    def run(self, until_ms: int) -> None:
        """Let the troubles go on until then."""
        self.clock.run(until_ms)

    def heal_and_finish(self, budget_ms: int = 120_000) -> None:
        """No more troubles: every request ends, every node serves, no KV is left behind."""
        self.is_healed = True
        self.faults = Faults(delay_ms=3.0)
        for node in self.nodes.values():
            self.clock.after(20_000, node.boot)
            self.clock.after(20_000, node.link)
        self.run(self.clock.now_ms + budget_ms)
        witness = self.witness
        lost = [r for r in witness.submitted if witness.ended[r] != 1]
        assert not lost, f"{len(lost)} requests never ended"
        assert not witness.open, "routes were left open"
        kept = [n.node_id for n in self.nodes.values() if n.sequences]
        assert not kept, f"KV was left behind on {kept}"
        states = {n.node_id: n.state for n in self.core.state.nodes.values()}
        assert len(states) == len(self.nodes), "a healthy node is not attached"
        view = self.core.view(self.clock.now_ms)
        assert view.models[0].is_ready, "the model is not served though nodes suffice"
        assert view.num_queued == 0 and not self.core.state.pipelines
        self.submit(RequestId("after"))
        self.run(self.clock.now_ms + 40_000)
        assert witness.outcomes_of("after") == "length", "a healthy network did not serve"
