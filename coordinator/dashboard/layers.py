"""Layers against replicas of each model, the slowest layers marked, as HTML. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from coordinator.core.view import ModelView, NetworkView, NodeView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import chip, section, text
from coordinator.dashboard.paging import address
from coordinator.dashboard.snapshot import Snapshot

ROWS_SHOWN: Final = 10
LEGEND: Final = "A figure: how many nodes hold that layer. A bar: one node, up to ten rows of them."
ALIKE: Final = 1.02
NODE_TONES: Final = {
    "joining": "busy",
    "standby": "calm",
    "loading": "busy",
    "serving": "ok",
    "draining": "warn",
    "paused": "warn",
    "gone": "calm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Layers [start, end) that carry the fewest tokens a second, one sequence at a time on each of
    their `holders`."""

    start: int
    end: int
    tokens_per_s: float
    holders: tuple[NodeView, ...]


def draw_layers(snapshot: Snapshot) -> str:
    """For each model: replicas of every layer, and under them who holds which span."""
    return "".join(draw_strip(snapshot.view, model) for model in snapshot.view.models)


def draw_strip(view: NetworkView, model: ModelView) -> str:
    """One model's panel."""
    aside = chip("ready", "ok") if model.is_ready else chip("not ready", "bad")
    slow = bottleneck(view, model)
    note = (
        f"{text(model.architecture)}, {model.num_layers} layers, context "
        f"{figures.count(model.context_tokens_max)} tokens. "
        f"{_coverage(model.replicas_per_layer)}{_demand(model)}{_slow_note(slow)}"
    )
    title = f'<a href="{text(address("models"))}">All models</a>' if len(view.models) > 1 else ""
    return section(model.model_id, _strip(view, model, slow), aside=title + aside, description=note)


def bottleneck(view: NetworkView, model: ModelView) -> Bottleneck | None:
    """Where the model is slowest; None where layers are missing, which is worse, or nothing was
    measured yet. O(nodes + layers)."""
    edges = [0.0] * (model.num_layers + 1)
    serving = [n for n in holders_of(view, model) if n.state == "serving" and rate_of(n) > 0]
    for node in serving:
        start, end = node.span or (0, 0)
        edges[start] += rate_of(node)
        edges[end] -= rate_of(node)
    rates = list(accumulate(edges))[: model.num_layers]
    least = min(rates, default=0.0)
    if not model.is_ready or least <= 1e-6:
        return None
    start = next(i for i, rate in enumerate(rates) if rate <= least * ALIKE)
    end = start
    while end < len(rates) and rates[end] <= least * ALIKE:
        end += 1
    if end - start == model.num_layers:
        return None  # all layers are alike: there is nothing to point at
    over = tuple(n for n in serving if n.span and n.span[0] < end and start < n.span[1])
    return Bottleneck(start=start, end=end, tokens_per_s=least, holders=over)


def rate_of(node: NodeView) -> float:
    """Tokens a second that a node's stage passes, one sequence at a time; 0: not known."""
    stage_ms = node.stage_ms or node.predicted_stage_ms
    return 1e3 / stage_ms if stage_ms > 0 else 0.0


def holders_of(view: NetworkView, model: ModelView) -> list[NodeView]:
    """Nodes that hold or load layers of a model, in the order of layers."""
    holders = [n for n in view.nodes if n.span is not None and n.model_id == model.model_id]
    return sorted(holders, key=lambda n: (n.span, n.display_name))


def _strip(view: NetworkView, model: ModelView, slow: Bottleneck | None) -> str:
    most = max((*model.replicas_per_layer, 1))
    cells = "".join(
        _cell(layer, replicas, most, slow)
        for layer, replicas in enumerate(model.replicas_per_layer)
    )
    label = (
        f"replicas of the {model.num_layers} layers of {model.model_id}: "
        f"{min(model.replicas_per_layer, default=0)} to {most}"
    )
    rows, num_hidden = packed(holders_of(view, model))
    lanes = "".join(
        f"<li>{''.join(_lane(node, model.num_layers) for node in row)}</li>" for row in rows
    )
    more = f"{figures.count(num_hidden)} more nodes. " if num_hidden else ""
    return (
        f'<div class="strip" role="img" aria-label="{text(label)}" '
        f'style="--layers:{model.num_layers}">{cells}{_mark(slow, model.num_layers)}</div>'
        f'<ul class="lanes" style="--layers:{model.num_layers}" '
        f'aria-label="Who holds which layers of {text(model.model_id)}">{lanes}</ul>'
        f'<div class="ruler"><span>layer 0</span><span>{more}{LEGEND}</span>'
        f"<span>layer {model.num_layers - 1}</span></div>"
    )


