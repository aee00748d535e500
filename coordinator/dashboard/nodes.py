"""Nodes of a snapshot as HTML: a few of them, or a page of all. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from coordinator.core.view import MeasuredHopView, NodeView
from coordinator.dashboard import figures
from coordinator.dashboard.layers import NODE_TONES
from coordinator.dashboard.markup import (
    button,
    chip,
    link,
    loading,
    meter,
    moment,
    row,
    section,
    table,
    text,
)
from coordinator.dashboard.paging import Wanted, address, pager
from coordinator.dashboard.snapshot import Snapshot
from coordinator.ports import KnownNode, NodeTelemetry
from plait.wire.telemetry import PresenceState

NODES_SHOWN: Final = 20
STATES: Final = (
    "serving",
    "loading",
    "joining",
    "standby",
    "draining",
    "paused",
    "gone",
)
NODE_HEADS: Final = (
    ("Node", ""),
    ("State", ""),
    ("Layers", "num"),
    ("Stage", "num"),
    ("RTT", "num"),
    ("KV tokens", ""),
    ("Tokens", "num"),
    ("Sent", "num"),
    ("Heard", "num"),
    ("", "act"),
)
ABSENT_HEADS: Final = (("Node", ""), ("State", ""), ("First seen", "num"), ("Last seen", "num"))
ABSENT_SHOWN: Final = 20
NO_NODE: Final = 'No node has joined. <a href="/dashboard/enrolment">Create an enrolment token</a>.'


def draw_nodes(snapshot: Snapshot) -> str:
    """Those nodes that an operator would look at first."""
    ordered = ordered_nodes(snapshot.view.nodes)
    hidden = len(ordered) - NODES_SHOWN
    aside = link(address("nodes"), f"All {figures.count(len(ordered))}") if hidden > 0 else ""
    return section("Nodes", node_table(snapshot, ordered[:NODES_SHOWN]), aside=aside, id_="nodes")


def draw_absent(known: Sequence[KnownNode], present: Container[str], wanted: Wanted) -> str:
    """Those that have enrolled and are not attached, banned ones first; nothing where none are."""
    words = wanted.get("name").lower()
    away = [
        node
        for node in known
        if (node.is_banned or node.node_id not in present)
        and (not words or words in node.display_name.lower() or words in node.node_id.lower())
    ]
    if not away:
        return ""
    away.sort(key=lambda node: (not node.is_banned, -node.last_seen_unix_ms))
    rows = (row(node.node_id, ABSENT_HEADS, _absent_cells(node)) for node in away[:ABSENT_SHOWN])
    hidden = len(away) - ABSENT_SHOWN
    aside = f"{figures.count(hidden)} more: narrow by name" if hidden > 0 else ""
    body = table("Nodes that are away", ABSENT_HEADS, rows, empty="")
    return section("Away or banned", body, aside=aside, id_="absent")


def draw_node_list(snapshot: Snapshot, wanted: Wanted) -> str:
    """One page of the nodes that a filter leaves."""
    found = [n for n in ordered_nodes(snapshot.view.nodes) if _is_wanted(n, wanted)]
    empty = (
        f"No node fits. {link(address('nodes'), 'Show all')}" if snapshot.view.nodes else NO_NODE
    )
    shown = node_table(snapshot, wanted.cut(found), empty=empty)
    aside = f"{figures.count(len(found))} of {figures.count(len(snapshot.view.nodes))}"
    return section("Attached", shown + pager(wanted, len(found)), aside=aside, id_="nodes")


def ordered_nodes(nodes: Iterable[NodeView]) -> list[NodeView]:
    """Those with trouble first, then by layers; those that left stand last."""
    return sorted(
        nodes,
        key=lambda node: (
            node.state == "gone",
            not node.last_error,
            node.span or (1 << 30, 0),
            node.display_name,
        ),
    )


def node_table(snapshot: Snapshot, nodes: Sequence[NodeView], *, empty: str = NO_NODE) -> str:
    """A row for each."""
    rows = (
        row(
            node.node_id,
            NODE_HEADS,
            _cells(node, snapshot.telemetry.get(node.node_id), snapshot.names),
        )
        for node in nodes
    )
    return table("Nodes", NODE_HEADS, rows, empty=empty)


def node_value(node: NodeView) -> str:
    """Names one incarnation of a node to an action."""
    return f"{node.node_id} {node.incarnation}"


def drain_button(node: NodeView) -> str:
    """Where the node has anything to leave; "" elsewhere."""
    if node.state not in ("serving", "loading", "joining", "standby"):
        return ""
    return button(
        "Drain",
        "drain",
        node_value(node),
        confirm="Drain now?",
        described=f"Drain {node.display_name or node.node_id}",
    )


def node_link(names: Mapping[str, str], node_id: str) -> str:
    """The node's name, leading to its page."""
    return link(address(f"nodes/{node_id}"), names.get(node_id) or node_id)


