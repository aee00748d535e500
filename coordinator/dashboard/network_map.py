"""The network map: who feeds whom, how much, and how far apart they are. SVG drawn here. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from coordinator.core.view import ModelView, NodeView
from coordinator.dashboard import figures
from coordinator.dashboard.layers import NODE_TONES, holders_of
from coordinator.dashboard.map_layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    IN,
    OUT,
    STEP_MIN,
    Box,
    Edge,
    Layout,
    lay_out,
)
from coordinator.dashboard.markup import chip, link, row, section, table, text
from coordinator.dashboard.nodes import NO_NODE
from coordinator.dashboard.paging import address
from coordinator.dashboard.snapshot import Snapshot

LABELS_MAX: Final = 24
HOPS_SHOWN: Final = 25
NAME_CHARS: Final = 17
UNPLACED_SHOWN: Final = 24
WIDEST: Final = 11.0
HOP_HEADS: Final = (
    ("From", ""),
    ("To", ""),
    ("Tokens/s", "num"),
    ("Round trip", "num"),
    ("Hops", "num"),
)
LEGEND: Final = (
    "The wider a line, the more tokens a second pass (above it); below it, the round trip. Dashed "
    "lines are measured and idle."
)


def draw_maps(snapshot: Snapshot) -> str:
    """A picture for each model, and who is in none."""
    if not snapshot.view.nodes:
        return section("Map", f'<p class="empty">{NO_NODE}</p>')
    maps = "".join(_map(snapshot, model) for model in snapshot.view.models)
    return maps + _unplaced(snapshot)


def _map(snapshot: Snapshot, model: ModelView) -> str:
    holders = holders_of(snapshot.view, model)
    if not holders:
        said = "Nobody holds layers of it yet. "
        body = f'<p class="empty">{said}{link(address("models"), "What it needs")}</p>'
        return section(model.model_id, body)
    layout = lay_out(model, holders, snapshot.flows)
    name = f"Map of {model.model_id}"
    picture = (
        f'<div class="scroll map" tabindex="0" role="region" aria-label="{text(name)}">'
        f"{_svg(layout, name)}</div>"
    )
    busy = sum(edge.tokens_per_s for edge in layout.edges if edge.target.key == OUT)
    aside = f"{figures.count(len(holders))} nodes, {figures.per_second(busy)} tokens/s out"
    return section(model.model_id, picture + _hops(layout), aside=aside, description=LEGEND)


def _svg(layout: Layout, name: str) -> str:
    most = max((edge.tokens_per_s for edge in layout.edges), default=0.0)
    ordered = sorted(layout.edges, key=lambda edge: edge.tokens_per_s)
    lines = "".join(_line(edge, most) for edge in ordered)
    boxes = "".join(_box(box) for box in layout.boxes)
    labels = "".join(_label(edge) for edge in ordered[-LABELS_MAX:])
    return (
        f'<svg class="net" viewBox="0 0 {layout.width} {layout.height}" '
        f'width="{layout.width}" height="{layout.height}" role="group" '
        f'aria-label="{text(name)}">{lines}{boxes}{labels}</svg>'
    )


def _line(edge: Edge, most: float) -> str:
    start, first, second, end = _curve(edge)
    width = 1.5
    kind = "edge edge-idle"
    if edge.tokens_per_s > 0:
        width += (WIDEST - 1.5) * math.sqrt(edge.tokens_per_s / most)
        kind = "edge"
    path = (
        f"M{start[0]},{start[1]} C{first[0]},{first[1]} {second[0]},{second[1]} {end[0]},{end[1]}"
    )
    return (
        f'<path data-key="{text(_key(edge))}" class="{kind}" d="{path}" '
        f'stroke-width="{width:.1f}"><title>{text(_said(edge))}</title></path>'
    )


def _label(edge: Edge) -> str:
    """What passes above the line, how far it is below, in the gap behind the line's source."""
    x, y = _beside(edge)
    rate = f"{figures.per_second(edge.tokens_per_s)}/s" if edge.tokens_per_s > 0 else ""
    rtt = figures.milliseconds(float(edge.rtt_ms)) if edge.rtt_ms is not None else ""
    return "".join(
        f'<text data-key="{kind} {text(_key(edge))}" class="edge-label" x="{x:.0f}" '
        f'y="{y + by:.0f}" text-anchor="middle">{said}</text>'
        for kind, said, by in (("rate", rate, -9), ("rtt", rtt, 19))
        if said
    )


