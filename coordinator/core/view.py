"""What people see of the network: one immutable snapshot for dashboard, CLI and admin door.

Everything here is plain data that `dataclasses.asdict` and JSON can carry.
"""

from dataclasses import dataclass, field
from typing import Final

from plait.types import DraftHealth, GuessTotals, StepTotals

STANDBY: Final = "standby"
"""Shown as the state of a node that joined and was given nothing; `span_reason` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. Times in ms, rates in bytes/s, `span` as (start, end) or None.

    The errors say how far predictions from the node's own measurements are above (or, negative,
    below) what its steps were seen to take; None while too few were seen.
    """

    node_id: str
    display_name: str
    state: str
    incarnation: int
    model_id: str | None
    span: tuple[int, int] | None
    span_reason: str
    device_kind: str
    device_name: str
    memory_bytes: int
    weight_bytes: int
    read_bytes: int
    compute_dtype: str
    decode_layer_ms: float
    prefill_layer_ms_per_token: float
    decode_layer_ms_per_extra: float = 0.0
    head_ms: float = 0.0
    step_overhead_ms: float = 0.0
    coordinator_rtt_ms: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    kv_tokens_max: int
    kv_tokens_reserved: int
    num_requests: int
    stage_ms: float
    predicted_stage_ms: float
    held_up_ms: float = 0.0
    tokens_total: int
    sent_bytes_total: int
    frames_dropped_total: int
    weights_hub_bytes_total: int = 0
    weights_neighbour_bytes_total: int = 0
    weights_served_bytes_total: int = 0
    weights_rejected_total: int = 0
    weights_refused_total: int = 0
    load_phase: str
    load_done_bytes: int
    load_total_bytes: int
    last_error: str
    attached_ms: int
    neighbour_rtt_ms: tuple[tuple[str, float], ...]
    decode_error_percent: float | None = None
    prefill_error_percent: float | None = None
    steps: StepTotals = field(default_factory=StepTotals)
    guesses: GuessTotals = field(default_factory=GuessTotals)
    draft: DraftHealth | None = None
    hops: tuple["MeasuredHopView", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHopView:
    """The way to a neighbour as measured, and as it would be predicted from both nodes' ways to
    the coordinator. 0 bytes/s: not measured."""

    neighbour_id: str
    rtt_ms: float
    predicted_rtt_ms: float
    bytes_per_s: float
    predicted_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One served model. `replicas_per_layer[i]` counts serving nodes that hold layer i.

    `missing` are layers that nobody serves, `missing_bytes` the least memory that would help,
    `lack` says all of it in one sentence with `advice`; empty where the model is ready. Of the
    `prompt_tokens` that were read so far, chains had the `cached_prompt_tokens` already.
    """

    model_id: str
    architecture: str
    num_layers: int
    context_tokens_max: int
    is_ready: bool
    demand_share: float = 1.0
    is_demand_given: bool = False
    replicas_min: int = 1
    replicas_per_layer: tuple[int, ...]
    missing: tuple[tuple[int, int], ...]
    missing_bytes: int
    advice: str
    lack: str = ""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    guesses: GuessTotals = field(default_factory=GuessTotals)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopView:
    """One stage of a request's route."""

    node_id: str
    span: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """A chain that was considered: its nodes, what it was priced at (None: not usable) and what
    that is made of; `obstacle` is the node that kept it from the request ("": none did)."""

    chain: tuple[str, ...]
    total_ms: float | None
    note: str
    wait_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    hops_ms: float | None = None
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """What was decided about a request, `at_ms` after it came: a chain and why, or to wait.
    `epoch` counts its chains from 1; `prefix_tokens` of the prompt were in the chain's KV."""

    at_ms: int
    verdict: str
    why: str
    ttft_ms: float | None
    token_ms: float | None
    considered: tuple[ChainView, ...]
    epoch: int = 0
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request, open or recently ended. Times in ms since submission; None: not yet. The chain
    had `cached_tokens` of the prompt from earlier requests; None: no token has come."""

    request_id: str
    model_id: str
    key_id: str
    state: str
    epoch: int
    prompt_tokens: int
    max_new_tokens: int
    num_generated: int
    age_ms: int
    ttft_ms: int | None
    total_ms: int | None
    tokens_per_s: float
    route: tuple[HopView, ...]
    finish_reason: str
    reason: str
    decisions: tuple[DecisionView, ...] = ()
    cached_tokens: int | None = None
    guesses: GuessTotals = field(default_factory=GuessTotals)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The plan in force and how it was found."""

    epoch: int
    solver: str
    status: str
    objective_tokens_per_s: float
    bound_tokens_per_s: float
    solve_ms: int
    warnings: tuple[str, ...]
    moved_nodes: int = 0
    moved_bytes: int = 0
    fetched_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChangeView:
    """A plan that moved something, `age_ms` ago. `cause`: newcomers, repair, replan."""

    age_ms: int
    epoch: int
    cause: str
    tokens_per_s: float
    moved_nodes: int
    moved_bytes: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersView:
    """Totals since the coordinator's start."""

    requests_submitted: int
    requests_finished: int
    requests_failed: int
    requests_cancelled: int
    routes_opened: int
    routes_broken: int
    tokens_generated: int
    events_ignored: int
    nodes_moved: int = 0
    weight_bytes_moved: int = 0
    weight_bytes_fetched: int = 0
    requests_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedView:
    """A node that has left, by the name it had."""

    node_id: str
    display_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """The whole network at `now_ms` (monotonic ms of the coordinator). `departed` are the nodes
    that left and that requests still name; `changes` are the last plans that moved something, the
    newest first."""

    network_id: str
    software_version: str
    now_ms: int
    nodes: tuple[NodeView, ...]
    models: tuple[ModelView, ...]
    requests: tuple[RequestView, ...]
    num_queued: int
    plan: PlanView | None
    counters: CountersView
    departed: tuple[DepartedView, ...] = ()
    changes: tuple[PlanChangeView, ...] = ()

    @property
    def display_names(self) -> dict[str, str]:
        """By node id, of those that left and are still named too."""
        names = {node.node_id: node.display_name for node in self.departed}
        return names | {node.node_id: node.display_name for node in self.nodes}
