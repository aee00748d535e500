"""The fewest layers to read until a model is held again: neighbours of a gap reach over it."""

import math
from collections.abc import Iterator, Mapping

from plait.types import LayerSpan, NodeId, missing_spans
from scheduler.allocation.chain import ChainPlanner
from scheduler.allocation.moves import CACHED_SHARE, CachedLayers


def stretch(
    planner: ChainPlanner,
    held: Mapping[NodeId, LayerSpan],
    idle: frozenset[NodeId],
    fixed: frozenset[NodeId],
    cached: CachedLayers,
) -> dict[NodeId, LayerSpan] | None:
    """Changed spans with which every layer is held; None where there are none. Layers that come
    from a node's own disk count a tenth.

    A shortest path over boundaries: nodes come in the order in which they stand, idle ones where
    the first layers are missing, or else where most are. From "all before b is held" a node leads
    to its span's end for nothing where it holds b, and to any end that fits it for the layers that
    it has to read.
    """
    gaps = missing_spans(list(held.values()), planner.spec.num_layers)
    if not gaps:
        return {}
    widest = max(gaps, key=len)
    for gap in (gaps[0], widest) if idle and widest is not gaps[0] else gaps[:1]:
        changed = _path(planner, held, idle, gap.start, fixed, cached)
        if changed is not None:
            return changed
    return None


def _path(
    planner: ChainPlanner,
    held: Mapping[NodeId, LayerSpan],
    idle: frozenset[NodeId],
    idle_from: int,
    fixed: frozenset[NodeId],
    cached: CachedLayers,
) -> dict[NodeId, LayerSpan] | None:
    places = {n: (span.start, 1, n) for n, span in held.items()}
    places.update({n: (idle_from, 0, n) for n in idle})
    last = planner.spec.num_layers
    cost: list[float] = [0.0] + [math.inf] * last
    came: list[dict[int, tuple[NodeId, int, LayerSpan | None]]] = []
    for node_id in sorted(places, key=lambda n: places[n]):
        then, via = list(cost), dict[int, tuple[NodeId, int, LayerSpan | None]]()
        for before in range(last):
            if cost[before] == math.inf:
                continue
            for end, read, span in _steps(
                planner, node_id, held.get(node_id), before, fixed, cached
            ):
                if cost[before] + read < then[end]:
                    then[end] = cost[before] + read
                    via[end] = node_id, before, span
        cost = then
        came.append(via)
    if cost[last] == math.inf:
        return None
    changed: dict[NodeId, LayerSpan] = {}
    at = last
    for via in reversed(came):
        if at in via:
            node_id, at, span = via[at]
            if span is not None:
                changed[node_id] = span
    return changed


def _steps(
    planner: ChainPlanner,
    node_id: NodeId,
    kept: LayerSpan | None,
    before: int,
    fixed: frozenset[NodeId],
    cached: CachedLayers,
) -> Iterator[tuple[int, float, LayerSpan | None]]:
    """(end, layers to fetch, new span or None) from the boundary `before` on."""
    last = planner.spec.num_layers
    if kept is not None and kept.start <= before < kept.end:
        yield kept.end, 0.0, None
    if node_id in fixed:
        return
    for end in range(before + 1, last + 1):
        most = planner.cap(node_id, is_first=before == 0, is_last=end == last)
        if end - before > most:
            if end < last:
                continue
            return
        read = end - before
        if kept is not None:
            read -= max(0, min(end, kept.end) - max(before, kept.start))
        if cached:
            on_disk = sum(
                cached.has(node_id, planner.spec.model_id, layer)
                and not (kept is not None and kept.start <= layer < kept.end)
                for layer in range(before, end)
            )
            yield end, read - (1.0 - CACHED_SHARE) * on_disk, LayerSpan(before, end)
            continue
        yield end, read, LayerSpan(before, end)
