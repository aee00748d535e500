"""Fakes for the shell's neighbours, by constructor."""

from collections.abc import Sequence

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.view import CountersView, NetworkView
from plait.types import Architecture, DType, LayerSpan, ModelId, ModelSpec, NodeId, NodeLoad
from scheduler.allocation.problem import Allocation, AllocationProblem, Placement

SPEC = ModelSpec(
    model_id=ModelId("tiny"),
    architecture=Architecture.LLAMA,
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256,
    context_tokens_max=512,
    norm_eps=1e-5,
    rope_theta=10_000.0,
)
LOAD = NodeLoad(
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=1.5,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    queue_tokens=0,
)
PROBLEM = AllocationProblem(
    models=(SPEC,), nodes=(), kv_tokens_min=64, wire_dtype=DType.FLOAT32, time_limit_s=0.5
)
ALLOCATION = Allocation(
    placements=(
        Placement(node_id=NodeId("n1"), model_id=SPEC.model_id, span=LayerSpan(0, 4), reason="all"),
    ),
    pipelines=((NodeId("n1"),),),
    objective_tokens_per_s=10.0,
    bound_tokens_per_s=12.0,
    solver="fake",
    status="optimal",
    solve_ms=1,
)


class FakeCore:
    """Answers each event with what the test put in; remembers what it was told."""

    def __init__(self, answers: Sequence[Sequence[fx.Effect]] = ()) -> None:
        self.told: list[tuple[ev.Event, int]] = []
        self.answers = list(answers)
        self.deadline_ms: int | None = None
        self.num_views = 0

    def handle(self, event: ev.Event, now_ms: int) -> Sequence[fx.Effect]:
        self.told.append((event, now_ms))
        self.deadline_ms = None
        return self.answers.pop(0) if self.answers else ()

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def view(self, now_ms: int) -> NetworkView:
        self.num_views += 1
        counters = CountersView(
            requests_submitted=0,
            requests_finished=0,
            requests_failed=0,
            requests_cancelled=0,
            routes_opened=0,
            routes_broken=0,
            tokens_generated=0,
            events_ignored=0,
        )
        return NetworkView(
            network_id="net",
            software_version="0",
            now_ms=now_ms,
            nodes=(),
            models=(),
            requests=(),
            num_queued=0,
            plan=None,
            counters=counters,
        )


class FakeActors:
    """Keeps every effect in order."""

    def __init__(self) -> None:
        self.nodes: list[fx.NodeEffect] = []
        self.requests: list[fx.RequestEffect] = []
        self.solves: list[fx.SolveAllocation] = []

    def perform_node(self, effect: fx.NodeEffect) -> None:
        self.nodes.append(effect)

    def perform_request(self, effect: fx.RequestEffect) -> None:
        self.requests.append(effect)

    def perform_solve(self, effect: fx.SolveAllocation) -> None:
        self.solves.append(effect)
