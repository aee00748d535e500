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
from typing import Final

import pulp

STAGED_HALVINGS: Final = 14
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


def staged_bound(
    tables: Tables,
    counts: Sequence[int],
    num_layers: int,
    stages_max: int,
    *,
    least: float,
    most: float,
    time_limit_s: float,
) -> float:
    """A bound for placements whose ways have at most `stages_max` stages, by halving.

    Arc-flow on layer boundaries with positions added up: n_ck nodes of class c hold k layers and
    pass on f_ck <= min(T_c(k), F) n_ck. Every token passes L layers in at most M stages on
    average, sum k f = L F and sum f <= M F; and the covers of the module's docstring hold.
    """
    low, high = least, most
    for _ in range(STAGED_HALVINGS):
        if high - low <= 1e-3 * high:
            break
        middle = (low + high) / 2
        if _is_possible(tables, counts, num_layers, stages_max, middle, time_limit_s):
            low = middle
        else:
            high = middle
    return high


def _is_possible(
    tables: Tables,
    counts: Sequence[int],
    num_layers: int,
    stages_max: int,
    rate: float,
    time_limit_s: float,
) -> bool:
    program = pulp.LpProblem("staged", pulp.LpMinimize)
    arcs = [(c, k, t) for c, table in enumerate(tables) for k, t in sorted(table.items())]
    nodes = [pulp.LpVariable(f"n{c}_{k}", 0, counts[c], cat=pulp.LpInteger) for c, k, _ in arcs]
    # Flows as shares of the rate.
    flows = [pulp.LpVariable(f"f{c}_{k}", 0) for c, k, _ in arcs]
    program += pulp.LpAffineExpression([(flow, 1) for flow in flows])
    for node, flow, (_, _, t) in zip(nodes, flows, arcs, strict=True):
        program += flow <= min(1.0, t / rate) * node
    program += (
        pulp.LpAffineExpression([(f, k) for f, (_, k, _) in zip(flows, arcs, strict=True)])
        == num_layers
    )
    program += pulp.LpAffineExpression([(flow, 1) for flow in flows]) <= stages_max
    for c, count in enumerate(counts):
        own = [(n, 1) for n, arc in zip(nodes, arcs, strict=True) if arc[0] == c]
        if own:
            program += pulp.LpAffineExpression(own) <= count
    for order in ORDERS:
        cover = [(n, k * weight(order, t / rate)) for n, (_, k, t) in zip(nodes, arcs, strict=True)]
        program += pulp.LpAffineExpression(cover) >= num_layers
    program.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=time_limit_s, random_seed=1))
    # Only a proof refutes: out of time is "possible".
    return bool(program.status != pulp.LpStatusInfeasible)
