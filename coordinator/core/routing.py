"""Chains kept ready for each model: rebuilt when nodes or hops change, told of loads one by one."""

from collections.abc import Mapping

from coordinator.core.calibrating import live_stage_ms, node_cost
from coordinator.core.machines import RequestState
from coordinator.core.neighbours import is_blocked
from coordinator.core.settle import is_routable
from coordinator.core.state import CoreState, ModelRoutes, NodeRecord, RequestRecord
from plait.types import ModelSpec, NodeId, Route
from scheduler.cost import StageCost
from scheduler.handover import handed_over
from scheduler.selection import Candidate, Query
from scheduler.selection.affinity import PrefixIndex
from scheduler.selection.candidates import Promise, Told
from scheduler.selection.chains import Chain, Obstacle
from scheduler.selection.decision import Decision
from scheduler.selection.fairness import SloClass
from scheduler.selection.router import Router


def find_route(state: CoreState, request: RequestRecord, query: Query) -> Decision | None:
    """A chain of nodes that are well and not avoided, rested ones first; None: there is none."""
    routes = _routes(state, query.spec)
    if routes is None:
        return None
    avoided = {n for n, until_ms in request.avoid.items() if until_ms > state.now_ms}
    held = _held_tokens(state, request)
    for is_choosy in (True, False):
        decision = _try(state, routes.router, query, set(avoided), held, is_choosy=is_choosy)
        if decision is not None:
            return decision
        if all(n.rest_until_ms <= state.now_ms for n in state.nodes.values()):
            break
    return None


def make_query(state: CoreState, spec: ModelSpec, request: RequestRecord) -> Query:
    """What is asked for: an interactive request with the promise that is left to it."""
    limits = state.limits
    promise = None
    if request.slo is SloClass.INTERACTIVE:
        waited_ms = state.now_ms - request.submitted_ms
        promise = Promise(max(1.0, limits.promised_ttft_ms - waited_ms), limits.promised_token_ms)
    return Query(
        spec=spec,
        prompt_tokens=request.prompt_tokens,
        new_tokens=min(request.max_new_tokens, limits.expected_new_tokens),
        kv_tokens=request.kv_tokens,
        hop_bytes=state.wire_dtype.row_bytes(spec.hidden_size),
        promise=promise,
    )


def make_candidate(state: CoreState, node: NodeRecord, spec: ModelSpec) -> Candidate:
    """The node as it is now."""
    assert node.span is not None
    kv_tokens_free, num_requests, queue_tokens, stage_ms = _load(state, node)
    return Candidate(
        node_id=node.node_id,
        incarnation=node.incarnation,
        span=node.span,
        cost=node_cost(node, spec),
        kv_tokens_free=kv_tokens_free,
        kv_tokens_max=node.kv_tokens_max,
        num_requests=num_requests,
        queue_tokens=queue_tokens,
        stage_ms=stage_ms,
    )


def _load(state: CoreState, node: NodeRecord) -> Told:
    return (
        node.kv_tokens_max - node.kv_tokens_reserved,
        len(node.pipelines),
        _prompts_ahead(state, node),
        live_stage_ms(node),
    )


def _prompts_ahead(state: CoreState, node: NodeRecord) -> int:
    """Prompt tokens that still have to pass the node: what it reports, or what was sent its way
    since and has given no token yet."""
    reported = node.load.queue_tokens if node.load is not None else 0
    sent = 0
    for pipeline_id in node.pipelines:
        request = state.requests.get(state.pipelines[pipeline_id].request_id)
        if request is not None and request.state in (RequestState.OPENING, RequestState.PREFILL):
            sent += request.prompt_tokens
    return max(reported, sent)


def _routes(state: CoreState, spec: ModelSpec) -> ModelRoutes | None:
    """The model's router, as new as nodes and hops; None where nobody serves it."""
    known = state.routes.get(spec.model_id)
    if known is not None and known.topology == state.topology:
        is_recent = state.now_ms - known.built_ms < state.limits.routes_fresh_ms
        if known.links_version == state.links_version or is_recent:
            _tell(state, known)
            return known
    nodes = [
        n
        for n in state.nodes.values()
        if n.model_id == spec.model_id and n.profile is not None and n.held is not None
    ]
    if not nodes:
        state.routes.pop(spec.model_id, None)
        return None
    costs = {n.node_id: node_cost(n, spec) for n in nodes}
    router = Router(
        [make_candidate(state, n, spec) for n in nodes],
        state.links,
        spec=spec,
        hop_bytes=state.wire_dtype.row_bytes(spec.hidden_size),
        planned=_planned(state, costs, spec.num_layers),
    )
    routes = ModelRoutes(router, state.topology, state.links_version, state.now_ms, costs)
    state.routes[spec.model_id] = routes
    for node in nodes:
        state.touched.pop(node.node_id, None)
    return routes


