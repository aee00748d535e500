"""What the dashboard asks beside the network's view: a register, an archive, a planner."""

import dataclasses
from collections.abc import Sequence

from coordinator.core import events as ev
from coordinator.core.view import HopView
from coordinator.ports import KeptRequest, PastRequest, PlanPreview
from coordinator.shell.chronicle import Chronicle
from coordinator.shell.chronicle_words import of_event
from coordinator.shell.store_nodes import EnrolledNode
from plait.clock import Clock
from plait.errors import InvalidRequestError, UnavailableError
from plait.types import Architecture, DType, LayerSpan, ModelId, ModelSpec, NodeId, Reason
from scheduler.allocation import allocate_greedy
from scheduler.allocation.problem import AllocationProblem, Placement
from tests.unit.dashboard.fakes import network_view, request_view
from tests.unit.scheduler.pools import node as profile_of

SPEC = ModelSpec(
    model_id=ModelId("smollm2-135m-instruct"),
    architecture=Architecture.LLAMA,
    num_layers=30,
    hidden_size=576,
    intermediate_size=1_536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    context_tokens_max=2_048,
    norm_eps=1e-5,
    rope_theta=1e5,
    tie_embeddings=True,
)
AWAY = NodeId("naway000000000000")


class FakeRegister:
    """The nodes of the fake network, and one that is away."""

    def __init__(self) -> None:
        known = {NodeId(n.node_id): n.display_name for n in network_view().nodes}
        known[AWAY] = "loft-2070"
        self.nodes = {
            node_id: EnrolledNode(
                node_id=node_id,
                identity_key=b"",
                display_name=name,
                first_seen_unix_ms=1_790_000_000_000,
                last_seen_unix_ms=1_790_000_900_000,
                is_banned=False,
            )
            for node_id, name in known.items()
        }

    async def find(self, node_id: NodeId) -> EnrolledNode | None:
        return self.nodes.get(node_id)

    async def list_nodes(self) -> Sequence[EnrolledNode]:
        return list(self.nodes.values())

    async def ban(self, node_id: NodeId, *, is_banned: bool = True) -> None:
        if node_id not in self.nodes:
            raise InvalidRequestError(f"there is no node {node_id!r}", reason="not_found")
        self.nodes[node_id] = dataclasses.replace(self.nodes[node_id], is_banned=is_banned)


class FakeArchive:
    """So many requests that ended, every seventh of them badly."""

    def __init__(self, count: int) -> None:
        self.requests = [past_request(number) for number in range(count)]
        self.num_asked = 0

    async def page(
        self, *, offset: int, limit: int, model_id: str = "", key_id: str = "", outcome: str = ""
    ) -> tuple[Sequence[PastRequest], int]:
        self.num_asked += 1
        found = [
            request
            for request in self.requests
            if (not model_id or request.model_id == model_id)
            and (not key_id or request.key_id == key_id)
            and (not outcome or request.finish_reason == outcome)
        ]
        return found[offset : offset + limit], len(found)

    async def find(self, request_id: str) -> PastRequest | None:
        return next((r for r in self.requests if r.request_id == request_id), None)


class FakeRoutes:
    """One request that ended before the process began, on a node that has left."""

    async def recent(self, limit: int) -> Sequence[KeptRequest]:
        request = dataclasses.replace(
            request_view(9, state="finished"),
            request_id="req-before",
            total_ms=1_400,
            route=(HopView(node_id="nlongago", span=(0, 30)),),
        )
        return [KeptRequest(request=request, names={"nlongago": "old-tower"})][:limit]


class FakePreviewer:
    """Plans three synthetic nodes that are called as those of the fake network, greedily; the first
    `num_held` of them hold what the view says."""

    def __init__(self, *, num_held: int = 3) -> None:
        self.is_busy = False
        self._num_held = num_held

    def question(self, *, may_move_busy: bool = False) -> AllocationProblem | None:
        if self.is_busy and not may_move_busy:
            return None
        nodes = network_view().nodes[:3]
        return AllocationProblem(
            models=(SPEC,),
            nodes=tuple(
                dataclasses.replace(
                    profile_of(n.node_id, memory_mib=600), node_id=NodeId(n.node_id)
                )
                for n in nodes
            ),
            kv_tokens_min=256,
            wire_dtype=DType.FLOAT32,
            held=tuple(
                Placement(
                    node_id=NodeId(n.node_id),
                    model_id=SPEC.model_id,
                    span=LayerSpan(*(n.span or (0, 0))),
                )
                for n in nodes[: self._num_held]
            ),
        )

    async def preview(self, problem: AllocationProblem) -> PlanPreview:
        try:
            return PlanPreview(plan=allocate_greedy(problem), reason=None)
        except UnavailableError as error:
            return PlanPreview(plan=None, reason=Reason(code=error.code, message=error.message))


def past_request(number: int) -> PastRequest:
    """The newest has the smallest number."""
    is_bad = number % 7 == 3
    return PastRequest(
        request_id=f"past-{number:04d}",
        model_id="smollm2-135m-instruct",
        key_id=f"k{1 + number % 2}",
        finish_reason="error" if is_bad else "stop",
        reason="node_lost" if is_bad else "",
        prompt_tokens=20 + number % 30,
        generated_tokens=40 + number % 90,
        num_attempts=1 + (number % 5 == 0),
        ttft_ms=None if is_bad else 150.0 + number,
        total_ms=2_000.0 + 10 * number,
        finished_unix_ms=1_790_000_000_000 - 60_000 * number,
    )


def fake_chronicle(clock: Clock) -> Chronicle:
    """A short story of the fake network."""
    chronicle = Chronicle(clock)
    one, two = (NodeId(n.node_id) for n in network_view().nodes[:2])
    for event in (
        ev.NodeAttached(node_id=one, incarnation=1, display_name="x", addresses=()),
        ev.NodeAttached(node_id=two, incarnation=1, display_name="x", addresses=()),
        ev.HopBroke(node_id=one, neighbour_id=two, reason="connection reset"),
        ev.ReplanAsked(),
    ):
        chronicle.note(of_event(event))
    return chronicle