def _absent_cells(node: KnownNode) -> tuple[str, ...]:
    name = node.display_name or node.node_id
    return (
        link(address(f"nodes/{node.node_id}"), name, kind="cell-name")
        + f'<span class="cell-note mono">{text(node.node_id)}</span>',
        chip("banned", "bad") if node.is_banned else chip("away", "calm"),
        moment(node.first_seen_unix_ms),
        moment(node.last_seen_unix_ms),
    )


def _is_wanted(node: NodeView, wanted: Wanted) -> bool:
    state, model, words = wanted.get("state"), wanted.get("model"), wanted.get("name").lower()
    return (
        (not state or node.state == state)
        and (not model or node.model_id == model)
        and (not words or words in node.display_name.lower() or words in node.node_id.lower())
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
    return (
        link(address(f"nodes/{node.node_id}"), name, kind="cell-name")
        + f'<span class="cell-note">{text(device)}</span>'
        f'<span class="cell-note mono">{text(node.node_id)}</span>',
        node_state(node),
        figures.layers(node.span),
        measured + predicted + error_note(node),
        _rtt(node, names),
        meter(node.kv_tokens_reserved, node.kv_tokens_max, kv_label),
        figures.count(node.tokens_total),
        figures.num_bytes(node.sent_bytes_total) + dropped,
        heard_chip(heard),
        drain_button(node),
    )


def node_state(node: NodeView) -> str:
    """The state, and under it what is loaded or why."""
    drawn = chip(node.state, NODE_TONES.get(node.state, "calm"))
    if node.state == "loading" and node.load_total_bytes > 0:
        drawn += loading(node.load_phase, node.load_done_bytes, node.load_total_bytes)
    if node.last_error:
        drawn += f'<span class="cell-note cell-bad">{text(node.last_error)}</span>'
    elif node.draft is not None and node.draft.complaint:
        complaint = text(node.draft.complaint)
        drawn += f'<span class="cell-note cell-clamp" title="{complaint}">{complaint}</span>'
    elif node.span_reason:
        reason = text(node.span_reason)
        drawn += f'<span class="cell-note cell-clamp" title="{reason}">{reason}</span>'
    return drawn


def _rtt(node: NodeView, names: dict[str, str]) -> str:
    """To the coordinator, and under it to the neighbours, with the bandwidth where measured."""
    hops = "".join(_hop(hop, names) for hop in node.hops[:2])
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


def error_note(node: NodeView) -> str:
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
    return f'<span class="cell-note" title="{title}">{", ".join(parts)} off</span>'


def heard_chip(heard: NodeTelemetry | None) -> str:
    """How long ago telemetry came, or that the node was lost."""
    if heard is None:
        return figures.DASH
    if heard.presence in (PresenceState.LOST, PresenceState.LEFT):
        tone = "bad" if heard.presence is PresenceState.LOST else "calm"
        return chip(heard.presence.value, tone)
    return figures.age(heard.telemetry_age_ms)