def _tell(state: CoreState, routes: ModelRoutes) -> None:
    """Nodes that were heard of or given work since the last request. Who came, went or moved has
    changed the topology, and the router is a new one."""
    for node_id in list(state.touched):
        node = state.nodes.get(node_id)
        if node is not None and node_id in routes.costs:
            routes.router.tell(node_id, _load(state, node))
            del state.touched[node_id]


def _planned(
    state: CoreState, costs: dict[NodeId, StageCost], num_layers: int
) -> list[tuple[tuple[NodeId, ...], float]]:
    """The plan's chains, each with a share as large as its rate: KV slots by the time of a token
    (Little's law)."""
    plan = state.planning.in_force
    chains = plan.pipelines if plan is not None else ()
    planned: list[tuple[tuple[NodeId, ...], float]] = []
    for chain in chains:
        nodes = [state.nodes[n] for n in chain if n in costs]
        held = [n.span for n in nodes if n.span is not None]
        parts = handed_over(held, num_layers) if len(held) == len(chain) else None
        if parts is not None:
            runs = zip(nodes, parts, strict=True)
            token_ms = sum(costs[n.node_id].decode_ms(len(part), 1) for n, part in runs)
            slots = min(n.kv_tokens_max for n in nodes)
            planned.append((chain, max(1.0, slots / max(1e-3, token_ms))))
    return planned


def refusals(state: CoreState, request: RequestRecord) -> tuple[tuple[Chain, Obstacle], ...]:
    """What keeps ready chains from a request that waits."""
    routes, spec = state.routes.get(request.model_id), state.models[request.model_id]
    if routes is None:
        return ()
    avoided = {n for n, until_ms in request.avoid.items() if until_ms > state.now_ms}
    found = routes.router.refusals(make_query(state, spec, request), avoided)
    return tuple(found[: state.limits.refusals_max])


def remember_prefix(state: CoreState, request: RequestRecord) -> None:
    """Its prompt has been run: where all stages keep what they ran, later ones may use it."""
    route = request.last_route
    nodes = [state.nodes.get(stage.node_id) for stage in route]
    if request.prefix_blocks and all(n is not None and n.reuses_prefixes for n in nodes):
        index = state.prefixes.setdefault(request.model_id, PrefixIndex())
        index.remember(request.prefix_blocks, route)


def _held_tokens(state: CoreState, request: RequestRecord) -> dict[Route, int]:
    """What chains hold of the prompt; nothing where no node keeps anything."""
    index = state.prefixes.get(request.model_id)
    return index.held_tokens(request.prefix_blocks) if index is not None else {}


def _try(
    state: CoreState,
    router: Router,
    query: Query,
    excluded: set[NodeId],
    held: Mapping[Route, int],
    *,
    is_choosy: bool,
) -> Decision | None:
    """Ask until a chain comes whose nodes are all well: most are, so looking at those that were
    chosen is less work than looking at all first."""
    has_blocks = bool(state.hop_blocks or state.unreachable)

    def blocked(a: NodeId, b: NodeId) -> bool:
        return is_blocked(state, a, b)

    for _ in range(len(state.nodes) + 1):
        decision = router.route(
            query, excluded, is_blocked=blocked if has_blocks else None, held_tokens=held
        )
        if decision is None:
            return None
        unfit = {
            stage.node_id
            for stage in decision.route
            if not _is_fit(state, stage.node_id, stage.incarnation, is_choosy=is_choosy)
        }
        if not unfit:
            return decision
        excluded |= unfit
    return None


def _is_fit(state: CoreState, node_id: NodeId, incarnation: int, *, is_choosy: bool) -> bool:
    node = state.nodes.get(node_id)
    if node is None or node.incarnation != incarnation or not is_routable(state, node):
        return False
    return not is_choosy or node.rest_until_ms <= state.now_ms
