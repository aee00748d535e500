"""Plans a cluster: stages by ILP, in the order in which the links carry most; its bound."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.errors import UnavailableError
from scheduler.planning.cluster import Cluster, depth, placement_flow, regions_of
from scheduler.planning.cluster_bound import Ways, rate_bound, ways_bound
from scheduler.planning.cluster_links import Regions, crossings_of, improved, must_cross
from scheduler.planning.ground import Wish
from scheduler.planning.pack import NoSolverError
from scheduler.planning.stages import Crossings, Stage, best_stages

Placed = dict[int, tuple[int, int]]
ORDERS_MAX: Final = 400
REFINED_MAX: Final = 6
LINK_SHARE: Final = 0.9
"""A crossing's links are taken to carry as much as this share of all links between regions may."""
LEAST: Final = 1e-3
FRONT_POINTS: Final = 6
PROVED: Final = 1.0005
"""A bound this close is a proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """`spans` by node index; `num_stages` on the longest way."""

    spans: Placed
    flow_per_s: float
    bound_per_s: float
    num_stages: int
    front: tuple[tuple[int, float], ...]
    worth: tuple[tuple[str, float], ...]
    solver: str
    warnings: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        """The bound leaves nothing to gain."""
        return self.bound_per_s <= self.flow_per_s * PROVED


@dataclass(frozen=True, slots=True)
class _Classes:
    """Nodes by (region, type)."""

    members: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    regions: tuple[int, ...]

    def counts(self) -> list[int]:
        return [len(m) for m in self.members]


def plan_cluster(cluster: Cluster, wish: Wish, *, trouble: str | None = None) -> ClusterPlan:
    """The best placement found within `wish.stages_max` stages; where `trouble` says why there is
    no solver, one without it.

    Raises UnavailableError: "not_enough_memory" where the layers do not fit, "slo_infeasible" where
    they only fit into more stages.
    """
    room = sum(max(cluster.table[kind], default=0) for kind in cluster.kinds)
    if room < cluster.num_layers:
        raise UnavailableError(
            f"not enough memory: {len(cluster.kinds)} nodes hold at most {room} of "
            f"{cluster.num_layers} layers",
            reason="not_enough_memory",
        )
    warnings: list[str] = []
    front: list[tuple[int, float]] = []
    worth: list[tuple[str, float]] = []
    solver = "highs"
    try:
        if trouble is not None:
            raise NoSolverError(trouble)
        flow, spans = _search(cluster, wish, front)
        bound = _bound(cluster, wish, flow)
        worth = _worth(cluster, wish, flow)
    except NoSolverError as error:
        warnings.append(f"planned without the solver: {error}")
        solver = "greedy"
        flow, spans = _greedy(cluster, wish.stages_max)
        bound = rate_bound(cluster.table, _counts(cluster), cluster.num_layers, max(flow, LEAST))
    if flow <= 0.0:
        raise UnavailableError(
            f"no placement of at most {wish.stages_max} stages was found", reason="slo_infeasible"
        )
    return ClusterPlan(
        spans=spans,
        flow_per_s=flow,
        bound_per_s=max(flow, bound),
        num_stages=depth(cluster, spans),
        front=_undominated(front),
        worth=tuple(worth),
        solver=solver,
        warnings=tuple(warnings),
    )


def _undominated(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """(stages, tokens/s) of which none is both shorter and faster."""
    kept: list[tuple[int, float]] = []
    for size, flow in sorted(points):
        if not kept or flow > kept[-1][1]:
            kept.append((size, flow))
    return tuple(kept)


def _counts(cluster: Cluster) -> list[int]:
    return [cluster.kinds.count(kind) for kind in range(len(cluster.types))]


def _bound(cluster: Cluster, wish: Wish, flow: float) -> float:
    """What no placement exceeds, with as many stages as are allowed."""
    counts = _counts(cluster)
    least = max(flow, LEAST)
    bound = rate_bound(cluster.table, counts, cluster.num_layers, least)
    ways = Ways(wish.stages_max, must_cross(cluster, least))
    if bound <= flow * PROVED or ways == Ways():
        return bound
    return ways_bound(
        cluster.table,
        counts,
        cluster.num_layers,
        ways,
        least=least,
        most=bound,
        time_limit_s=wish.time_limit_s / 10,
    )


def _worth(cluster: Cluster, wish: Wish, flow: float) -> list[tuple[str, float]]:
    """What one more node of each type would add, if no link bound."""
    found: list[tuple[str, float]] = []
    for kind, name in enumerate(cluster.types):
        counts = _counts(cluster)
        counts[kind] += 1
        stages = best_stages(
            cluster.table,
            counts,
            [0] * len(counts),
            cluster.num_layers,
            stages_max=wish.stages_max,
            rate_min=flow,
            rate_max=rate_bound(cluster.table, counts, cluster.num_layers, max(flow, LEAST)),
            time_limit_s=wish.time_limit_s / 10,
        )
        better = min((stage.rate for stage in stages), default=flow)
        found.append((name, max(0.0, better - flow)))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _search(cluster: Cluster, wish: Wish, front: list[tuple[int, float]]) -> tuple[float, Placed]:
    """The best placement of at most `wish.stages_max` stages; shorter ones go to `front`.

    A long chain over many narrow links may carry less than a short one, so shorter ones are tried
    also where longer are allowed.
    """
    stages_max = wish.stages_max
    ceiling = rate_bound(cluster.table, _counts(cluster), cluster.num_layers, LEAST)
    best: tuple[float, Placed] = (0.0, {})
    for _ in range(FRONT_POINTS):
        flow, spans, target = _with_stages(cluster, wish, stages_max, ceiling)
        if not spans:
            break
        best = max(best, (flow, spans), key=lambda pair: pair[0])
        size = depth(cluster, spans)
        front.append((size, flow))
        ceiling = target
        stages_max = min(size - 1, max(1, (size * 9) // 10))
        if stages_max < 1:
            break
    return best


def _with_stages(
    cluster: Cluster, wish: Wish, stages_max: int | None, ceiling: float
) -> tuple[float, Placed, float]:
    """Stages within regions between which links may bind, and as if none did: the better. And
    the rate that links apart would allow."""
    one = (tuple(range(len(cluster.kinds))),)
    apart = regions_of(cluster, ceiling)
    ways: list[tuple[Regions, Crossings | None]] = [(apart, None)]
    if len(apart) > 1:
        ways += [(apart, crossings_of(cluster, apart, LINK_SHARE)), (one, None)]
    best: tuple[float, Placed] = (0.0, {})
    target = 0.0
    for regions, crossings in ways:
        classes = _classes(cluster, regions)
        tables = [cluster.table[kind] for kind in classes.kinds]
        stages = best_stages(
            tables,
            classes.counts(),
            classes.regions,
            cluster.num_layers,
            stages_max=stages_max,
            rate_min=best[0],
            rate_max=ceiling,
            time_limit_s=wish.time_limit_s / 10,
            crossings=crossings,
        )
        target = max(target, min((stage.rate for stage in stages), default=0.0))
        found = _best_order(cluster, classes, stages)
        best = max(best, found, key=lambda pair: pair[0])
        if best[0] >= target * (1.0 - 1e-9) and best[1]:
            break
    return (*best, target)


def _classes(cluster: Cluster, regions: Sequence[Sequence[int]]) -> _Classes:
    groups: dict[tuple[int, int], list[int]] = {}
    for region, nodes in enumerate(regions):
        for i in nodes:
            groups.setdefault((region, cluster.kinds[i]), []).append(i)
    keys = sorted(groups)
    return _Classes(
        tuple(tuple(groups[key]) for key in keys),
        tuple(kind for _, kind in keys),
        tuple(region for region, _ in keys),
    )


def _best_order(
    cluster: Cluster, classes: _Classes, stages: Sequence[Stage]
) -> tuple[float, Placed]:
    """Regions one after the other, with the stages at the crossings that carry most."""
    if not stages:
        return 0.0, {}
    by_region: dict[int, list[Stage]] = {}
    for stage in sorted(stages, key=lambda s: (s.num_layers, s.members)):
        by_region.setdefault(stage.region, []).append(stage)
    tried: list[tuple[float, Placed]] = []
    target = min(stage.rate for stage in stages)
    for ring in itertools.permutations(by_region):
        choices = [_ends(by_region[region]) for region in ring]
        for ends in itertools.product(*choices):
            if len(tried) >= ORDERS_MAX:
                break
            spans = _place(classes, [stage for block in ends for stage in block])
            tried.append((placement_flow(cluster, spans), spans))
            if tried[-1][0] >= target * (1.0 - 1e-9):
                return tried[-1]
    tried.sort(key=lambda pair: -pair[0])
    refined = [improved(cluster, spans, target) for _, spans in tried[:REFINED_MAX]]
    return max(refined, key=lambda pair: pair[0])


def _ends(block: Sequence[Stage]) -> list[list[Stage]]:
    """Orders of a region's stages that differ at the ends: many nodes carry more links."""
    if len(block) == 1:
        return [list(block)]
    wide = sorted(range(len(block)), key=lambda i: (-sum(block[i].members), i))
    found: dict[tuple[Stage, Stage], list[Stage]] = {}
    for first, last in itertools.permutations(wide[:4], 2):
        inner = [block[i] for i in range(len(block)) if i not in (first, last)]
        found.setdefault((block[first], block[last]), [block[first], *inner, block[last]])
    return list(found.values())


def _place(classes: _Classes, order: Sequence[Stage]) -> Placed:
    left = [list(members) for members in classes.members]
    spans: Placed = {}
    at = 0
    for stage in order:
        for index, count in enumerate(stage.members):
            for _ in range(count):
                spans[left[index].pop(0)] = (at, at + stage.num_layers)
        at += stage.num_layers
    return spans


def _greedy(cluster: Cluster, stages_max: int | None) -> tuple[float, Placed]:
    """Without a solver: the roomiest nodes one after the other, each with all it holds."""
    spans: Placed = {}
    at = 0
    for i in sorted(range(len(cluster.kinds)), key=lambda i: -max(cluster.table[cluster.kinds[i]])):
        if at == cluster.num_layers:
            break
        count = min(cluster.num_layers - at, max(cluster.table[cluster.kinds[i]]))
        spans[i] = (at, at + count)
        at += count
    if at < cluster.num_layers or (stages_max is not None and len(spans) > stages_max):
        return 0.0, {}
    return placement_flow(cluster, spans), spans
