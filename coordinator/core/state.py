"""What the coordinator knows. Plain records; only the core's own modules change them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from coordinator.core.changes import PlanChanges
from coordinator.core.counters import Counters
from coordinator.core.demand import Demand
from coordinator.core.effects import Effect
from coordinator.core.events import RouteFound
from coordinator.core.lifetimes import Lifetimes
from coordinator.core.machines import (
    NODE,
    PIPELINE,
    REQUEST,
    NodeState,
    NodeTrigger,
    PipelineState,
    PipelineTrigger,
    RequestState,
    RequestTrigger,
    advance,
)
from coordinator.core.timers import NodeKey, Timers
from coordinator.core.told import Told
from coordinator.core.view import RequestView
from plait.types import (
    CachedSpan,
    DType,
    HeldSpan,
    LayerSpan,
    ModelId,
    ModelSpec,
    NodeId,
    NodeLoad,
    NodeProfile,
    PipelineId,
    Reason,
    RequestId,
    Route,
)
from scheduler.allocation.problem import Allocation, AllocationProblem
from scheduler.allocation.shortage import Shortage
from scheduler.calibration import Calibration
from scheduler.cost import Links, StageCost
from scheduler.selection.affinity import PrefixIndex
from scheduler.selection.chains import Chain, Obstacle
from scheduler.selection.decision import Decision
from scheduler.selection.fairness import SloClass, VirtualCounters
from scheduler.selection.router import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound in the control plane. Durations in milliseconds."""

    suspect_ms: int = 3_000
    lease_ms: int = 4_000
    lease_busy_ms: int = 20_000
    first_plan_nodes_min: int = 1
    first_plan_wait_ms: int = 3_000
    return_wait_ms: int = 12_000
    solve_debounce_ms: int = 500
    solve_debounce_max_ms: int = 3_000
    solve_limit_ms: int = 30_000
    solve_time_limit_s: float = 10.0
    load_stall_ms: int = 180_000
    repair_interval_ms: int = 30_000
    retry_ms: int = 1_000
    retry_max_ms: int = 60_000
    drain_grace_ms: int = 2_000
    drain_limit_ms: int = 10_000
    drain_move_ms: int = 3_000
    drain_look_ms: int = 250
    open_limit_ms: int = 10_000
    prefill_limit_ms: int = 180_000
    wait_limit_ms: int = 30_000
    hopeless_wait_ms: int = 3_000
    found_wait_ms: int = 6_000
    rejoin_wait_ms: int = 30_000
    losses_max: int = 256
    request_limit_ms: int = 900_000
    avoid_ms: int = 500
    avoid_max_ms: int = 8_000
    hop_block_ms: int = 5_000
    hop_block_max_ms: int = 60_000
    attempts_max: int = 8
    preempted_max: int = 32
    queue_max: int = 1_000
    lookahead_max: int = 16
    kv_tokens_min: int = 2_048
    expected_new_tokens: int = 256
    neighbours_max: int = 8
    ended_max: int = 50
    departed_max: int = 256
    decisions_max: int = 4
    promised_ttft_ms: float = 5_000.0
    promised_token_ms: float = 300.0
    ageing_ms: int = 15_000
    routes_fresh_ms: int = 1_000
    prefix_blocks_max: int = 64
    refusals_max: int = 6
    reprice_ms: int = 60_000
    slow_patience_ms: int = 3_000
    demand_patience_ms: int = 60_000


@dataclass(slots=True)
class NodeRecord:
    """One attachment of one incarnation of a node."""

    node_id: NodeId
    incarnation: int
    attachment: int
    display_name: str
    addresses: tuple[str, ...]
    attached_ms: int
    heard_ms: int
    state: NodeState = NodeState.JOINING
    profile: NodeProfile | None = None
    model_id: ModelId | None = None
    span: LayerSpan | None = None
    span_reason: str = ""
    epoch: int = 0
    held: HeldSpan | None = None
    load: NodeLoad | None = None
    kv_tokens_reserved: int = 0
    pipelines: dict[PipelineId, None] = field(default_factory=dict)
    num_failures: int = 0
    plan_after_ms: int = 0
    memory_share: float = 1.0
    load_phase: str = ""
    load_done_bytes: int = 0
    load_total_bytes: int = 0
    load_heard_ms: int = 0
    last_error: str = ""
    failure_code: str = ""
    """Of the last load that failed: its reason's word, for clients, who see no node's paths."""
    calibration: Calibration = field(default_factory=Calibration)
    calibrated_for: tuple[ModelId, LayerSpan, NodeProfile] | None = None
    priced: StageCost | None = None
    held_up_mean_ms: float = 0.0
    held_up_ms: float = 0.0
    """What its steps wait for its process to run, as far as prices know."""
    num_blames: int = 0
    rest_until_ms: int = 0
    may_rejoin: bool = True
    drain_move_ms: int = 0
    reuses_prefixes: bool = False
    cached: tuple[CachedSpan, ...] = ()
    paused: str = ""

    @property
    def key(self) -> NodeKey:
        return NodeKey(self.node_id, self.attachment)

    @property
    def kv_tokens_max(self) -> int:
        return self.held.kv_tokens_max if self.held is not None else 0


