"""Nodes and layers of a snapshot, as HTML. Pure."""

from typing import Final

from coordinator.core.view import MeasuredHopView, ModelView, NetworkView, NodeView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import button, chip, loading, meter, row, section, table, text
from coordinator.dashboard.snapshot import Snapshot
from coordinator.ports import NodeTelemetry
from plait.wire.telemetry import PresenceState

LANES_SHOWN: Final = 32
NODES_SHOWN: Final = 200
LEGEND: Final = "A figure: how many nodes hold that layer, red where none does. A bar: one node."
NODE_TONES: Final = {
    "joining": "busy",
    "loading": "busy",
    "serving": "ok",
    "draining": "warn",
    "paused": "warn",
    "gone": "calm",
}
NODE_HEADS: Final = (
    ("Node", ""),
    ("State", ""),
    ("Layers", "num"),
    ("Decode per layer", "num"),
    ("Stage", "num"),
    ("RTT", "num"),
    ("KV tokens", ""),
    ("Tokens", "num"),
    ("Sent", "num"),
    ("Heard", "num"),
    ("", "act"),
)


def draw_layers(snapshot: Snapshot) -> str:
    """For each model: replicas of every layer, and under them who holds which span."""
    view = snapshot.view
    return "".join(_model(view, model) for model in view.models)


def draw_nodes(snapshot: Snapshot) -> str:
    """The table of nodes; those that left stand last."""
    ordered = sorted(
        snapshot.view.nodes,
        key=lambda node: (node.state == "gone", node.span or (1 << 30, 0), node.display_name),
    )
    rows = (
        row(
            node.node_id,
            NODE_HEADS,
            _cells(node, snapshot.telemetry.get(node.node_id), snapshot.names),
        )
        for node in ordered[:NODES_SHOWN]
    )
    hidden = len(ordered) - NODES_SHOWN
    aside = f"{hidden} more not shown" if hidden > 0 else ""
    empty = 'No node has joined. <a href="/dashboard/enrolment">Create an enrolment token</a>.'
    return section("Nodes", table("Nodes", NODE_HEADS, rows, empty=empty), aside=aside, id_="nodes")


def _model(view: NetworkView, model: ModelView) -> str:
    most = max((*model.replicas_per_layer, 1))
    cells = "".join(
        _layer_cell(layer, replicas, most)
        for layer, replicas in enumerate(model.replicas_per_layer)
    )
    holders = sorted(
        (n for n in view.nodes if n.span is not None and n.model_id == model.model_id),
        key=lambda node: (node.span, node.display_name),
    )
    lanes = "".join(_lane(node, model.num_layers) for node in holders[:LANES_SHOWN])
    aside = chip("ready", "ok") if model.is_ready else chip("not ready", "bad")
    note = (
        f"{text(model.architecture)}, {model.num_layers} layers, context "
        f"{figures.count(model.context_tokens_max)} tokens. "
        f"{_coverage(model.replicas_per_layer)}{_demand(model)}"
    )
    label = f"replicas of the {model.num_layers} layers of {model.model_id}"
    body = (
        f'<div class="strip" role="img" aria-label="{text(label)}" '
        f'style="--layers:{model.num_layers}">{cells}</div>'
        f'<ul class="lanes" style="--layers:{model.num_layers}">{lanes}</ul>'
        f'<div class="ruler"><span>layer 0</span><span>{LEGEND}</span>'
        f"<span>layer {model.num_layers - 1}</span></div>"
    )
    return section(model.model_id, body, aside=aside, description=note)


def _demand(model: ModelView) -> str:
    if model.demand_share >= 1.0:
        return ""
    how = "set by the operator" if model.is_demand_given else "observed"
    least = f", at least {model.replicas_min} chains" if model.replicas_min > 1 else ""
    return f" {model.demand_share:.0%} of demand ({how}){least}."


def _coverage(replicas_per_layer: tuple[int, ...]) -> str:
    missing = sum(replicas == 0 for replicas in replicas_per_layer)
    if missing:
        return f"{missing} {'layer has' if missing == 1 else 'layers have'} no replica."
    fewest = min(replicas_per_layer, default=0)
    return f"Every layer has at least {fewest} {'replica' if fewest == 1 else 'replicas'}."


def _layer_cell(layer: int, replicas: int, most: int) -> str:
    title = f"layer {layer}: {replicas} {'replica' if replicas == 1 else 'replicas'}"
    if replicas == 0:
        return f'<i class="cell cell-missing" title="{title}">0</i>'
    depth = 0.35 + 0.65 * replicas / most
    return f'<i class="cell" style="--depth:{depth:.2f}" title="{title}">{replicas}</i>'


