"""Phase 1's question and answer: which node holds which layers of which model."""

from dataclasses import dataclass

from plait.types import DType, LayerSpan, ModelId, ModelSpec, NodeId, NodeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one node holds, and why (a sentence for its owner)."""

    node_id: NodeId
    model_id: ModelId
    span: LayerSpan
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Layers whose weights a node has on its disk: it need not fetch them again."""

    node_id: NodeId
    model_id: ModelId
    span: LayerSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationProblem:
    """Nodes, models and the state of the network when the question was asked.

    `kv_tokens_min` KV slots must fit beside the weights on every node that is used.
    `rtt_ms[(a, b)]` is the round trip between two nodes where it was measured, `bytes_per_s` the
    bandwidth from the first to the second. `mean_session_s` is how long nodes stay, where known:
    chains count for the share of time that all their members are there. `demand` is what models
    are asked for in proportion to each other (equally where empty), `replicas_min` the chains that
    each is to have before any has more.
    `held` is what nodes hold now: a plan close to it moves fewer bytes. `fixed` names the nodes
    that must keep what `held` says, because requests run on them. A question `is_repair` where the
    others give up what they hold one replica at a time, and for clear gain. `cached` weights count
    a tenth of those that have to be fetched.
    """

    models: tuple[ModelSpec, ...]
    nodes: tuple[NodeProfile, ...]
    kv_tokens_min: int
    wire_dtype: DType
    rtt_ms: tuple[tuple[tuple[NodeId, NodeId], float], ...] = ()
    held: tuple[Placement, ...] = ()
    time_limit_s: float = 10.0
    fixed: tuple[NodeId, ...] = ()
    bytes_per_s: tuple[tuple[tuple[NodeId, NodeId], float], ...] = ()
    mean_session_s: tuple[tuple[NodeId, float], ...] = ()
    demand: tuple[tuple[ModelId, float], ...] = ()
    replicas_min: tuple[tuple[ModelId, int], ...] = ()
    is_repair: bool = False
    cached: tuple[Cached, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A plan. Every model it serves is covered by at least one chain; unused nodes stand by.

    `pipelines` are the planned chains, for the operator; phase 2 may stitch others.
    `objective_tokens_per_s` is the plan's decode rate, `bound_tokens_per_s` what no plan exceeds.
    `moved_nodes` held other layers, or some, before; `moved_bytes` of weights are read by all, of
    which `fetched_bytes` lie on nobody's disk.
    """

    placements: tuple[Placement, ...]
    pipelines: tuple[tuple[NodeId, ...], ...]
    objective_tokens_per_s: float
    bound_tokens_per_s: float
    solver: str
    status: str
    solve_ms: int
    warnings: tuple[str, ...] = ()
    moved_nodes: int = 0
    moved_bytes: int = 0
    fetched_bytes: int = 0