@dataclass(slots=True)
class PipelineRecord:
    """A route opened for one epoch of one request; `kv_tokens` are reserved on every stage."""

    pipeline_id: PipelineId
    request_id: RequestId
    epoch: int
    model_id: ModelId
    route: Route
    kv_tokens: int
    opened_ms: int
    state: PipelineState = PipelineState.FORMING
    slow_since_ms: int | None = None


@dataclass(slots=True)
class RequestRecord:
    """A request from submission to its end."""

    request_id: RequestId
    model_id: ModelId
    key_id: str
    prompt_tokens: int
    max_new_tokens: int
    submitted_ms: int
    state: RequestState = RequestState.QUEUED
    epoch: int = 0
    pipeline_id: PipelineId | None = None
    queued_ms: int = 0
    look_ms: int = 0
    waits_for: Reason | None = None
    told: Told | None = None
    avoid: dict[NodeId, int] = field(default_factory=dict)
    first_token_ms: int | None = None
    num_generated: int = 0
    last_route: Route = ()
    slo: SloClass = SloClass.INTERACTIVE
    charged_tokens: int = 0
    charged_weight: float = 1.0
    prefix_blocks: tuple[int, ...] = ()
    decisions: list["Decided"] = field(default_factory=list)
    epochs_uncounted: int = 0
    hold_until_ms: int = 0
    found: RouteFound | None = None
    num_preempted: int = 0

    @property
    def kv_tokens(self) -> int:
        """Slots on every stage: the prompt and every token that may still come."""
        return self.prompt_tokens + self.max_new_tokens

    @property
    def num_attempts(self) -> int:
        """Chains that were given to it here; those that it left in order do not count."""
        return self.epoch - self.epochs_uncounted


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided about a request at `at_ms`: a chain for its `epoch`, or to wait, for what,
    and what kept the ready chains from it."""

    at_ms: int
    decision: Decision | None
    reason: Reason | None
    epoch: int = 0
    refused: tuple[tuple[Chain, Obstacle], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A node that served layers and went without a word; it may come back."""

    name: str
    model_id: ModelId
    span: LayerSpan
    lost_ms: int


@dataclass(slots=True)
class ModelRoutes:
    """A model's router, and what it was built from."""

    router: Router
    topology: int
    links_version: int
    built_ms: int
    costs: dict[NodeId, StageCost]


@dataclass(slots=True)
class HopBlock:
    """A hop that broke. `until_ms` doubles with each break."""

    until_ms: int
    num_breaks: int


@dataclass(slots=True)
class Planning:
    """The question that is out, and the answer in force."""

    epoch: int = 0
    solve_at_ms: int | None = None
    first_asked_ms: int = 0
    first_profiled_ms: int | None = None
    problem: AllocationProblem | None = None
    attachments: Mapping[NodeId, int] = field(default_factory=dict)
    is_relaxed: bool = False
    wants_relaxed: bool = False
    wants_repair: bool = False
    moved_ms: int | None = None
    in_force: Allocation | None = None
    in_force_epoch: int = 0
    error: Reason | None = None
    shortages: dict[ModelId, Shortage] = field(default_factory=dict)
    changes: PlanChanges = field(default_factory=PlanChanges)


