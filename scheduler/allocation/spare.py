"""What to do with nodes that complete no further chain: hold once more what others hold."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from plait.types import LayerSpan, NodeId
from scheduler.allocation.chain import ChainPlanner
from scheduler.cost import kv_tokens_room
from scheduler.survival import up_share

Strength = tuple[int, float]
"""Of layers: how many nodes hold them, and the steps per second of all these together."""
RATE_MIN: Final = 1e-9


def replicate(
    planner: ChainPlanner, held: Mapping[NodeId, LayerSpan], free: Sequence[NodeId]
) -> dict[NodeId, LayerSpan]:
    """Spans for `free` nodes: each takes the weakest layers that fit on it, the largest node first,
    and as many more beside them as it has room for.

    Boundaries are those of what is held, or was when the plan was asked for: a stage may run any
    part of its node's span, so that a wide copy stands in for whichever node is lost, loaded as it
    is. Nodes on which nothing between two boundaries fits get none.
    """
    given: dict[NodeId, LayerSpan] = {}
    cuts = sorted(planner.cuts | {cut for s in held.values() for cut in (s.start, s.end)})
    parts = [LayerSpan(start, end) for start, end in pairwise(cuts)]
    known: list[Strength] = [(0, 0.0)] * len(parts)
    for node_id in sorted(held):
        _strengthen(planner, parts, known, node_id, held[node_id])
    for node_id in sorted(free, key=lambda n: (-planner.profiles[n].memory_bytes, n)):
        windows = _windows(planner, node_id, parts)
        if not windows:
            continue
        at, to = _most_needed(parts, known, windows)
        given[node_id] = LayerSpan(parts[at].start, parts[to - 1].end)
        _strengthen(planner, parts, known, node_id, given[node_id])
    return given


def _windows(
    planner: ChainPlanner, node_id: NodeId, parts: Sequence[LayerSpan]
) -> list[tuple[int, int]]:
    """From each part (place in the list) to before which the node has room, with the KV that every
    stage needs."""
    profile, spec = planner.profiles[node_id], planner.spec

    def fits(at: int, to: int) -> bool:
        span = LayerSpan(parts[at].start, parts[to - 1].end)
        return kv_tokens_room(profile, spec, span) >= planner.kv_tokens_min

    found: list[tuple[int, int]] = []
    to = 0
    for at in range(len(parts)):
        to = max(to, at)
        while to < len(parts) and fits(at, to + 1):
            to += 1
        if to > at:
            found.append((at, to))
    return found


def _most_needed(
    parts: Sequence[LayerSpan], known: Sequence[Strength], windows: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Of those with the weakest part that fits: with most layers that have as few holders, then
    most layers by how weak they are."""
    weakest = min({i for at, to in windows for i in range(at, to)}, key=lambda i: (known[i], i))
    num_holders = known[weakest][0]

    def lacks(window: tuple[int, int]) -> tuple[int, float, int]:
        within = range(*window)
        as_few = sum(len(parts[i]) for i in within if known[i][0] == num_holders)
        return as_few, sum(len(parts[i]) / max(RATE_MIN, known[i][1]) for i in within), -window[0]

    return max((w for w in windows if w[0] <= weakest < w[1]), key=lacks)


def _strengthen(
    planner: ChainPlanner,
    parts: Sequence[LayerSpan],
    known: list[Strength],
    node_id: NodeId,
    span: LayerSpan,
) -> None:
    rate = _rate(planner, node_id, span)
    for i, part in enumerate(parts):
        if span.contains(part):
            num_holders, sum_of_rates = known[i]
            known[i] = num_holders + 1, sum_of_rates + rate


def _rate(planner: ChainPlanner, node_id: NodeId, span: LayerSpan) -> float:
    """Steps per second of a stage alone, over all the time: spans of nodes that come and go are
    doubled first."""
    cost = planner.costs[node_id]
    step_ms = cost.decode_ms(
        len(span), 1, is_first=span.start == 0, is_last=span.end == planner.spec.num_layers
    )
    return 1e3 / step_ms * up_share(planner.losses.get(node_id, 0.0))