def packed(nodes: Sequence[NodeView]) -> tuple[list[list[NodeView]], int]:
    """Nodes in rows without overlap, sorted by span as they come; and how many found no room."""
    rows: list[list[NodeView]] = []
    ends: list[int] = []
    num_hidden = 0
    for node in nodes:
        start, end = node.span or (0, 0)
        at = next((i for i, row_end in enumerate(ends) if row_end <= start), None)
        if at is not None:
            rows[at].append(node)
            ends[at] = end
        elif len(rows) < ROWS_SHOWN:
            rows.append([node])
            ends.append(end)
        else:
            num_hidden += 1
    return rows, num_hidden


def _cell(layer: int, replicas: int, most: int, slow: Bottleneck | None) -> str:
    is_slow = slow is not None and slow.start <= layer < slow.end
    title = f"layer {layer}: {replicas} {'replica' if replicas == 1 else 'replicas'}"
    if is_slow:
        title += ", part of the bottleneck"
    if replicas == 0:
        return f'<i class="cell cell-missing" title="{title}">0</i>'
    depth = 0.35 + 0.65 * replicas / most
    kind = " cell-slow" if is_slow else ""
    return f'<i class="cell{kind}" style="--depth:{depth:.2f}" title="{title}">{replicas}</i>'


def _mark(slow: Bottleneck | None, num_layers: int) -> str:
    if slow is None:
        return ""
    side = " mark-right" if slow.start > num_layers / 2 else ""
    return (
        f'<span class="mark{side}" style="grid-column:{slow.start + 1}/{slow.end + 1}">'
        "<b>bottleneck</b></span>"
    )


def _lane(node: NodeView, num_layers: int) -> str:
    start, end = node.span or (0, num_layers)
    tone = NODE_TONES.get(node.state, "calm")
    name = text(node.display_name or node.node_id)
    return (
        f'<a data-key="{text(node.node_id)}" class="lane lane-{tone}" '
        f'href="{text(address(f"nodes/{node.node_id}"))}" '
        f'style="grid-column:{start + 1}/{end + 1}" '
        f'title="{name}: {figures.layers(node.span)}, {text(node.state)}">'
        f"<b>{name}</b> {figures.layers(node.span)}</a>"
    )


def _demand(model: ModelView) -> str:
    if model.demand_share >= 1.0:
        return ""
    how = "set by the operator" if model.is_demand_given else "observed"
    least = f", at least {model.replicas_min} chains" if model.replicas_min > 1 else ""
    return f" {model.demand_share:.0%} of demand ({how}){least}."


def _slow_note(slow: Bottleneck | None) -> str:
    if slow is None:
        return ""
    names = ", ".join(text(n.display_name or n.node_id) for n in slow.holders[:3])
    more = f" and {len(slow.holders) - 3} more" if len(slow.holders) > 3 else ""
    return (
        f" The bottleneck is layers {figures.layers((slow.start, slow.end))}: {names}{more}, "
        f"{figures.per_second(slow.tokens_per_s)} tokens/s one sequence at a time."
    )


def _coverage(replicas_per_layer: tuple[int, ...]) -> str:
    missing = sum(replicas == 0 for replicas in replicas_per_layer)
    if missing:
        return f"{missing} {'layer has' if missing == 1 else 'layers have'} no replica."
    fewest = min(replicas_per_layer, default=0)
    return f"Every layer has at least {fewest} {'replica' if fewest == 1 else 'replicas'}."