class CoreState:
    """All records, the outgoing effects of the current event, and small look-ups."""

    def __init__(
        self,
        models: tuple[ModelSpec, ...],
        limits: Limits,
        rng: Random,
        *,
        wire_dtype: DType | None,
        digests: Mapping[ModelId, str],
        demand: Demand | None = None,
    ) -> None:
        self.models: dict[ModelId, ModelSpec] = {spec.model_id: spec for spec in models}
        self.limits = limits
        self.rng = rng
        self.is_wire_chosen = wire_dtype is None
        """Whether each hop has the dtype that suits its link."""
        self.wire_dtype = wire_dtype or DType.INT8
        """Of all hops; where it is chosen for each, that of those links that are slow enough to
        matter in a price."""
        self.digests: dict[ModelId, str] = {m: d for m, d in digests.items() if d}
        self.now_ms = 0
        self.started_ms: int | None = None
        self.out: list[Effect] = []
        self.timers = Timers()
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.pipelines: dict[PipelineId, PipelineRecord] = {}
        self.requests: dict[RequestId, RequestRecord] = {}
        self.queues: dict[ModelId, deque[RequestId]] = {spec.model_id: deque() for spec in models}
        self.gateway_links: dict[NodeId, int] = {}
        self.links = Links(())
        self.hop_blocks: dict[tuple[NodeId, NodeId], HopBlock] = {}
        self.unreachable: dict[tuple[NodeId, NodeId], None] = {}
        self.planning = Planning()
        self.losses: dict[NodeId, Loss] = {}
        self.counters = Counters()
        self.ended: deque[RequestView] = deque(maxlen=limits.ended_max)
        self.departed: dict[NodeId, str] = {}
        self.must_dispatch = False
        self.routes: dict[ModelId, ModelRoutes] = {}
        self.topology = 0
        self.links_version = 0
        self.touched: dict[NodeId, None] = {}
        self.fairness = VirtualCounters()
        self.prefixes: dict[ModelId, PrefixIndex] = {}
        self.demand = demand if demand is not None else Demand(self.models)
        self.lifetimes = Lifetimes()
        self.num_attachments = 0
        self.num_pipelines = 0

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""
        self.out.append(effect)

    def ignore(self) -> None:
        """Count a late, duplicate or foreign message."""
        self.counters.events_ignored += 1

    def remember_name(self, node: NodeRecord) -> None:
        """A node left: requests may name it for a while. The oldest names go first."""
        self.departed.pop(node.node_id, None)
        self.departed[node.node_id] = node.display_name or node.node_id
        if len(self.departed) > self.limits.departed_max:
            del self.departed[next(iter(self.departed))]

    def forget_links(self, node_id: NodeId) -> None:
        """A node left: what was known of its hops goes too."""
        self.links.forget(node_id)
        self.topology += 1
        self.touched.pop(node_id, None)
        for index in self.prefixes.values():
            index.forget(node_id)
        for hop in [hop for hop in self.hop_blocks if node_id in hop]:
            del self.hop_blocks[hop]
        for hop in [hop for hop in self.unreachable if node_id in hop]:
            del self.unreachable[hop]

    def node(self, node_id: NodeId, incarnation: int) -> NodeRecord | None:
        """The node if this incarnation is the one attached; else counts and returns None."""
        node = self.nodes.get(node_id)
        if node is None or node.incarnation != incarnation:
            self.ignore()
            return None
        return node

    def node_at(self, key: NodeKey) -> NodeRecord | None:
        """The node if it is still the attachment that a timer was set for."""
        node = self.nodes.get(key.node_id)
        return node if node is not None and node.attachment == key.attachment else None

    def running(self, request_id: RequestId, epoch: int) -> RequestRecord | None:
        """The request if this epoch's chain carries it now; else counts and returns None."""
        request = self.requests.get(request_id)
        if request is None or request.pipeline_id is None or request.epoch != epoch:
            self.ignore()
            return None
        return request

    def num_queued(self) -> int:
        """Requests without a chain, over all models."""
        return sum(len(queue) for queue in self.queues.values())

    def move_node(self, node: NodeRecord, trigger: NodeTrigger) -> None:
        """Apply the table."""
        self.topology += 1
        node.state = advance("node", NODE, node.node_id, node.state, trigger)

    def move_pipeline(self, pipeline: PipelineRecord, trigger: PipelineTrigger) -> None:
        """Apply the table."""
        key = pipeline.pipeline_id
        pipeline.state = advance("pipeline", PIPELINE, key, pipeline.state, trigger)

    def move_request(self, request: RequestRecord, trigger: RequestTrigger) -> None:
        """Apply the table."""
        request.state = advance("request", REQUEST, request.request_id, request.state, trigger)
