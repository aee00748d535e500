"""Where the boxes and lines of the network map stand. Pure geometry.

Columns follow layers, left to right; at most BOXES_MAX boxes a model, so that larger networks are
shown as groups of nodes: first those that hold the same layers, then those that hold nearby ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.core.view import ModelView, NodeView
from coordinator.dashboard.flows import GATEWAY, Flow

BOXES_MAX: Final = 36
COLUMNS_MAX: Final = 6
BOX_WIDTH: Final = 150
BOX_HEIGHT: Final = 46
STEP_MIN: Final = 234
STEP_MAX: Final = 330
WIDTH: Final = 1_316
"""What a wide screen shows without scrolling; the map is wider where that is too narrow."""

ROW_STEP: Final = 76
MARGIN: Final = 12
IN, OUT = "in", "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node, or several alike; `x`, `y` is its upper left corner. IN and OUT have no nodes."""

    key: str
    nodes: tuple[NodeView, ...]
    span: tuple[int, int]
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`num_hops` hops between the nodes of two boxes; `rtt_ms` their mean, None: not measured."""

    source: Box
    target: Box
    tokens_per_s: float
    rtt_ms: float | None
    num_hops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Boxes and lines, and the size of the picture."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    width: int
    height: int


def lay_out(model: ModelView, holders: Sequence[NodeView], flows: Sequence[Flow]) -> Layout:
    """The picture of one model. O(nodes + hops)."""
    groups = _groups(model, holders)
    spans = {key: _span(nodes) for key, nodes in groups.items()}
    column_of = _columns(spans, model.num_layers)
    rows = _rows(spans, column_of)
    num_columns = 1 + max(column_of.values(), default=0)
    room = WIDTH - BOX_WIDTH - 2 * MARGIN
    step = min(STEP_MAX, max(STEP_MIN, room // (num_columns + 1)))
    height = 2 * MARGIN + max(rows.values(), default=0) * ROW_STEP + BOX_HEIGHT
    boxes = {IN: _end_box(IN, MARGIN, height)}
    for key, row in rows.items():
        x, y = MARGIN + (1 + column_of[key]) * step, MARGIN + row * ROW_STEP
        boxes[key] = Box(key=key, nodes=tuple(groups[key]), span=spans[key], x=x, y=y)
    right = MARGIN + (num_columns + 1) * step
    boxes[OUT] = _end_box(OUT, right, height)
    edges = _edges(boxes, flows)
    width = right + BOX_WIDTH + MARGIN
    return Layout(boxes=tuple(boxes.values()), edges=edges, width=width, height=height)


def _groups(model: ModelView, holders: Sequence[NodeView]) -> dict[str, list[NodeView]]:
    """The finest grouping that has few enough groups."""
    step = max(1, -(-model.num_layers // 12))
    ways: tuple[Callable[[NodeView], str], ...] = (
        lambda node: node.node_id,
        lambda node: f"{_span([node])}",
        lambda node: f"near {_span([node])[0] // step}",
    )
    for way in ways:
        found: dict[str, list[NodeView]] = {}
        for node in holders:
            found.setdefault(way(node), []).append(node)
        if len(found) <= BOXES_MAX:
            return found
    return found


def _span(nodes: Sequence[NodeView]) -> tuple[int, int]:
    spans = [node.span for node in nodes if node.span is not None]
    return min(start for start, _ in spans), max(end for _, end in spans)


def _columns(spans: Mapping[str, tuple[int, int]], num_layers: int) -> dict[str, int]:
    """Columns by where spans start, at most COLUMNS_MAX, none of them empty."""
    starts = sorted({start for start, _ in spans.values()})
    if len(starts) > COLUMNS_MAX:
        near = {start: start * COLUMNS_MAX // max(1, num_layers) for start in starts}
    else:
        near = {start: start for start in starts}
    place = {each: at for at, each in enumerate(sorted(set(near.values())))}
    return {key: place[near[start]] for key, (start, _) in spans.items()}


def _rows(spans: Mapping[str, tuple[int, int]], column_of: Mapping[str, int]) -> dict[str, int]:
    """Boxes that follow each other without overlap share a row, so that lines between them run
    straight and pass behind nobody."""
    ends: list[tuple[int, int]] = []
    rows: dict[str, int] = {}
    for key in sorted(spans, key=lambda key: (spans[key], key)):
        (start, end), column = spans[key], column_of[key]
        free = (i for i, last in enumerate(ends) if last[0] <= start and last[1] < column)
        row = next(free, len(ends))
        if row == len(ends):
            ends.append((end, column))
        ends[row] = (end, column)
        rows[key] = row
    return rows


def _end_box(key: str, x: int, height: int) -> Box:
    return Box(key=key, nodes=(), span=(0, 0), x=x, y=(height - BOX_HEIGHT) // 2)


def _edges(boxes: Mapping[str, Box], flows: Sequence[Flow]) -> tuple[Edge, ...]:
    home = {node.node_id: box for box in boxes.values() for node in box.nodes}
    by_id = {node.node_id: node for box in boxes.values() for node in box.nodes}
    rates: dict[tuple[str, str], float] = {}
    rtts: dict[tuple[str, str], list[float]] = {}
    hops: dict[tuple[str, str], int] = {}

    def add(source: Box | None, target: Box | None, rate: float, rtt_ms: float | None) -> None:
        if source is None or target is None:
            return
        pair = (source.key, target.key)
        rates[pair] = rates.get(pair, 0.0) + rate
        hops[pair] = hops.get(pair, 0) + 1
        if rtt_ms is not None:
            rtts.setdefault(pair, []).append(rtt_ms)

    moving = {(flow.source_id, flow.target_id) for flow in flows}
    for flow in flows:
        source = boxes[IN] if flow.source_id == GATEWAY else home.get(flow.source_id)
        target = boxes[OUT] if flow.target_id == GATEWAY else home.get(flow.target_id)
        add(source, target, flow.tokens_per_s, _rtt_ms(by_id, flow.source_id, flow.target_id))
    for node in by_id.values():
        for hop in node.hops:
            other = by_id.get(hop.neighbour_id)
            if other is None or (node.node_id, other.node_id) in moving:
                continue
            if node.span and other.span and node.span[1] == other.span[0]:
                add(home[node.node_id], home[other.node_id], 0.0, hop.rtt_ms)
    return tuple(
        Edge(
            source=boxes[pair[0]],
            target=boxes[pair[1]],
            tokens_per_s=rate,
            rtt_ms=sum(rtts[pair]) / len(rtts[pair]) if pair in rtts else None,
            num_hops=hops[pair],
        )
        for pair, rate in rates.items()
    )


def _rtt_ms(by_id: Mapping[str, NodeView], source_id: str, target_id: str) -> float | None:
    """Measured by either end; the coordinator's own hops are measured by nodes."""
    if GATEWAY in (source_id, target_id):
        node = by_id.get(source_id or target_id)
        return node.coordinator_rtt_ms if node is not None and node.coordinator_rtt_ms > 0 else None
    for a, b in ((source_id, target_id), (target_id, source_id)):
        node = by_id.get(a)
        for hop in node.hops if node is not None else ():
            if hop.neighbour_id == b:
                return hop.rtt_ms
    return None
