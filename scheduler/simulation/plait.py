"""plait as a strategy: planned chains, routes by phase 2, repair of what churn breaks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from plait.types import LayerSpan, ModelSpec, NodeId
from scheduler.cost import StageCost, stage_cost
from scheduler.selection.candidates import Candidate, Promise, Query
from scheduler.selection.places import Places
from scheduler.selection.router import Router
from scheduler.simulation.pool import Pool
from scheduler.simulation.report import GOOD_TPOT_S, GOOD_TTFT_S
from scheduler.simulation.state import Hop, Pipeline, Request, World
from scheduler.simulation.words import simulated_profile, simulated_spec

EXPECTED_NEW_TOKENS: Final = 256
NEARLY: Final = 0.95
"""A spare that keeps so much of its chain's rate is taken at once, and nobody else moves."""
Planner = Callable[[Pool, Sequence[int]], list[Pipeline]]
"""Pool and the machines that may be used -> whole chains, each over its own machines."""


class Repair(Protocol):
    """What is used of `pool_repair.PoolRepair`."""

    def __call__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        up: Collection[int],
        busy: Collection[int],
        held: Mapping[int, LayerSpan],
        now_s: float,
    ) -> list[Pipeline]: ...


class Plait:
    """Allocation, selection and repair: by idle nodes in the places of those that left, or by
    `repair` where one is given."""

    name = "plait"

    def __init__(self, pool: Pool, planner: Planner, repair: Repair | None = None) -> None:
        self._pool = pool
        self._planner = planner
        self._repair = repair
        self._spec: ModelSpec = simulated_spec(pool)
        machines = pool.ground.machines
        profiles = [simulated_profile(pool, i, self._spec) for i in range(len(machines))]
        self._ids = [p.node_id for p in profiles]
        self._index = {n: i for i, n in enumerate(self._ids)}
        self._costs: list[StageCost] = [stage_cost(p, self._spec) for p in profiles]
        self._links = Places(
            profiles,
            {n: m.region for n, m in zip(self._ids, machines, strict=True)},
            {n: 1e3 * m.last_mile_s for n, m in zip(self._ids, machines, strict=True)},
            [[1e3 * s for s in row] for row in pool.ground.region_rtt_s],
        )
        self._pipelines: list[Pipeline] = []
        self._spans: dict[int, LayerSpan] = {}
        self._router: Router | None = None
        self._reading: set[int] = set()

    def plan(self, world: World) -> dict[int, LayerSpan]:
        """At first the whole pool; then only who lost a member, and who is idle."""
        up = [i for i, node in enumerate(world.nodes) if node.is_up]
        self._pipelines, torn = self._mended(up)
        if self._repair is not None and (self._pipelines or torn):
            self._pipelines = self._repair(
                [*self._pipelines, *torn],
                up=up,
                busy=[i for i in up if world.nodes[i].requests],
                held=self._spans,
                now_s=world.now_s,
            )
        used = {i for p in self._pipelines for i, _ in p}
        free = [i for i in up if i not in used]
        for pipeline in self._planner(self._pool, free) if free else []:
            self._pipelines.append(pipeline)
            used |= {i for i, _ in pipeline}
        held = {i: s for i, s in self._spans.items() if i in up and i not in used}
        self._spans = {i: span for p in self._pipelines for i, span in p}
        self._spans |= self._spares([i for i in up if i not in used], held)
        return dict(self._spans)

    def _mended(self, up: Sequence[int]) -> tuple[list[Pipeline], list[Pipeline]]:
        """Chains that are whole, or are so with idle nodes in the gaps; and those that are torn."""
        chains = [p for p in self._pipelines if all(i in up for i, _ in p)]
        broken = [p for p in self._pipelines if p not in chains]
        used = {i for p in chains for i, _ in p}
        torn: list[Pipeline] = []
        for pipeline in broken:
            idle = [i for i in up if i not in used and i not in {j for j, _ in pipeline}]
            mended = mend(self._pool, pipeline, idle, set(up))
            is_enough = mended is not None and (
                self._repair is None or self._rate(mended) >= NEARLY * self._rate(pipeline)
            )
            if mended is None or not is_enough:
                torn.append(pipeline)
                continue
            chains.append(mended)
            used |= {i for i, _ in mended}
        return chains, torn

    def serving_changed(self, world: World) -> None:
        """New chains are looked for."""
        spans = world.spans()
        candidates = [self._candidate(world, i, span) for i, span in sorted(spans.items())]
        if not candidates:
            self._router = None
            return
        planned = [
            ([self._ids[i] for i, _ in p], self._rate(p))
            for p in self._pipelines
            if all(spans.get(i) == span for i, span in p)
        ]
        self._router = Router(
            candidates,
            self._links,
            spec=self._spec,
            hop_bytes=round(self._pool.ground.activation_bytes),
            planned=planned,
        )

    def route(self, world: World, request: Request) -> tuple[Hop, ...] | None:
        """Phase 2. How long the answer will be is not known, only how long it may become."""
        if self._router is None:
            return None
        self._tell_of_prompts(world)
        query = Query(
            spec=self._spec,
            prompt_tokens=request.arrival.prompt_tokens + request.num_generated,
            new_tokens=EXPECTED_NEW_TOKENS,
            kv_tokens=request.kv_tokens,
            hop_bytes=round(self._pool.ground.activation_bytes),
            promise=Promise(
                max(1.0, 1e3 * (GOOD_TTFT_S - (world.now_s - request.arrival.at_s))),
                1e3 * GOOD_TPOT_S,
            ),
        )
        decision = self._router.route(query)
        if decision is None:
            return None
        request.expected_ttft_s = decision.ttft_ms / 1e3
        last = len(decision.route) - 1
        return tuple(
            Hop(self._index[stage.node_id], len(stage.span), at == last)
            for at, stage in enumerate(decision.route)
        )

    def reserved(self, world: World, route: tuple[Hop, ...]) -> None:
        """Loads changed along `route`."""
        if self._router is None:
            return
        for hop in route:
            span = world.nodes[hop.node].span
            if span is not None:
                self._router.update(self._candidate(world, hop.node, span))

    def released(self, world: World, route: tuple[Hop, ...]) -> None:
        """Loads changed along `route`."""
        self.reserved(world, route)

    def _tell_of_prompts(self, world: World) -> None:
        """Prompts move on between requests: news of the nodes that read some."""
        assert self._router is not None
        reading: set[int] = set()
        for i, node in enumerate(world.nodes):
            if node.span is not None and any(r.num_generated == 0 for r in node.requests.values()):
                reading.add(i)
                self._router.update(self._candidate(world, i, node.span))
        for i in sorted(self._reading - reading):
            span = world.nodes[i].span
            if span is not None:
                self._router.update(self._candidate(world, i, span))
        self._reading = reading

    def _candidate(self, world: World, i: int, span: LayerSpan) -> Candidate:
        node = world.nodes[i]
        return Candidate(
            node_id=NodeId(self._ids[i]),
            incarnation=1,
            span=span,
            cost=self._costs[i],
            kv_tokens_free=node.kv_free if node.is_up else 0,
            kv_tokens_max=node.kv_tokens,
            num_requests=len(node.requests),
            queue_tokens=sum(r.prompt_left(world.now_s) for r in node.requests.values()),
        )

    def _rate(self, pipeline: Pipeline) -> float:
        """Its share of the load: sequences it has room for by the time of a token (Little)."""
        machines, last = self._pool.ground.machines, len(pipeline) - 1
        slots = min(self._pool.kv_tokens(i, span) for i, span in pipeline)
        token_s = sum(
            self._pool.step_s(i, len(span), 1, 0, num_heads=int(at == last))
            + self._pool.ground.rtt_s(machines[i], machines[pipeline[(at + 1) % (last + 1)][0]]) / 2
            for at, (i, span) in enumerate(pipeline)
        )
        return slots / max(1e-6, token_s)

    def _spares(self, idle: Sequence[int], held: dict[int, LayerSpan]) -> dict[int, LayerSpan]:
        """Nodes left over double a span that fits them, of the chain with the least spare KV; who
        holds such a span already keeps it."""
        wanted = sorted({span for p in self._pipelines for _, span in p})
        copies = dict.fromkeys(wanted, 0)
        spares: dict[int, LayerSpan] = {}
        for i in idle:
            own = held.get(i)
            if own is not None:
                spares[i] = own
                continue
            fitting = [s for s in wanted if fits(self._pool, i, s)]
            if fitting:
                span = min(fitting, key=lambda s: (copies[s], -len(s), s))
                copies[span] += 1
                spares[i] = span
        return spares


def fits(pool: Pool, i: int, span: LayerSpan) -> bool:
    """Whether machine `i` can hold `span`."""
    is_first, is_last = span.start == 0, span.end == pool.ground.num_layers
    return pool.ground.machines[i].layers_max(is_first=is_first, is_last=is_last) >= len(span)


def mend(pool: Pool, pipeline: Pipeline, idle: Sequence[int], up: set[int]) -> Pipeline | None:
    """The pipeline with idle machines in the places of those that left, the nearest that fit."""
    machines = pool.ground.machines
    alive = [i for i, _ in pipeline if i in up]
    mended: list[tuple[int, LayerSpan]] = []
    taken: set[int] = set()
    for i, span in pipeline:
        if i in up:
            mended.append((i, span))
            continue
        able = [j for j in idle if j not in taken and fits(pool, j, span)]
        if not able:
            return None
        nearest = min(
            able,
            key=lambda j: (sum(pool.ground.rtt_s(machines[j], machines[a]) for a in alive), j),
        )
        taken.add(nearest)
        mended.append((nearest, span))
    return tuple(mended)