def _box(box: Box) -> str:
    x, y = box.x, box.y
    shape = f'<rect class="box" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
    if box.key in (IN, OUT):
        note = "prompts go in" if box.key == IN else "tokens come out"
        return f'<g data-key="{box.key}" class="end">{shape}{_words(box, "coordinator", note)}</g>'
    tone = NODE_TONES.get(box.nodes[0].state, "calm") if len(box.nodes) == 1 else "ok"
    stripe = f'<rect class="stripe stripe-{tone}" x="{x}" y="{y}" width="5" height="{BOX_HEIGHT}"/>'
    if len(box.nodes) == 1:
        node = box.nodes[0]
        name, href = node.display_name or node.node_id, address(f"nodes/{node.node_id}")
    else:
        name, href = f"{figures.count(len(box.nodes))} nodes", address("nodes")
    note = f"layers {figures.layers(box.span)}"
    title = f"{name}, {note}, {_states(box.nodes)}"
    return (
        f'<a data-key="{text(box.key)}" href="{text(href)}" aria-label="{text(title)}">'
        f"<title>{text(title)}</title>{shape}{stripe}{_words(box, name, note)}</a>"
    )


def _words(box: Box, name: str, note: str) -> str:
    short = name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}\u2026"
    return (
        f'<text class="box-name" x="{box.x + 16}" y="{box.y + 20}">{text(short)}</text>'
        f'<text class="box-note" x="{box.x + 16}" y="{box.y + 37}">{text(note)}</text>'
    )


def _hops(layout: Layout) -> str:
    """The same in a table, for who reads rather than looks."""
    ordered = sorted(layout.edges, key=lambda e: (-e.tokens_per_s, e.source.span, e.target.span))
    rows = (
        row(
            _key(edge),
            HOP_HEADS,
            (
                _end(edge.source),
                _end(edge.target),
                figures.per_second(edge.tokens_per_s) if edge.tokens_per_s else figures.DASH,
                figures.milliseconds(edge.rtt_ms),
                figures.count(edge.num_hops),
            ),
        )
        for edge in ordered[:HOPS_SHOWN]
    )
    empty = "Nothing has passed yet, and no hop has been measured."
    drawn = table("Hops", HOP_HEADS, rows, empty=empty)
    hidden = len(ordered) - HOPS_SHOWN
    more = f'<p class="empty">{figures.count(hidden)} quieter hops not shown.</p>'
    return drawn + (more if hidden > 0 else "")


def _end(box: Box) -> str:
    if box.key in (IN, OUT):
        return "coordinator"
    if len(box.nodes) == 1:
        node = box.nodes[0]
        return link(address(f"nodes/{node.node_id}"), node.display_name or node.node_id)
    return f"{figures.count(len(box.nodes))} nodes, layers {figures.layers(box.span)}"


def _unplaced(snapshot: Snapshot) -> str:
    idle = [n for n in snapshot.view.nodes if n.span is None and n.state != "gone"]
    if not idle:
        return ""
    items = "".join(
        f"<li>{link(address(f'nodes/{n.node_id}'), n.display_name or n.node_id)} "
        f"{chip(n.state, NODE_TONES.get(n.state, 'calm'))}</li>"
        for n in idle[:UNPLACED_SHOWN]
    )
    hidden = len(idle) - UNPLACED_SHOWN
    aside = f"{figures.count(hidden)} more" if hidden > 0 else ""
    return section("Without layers", f'<ul class="chips">{items}</ul>', aside=aside)


def _states(nodes: Sequence[NodeView]) -> str:
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    if len(nodes) == 1:
        return nodes[0].state
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _said(edge: Edge) -> str:
    rtt = figures.milliseconds(edge.rtt_ms) if edge.rtt_ms is not None else "not measured"
    rate = figures.per_second(edge.tokens_per_s)
    return f"{rate} tokens/s, round trip {rtt}, {edge.num_hops} hops"


def _key(edge: Edge) -> str:
    return f"{edge.source.key} {edge.target.key}"


Point = tuple[float, float]


def _curve(edge: Edge) -> tuple[Point, Point, Point, Point]:
    """A line that leaves to the right and comes in from the left."""
    x1, y1 = edge.source.x + BOX_WIDTH, edge.source.y + BOX_HEIGHT // 2
    x2, y2 = edge.target.x, edge.target.y + BOX_HEIGHT // 2
    pull = max(50, abs(x2 - x1) // 2)
    return (x1, y1), (x1 + pull, y1), (x2 - pull, y2), (x2, y2)


def _beside(edge: Edge) -> Point:
    """The line's point in the middle of the gap to the next column."""
    curve = _curve(edge)
    gap = min(max(curve[3][0] - curve[0][0], 40), STEP_MIN - BOX_WIDTH)
    x = curve[0][0] + gap / 2
    low, high = 0.0, 1.0
    for _ in range(12):  # x rises along the line, save where it goes back
        middle = (low + high) / 2
        low, high = (middle, high) if _at(middle, curve)[0] < x else (low, middle)
    return _at(low, curve)


def _at(t: float, curve: tuple[Point, Point, Point, Point]) -> Point:
    """A cubic's point."""
    u = 1 - t
    weights = (u**3, 3 * u * u * t, 3 * u * t * t, t**3)
    return (
        sum(w * p[0] for w, p in zip(weights, curve, strict=True)),
        sum(w * p[1] for w, p in zip(weights, curve, strict=True)),
    )