def _lane(node: NodeView, num_layers: int) -> str:
    start, end = node.span or (0, num_layers)
    tone = NODE_TONES.get(node.state, "calm")
    name = text(node.display_name or node.node_id)
    return (
        f'<li data-key="{text(node.node_id)}"><span class="lane lane-{tone}" '
        f'style="grid-column:{start + 1}/{end + 1}" '
        f'title="{name}: {figures.layers(node.span)}, {text(node.state)}">'
        f"<b>{name}</b> {figures.layers(node.span)}</span></li>"
    )


def _cells(node: NodeView, heard: NodeTelemetry | None, names: dict[str, str]) -> tuple[str, ...]:
    name = node.display_name or node.node_id
    device = f"{node.device_name or node.device_kind}, {figures.num_bytes(node.memory_bytes)}"
    measured = figures.measured(node.stage_ms)
    predicted = (
        f'<span class="cell-note">planned {figures.measured(node.predicted_stage_ms)}</span>'
        if node.predicted_stage_ms > 0
        else ""
    )
    kv_label = f"{figures.count(node.kv_tokens_reserved)} of {figures.count(node.kv_tokens_max)}"
    dropped = (
        f'<span class="cell-note">{figures.count(node.frames_dropped_total)} dropped</span>'
        if node.frames_dropped_total
        else ""
    )
    drain = (
        button(
            "Drain",
            "drain",
            node.node_id,
            confirm="Drain now?",
            described=f"Drain {name}",
        )
        if node.state in ("serving", "loading", "joining")
        else ""
    )
    return (
        f'<span class="cell-name">{text(name)}</span><span class="cell-note">{text(device)}</span>'
        f'<span class="cell-note mono">{text(node.node_id)}</span>',
        _state(node),
        figures.layers(node.span),
        figures.measured(node.decode_layer_ms),
        measured + predicted + _error(node),
        _rtt(node, names),
        meter(node.kv_tokens_reserved, node.kv_tokens_max, kv_label),
        figures.count(node.tokens_total),
        figures.num_bytes(node.sent_bytes_total) + dropped,
        _heard(heard),
        drain,
    )


def _state(node: NodeView) -> str:
    drawn = chip(node.state, NODE_TONES.get(node.state, "calm"))
    if node.state == "loading" and node.load_total_bytes > 0:
        drawn += loading(node.load_phase, node.load_done_bytes, node.load_total_bytes)
    if node.last_error:
        drawn += f'<span class="cell-note cell-bad">{text(node.last_error)}</span>'
    elif node.span_reason:
        reason = text(node.span_reason)
        drawn += f'<span class="cell-note cell-clamp" title="{reason}">{reason}</span>'
    return drawn


def _rtt(node: NodeView, names: dict[str, str]) -> str:
    """To the coordinator, and under it to the neighbours, with the bandwidth where measured."""
    hops = "".join(_hop(hop, names) for hop in node.hops[:3])
    return figures.measured(node.coordinator_rtt_ms) + hops


def _hop(hop: MeasuredHopView, names: dict[str, str]) -> str:
    width = f", {figures.rate(hop.bytes_per_s)}" if hop.bytes_per_s > 0 else ""
    predicted = (
        f"predicted {figures.measured(hop.predicted_rtt_ms)}, "
        f"{figures.rate(hop.predicted_bytes_per_s)}"
    )
    return (
        f'<span class="cell-note" title="{text(predicted)}">'
        f"{text(names.get(hop.neighbour_id, hop.neighbour_id[:8]))} "
        f"{figures.measured(hop.rtt_ms)}{width}</span>"
    )


def _error(node: NodeView) -> str:
    """How far predictions are from what was observed; nothing while too little was."""
    parts = [
        f"{what} {error:+.0f} %"
        for what, error in (
            ("decode", node.decode_error_percent),
            ("prompts", node.prefill_error_percent),
        )
        if error is not None
    ]
    if not parts:
        return ""
    title = "predicted from the node's own measurements, against what its steps took"
    return f'<span class="cell-note" title="{title}">off by {", ".join(parts)}</span>'


def _heard(heard: NodeTelemetry | None) -> str:
    if heard is None:
        return figures.DASH
    if heard.presence in (PresenceState.LOST, PresenceState.LEFT):
        tone = "bad" if heard.presence is PresenceState.LOST else "calm"
        return chip(heard.presence.value, tone)
    return figures.age(heard.telemetry_age_ms)
