"""Proofs that no placement carries more: rates that are refuted.

If a rate F can be carried, so can every lower one (send less). So one refuted rate is a bound.
Refuting: the nodes over each layer carry F together, sum T_i >= F. Hence also sum g(T_i / F) >= 1
for g the identity and for g_m(x) = (floor((m - 1) x) + 1) / m below 1 (m whole: n < m items below
1 that sum to 1 or more have sum g_m >= 1, by rounding). Adding up over the layers,
sum_i max_k k g(T_i(k) / F) >= L; where that fails for some g, F is refuted.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pulp

HALVINGS: Final = 15
ORDERS: Final = (1, 2, 3, 4, 5, 6, 8, 12)
"""Members of the family; 1 stands for the identity."""
SLACK: Final = 1e-9
Tables = Sequence[Mapping[int, float]]


def weight(order: int, share: float) -> float:
    """g of a node that carries `share` of the rate."""
    if share >= 1.0 - SLACK:
        return 1.0
    if order == 1:
        return share
    return (math.floor((order - 1) * share + SLACK) + 1) / order


def is_refuted(tables: Tables, counts: Sequence[int], num_layers: int, rate: float) -> bool:
    """No placement of the nodes carries `rate` tokens/s."""
    for order in ORDERS:
        total = sum(
            count * max(k * weight(order, t / rate) for k, t in table.items())
            for table, count in zip(tables, counts, strict=True)
            if count and table
        )
        if total < num_layers - 1e-6:
            return True
    return False


def rate_bound(tables: Tables, counts: Sequence[int], num_layers: int, least: float) -> float:
    """The least refuted rate found above `least`, which is carried: just above each throughput
    that a node may have (where weights drop), and between those by halving."""
    steps = sorted({t for table in tables for t in table.values()})
    most = sum(c * max(t.values()) for t, c in zip(tables, counts, strict=True) if c and t)
    edges = [least, *(t for t in steps if least < t < most), most * (1.0 + 1e-6)]
    for low, high in itertools.pairwise(edges):
        if is_refuted(tables, counts, num_layers, low * (1.0 + 1e-6)):
            return low
        if not is_refuted(tables, counts, num_layers, high * (1.0 - 1e-9)):
            continue
        for _ in range(40):
            middle = (low + high) / 2
            if is_refuted(tables, counts, num_layers, middle):
                high = middle
            else:
                low = middle
        return high
    return most


@dataclass(frozen=True, slots=True)
class Ways:
    """What holds of every placement's ways: at most so many stages (None: any number), and whether
    they must cross between regions over links that carry less than the rate."""

    stages_max: int | None = None
    must_cross: bool = False


def ways_bound(
    tables: Tables,
    counts: Sequence[int],
    num_layers: int,
    ways: Ways,
    *,
    least: float,
    most: float,
    time_limit_s: float,
) -> float:
    """A bound for placements with such ways, at least `least`, by halving.

    Arc-flow on layer boundaries with positions added up: n_ck nodes of class c hold k layers and
    pass on f_ck <= min(T_c(k), F) n_ck. Every token passes L layers in at most M stages on
    average, sum k f = L F and sum f <= M F; and the covers of the module's docstring hold. Where
    ways must cross, not all layers are on one node each: it would hand all on over one link. So
    some layer is on two nodes or more, which carry F together.
    """
    low, high = least, most
    middle = low * (1.0 + 1e-6)
    for _ in range(HALVINGS):
        if high - low <= 1e-3 * high:
            break
        if _is_possible(tables, counts, num_layers, ways, middle, time_limit_s):
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return high


def _is_possible(
    tables: Tables,
    counts: Sequence[int],
    num_layers: int,
    ways: Ways,
    rate: float,
    time_limit_s: float,
) -> bool:
    program = pulp.LpProblem("ways", pulp.LpMinimize)
    arcs = [(c, k, t) for c, table in enumerate(tables) for k, t in sorted(table.items())]
    nodes = [pulp.LpVariable(f"n{c}_{k}", 0, counts[c], cat=pulp.LpInteger) for c, k, _ in arcs]
    # Flows as shares of the rate.
    flows = [pulp.LpVariable(f"f{c}_{k}", 0) for c, k, _ in arcs]
    program += _sum(flows)
    for node, flow, (_, _, t) in zip(nodes, flows, arcs, strict=True):
        program += flow <= min(1.0, t / rate) * node
    program += _sum(flows, [k for _, k, _ in arcs]) == num_layers
    if ways.stages_max is not None:
        program += _sum(flows) <= ways.stages_max
    for c, count in enumerate(counts):
        own = [n for n, arc in zip(nodes, arcs, strict=True) if arc[0] == c]
        if own:
            program += _sum(own) <= count
    for order in ORDERS:
        program += _sum(nodes, [k * weight(order, t / rate) for _, k, t in arcs]) >= num_layers
    if ways.must_cross:
        _share_a_layer(program, arcs, nodes, flows, rate)
    program.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=time_limit_s, random_seed=1))
    # Only a proof refutes: out of time is "possible".
    return bool(program.status != pulp.LpStatusInfeasible)


def _share_a_layer(
    program: pulp.LpProblem,
    arcs: Sequence[tuple[int, int, float]],
    nodes: Sequence[pulp.LpVariable],
    flows: Sequence[pulp.LpVariable],
    rate: float,
) -> None:
    """Two nodes or more carry the rate together, and each of them part of it."""
    sharing = [pulp.LpVariable(f"p{c}_{k}", 0, cat=pulp.LpInteger) for c, k, _ in arcs]
    shares = [pulp.LpVariable(f"s{c}_{k}", 0) for c, k, _ in arcs]
    for i, (_, _, t) in enumerate(arcs):
        most = min(1.0, t / rate)
        program += sharing[i] <= nodes[i]
        program += shares[i] <= most * sharing[i]
        program += shares[i] <= flows[i]
        program += flows[i] - shares[i] <= most * (nodes[i] - sharing[i])
    program += _sum(shares) == 1
    program += _sum(sharing) >= 2


def _sum(
    terms: Sequence[pulp.LpVariable], weights: Sequence[float] | None = None
) -> pulp.LpAffineExpression:
    if weights is None:
        return pulp.LpAffineExpression([(term, 1) for term in terms])
    return pulp.LpAffineExpression(list(zip(terms, weights, strict=True)))
