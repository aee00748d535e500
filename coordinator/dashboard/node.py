"""One node as HTML: what it is, what it holds, how it did, what befell it. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from coordinator.core.view import MeasuredHopView, NodeView, RequestView
from coordinator.dashboard import figures
from coordinator.dashboard.history import STEP_MS, NodeSeries
from coordinator.dashboard.markup import (
    banner,
    button,
    chart,
    facts,
    link,
    meter,
    moment,
    page_head,
    row,
    section,
    table,
    text,
)
from coordinator.dashboard.nodes import (
    drain_button,
    error_note,
    heard_chip,
    node_link,
    node_state,
)
from coordinator.dashboard.paging import address
from coordinator.dashboard.requests import request_table
from coordinator.dashboard.snapshot import Snapshot
from coordinator.ports import KnownNode

HOP_HEADS: Final = (
    ("Neighbour", ""),
    ("Round trip", "num"),
    ("Predicted", "num"),
    ("Bandwidth", "num"),
    ("Predicted bandwidth", "num"),
)
SERIES: Final = (
    ("Tokens a second", "tokens_per_s"),
    ("Stage time", "stage_ms"),
    ("Sent", "sent_bytes_per_s"),
)


def draw_head(snapshot: Snapshot, node_id: str, known: KnownNode | None) -> str:
    """The name, what may be done, and whether the node is here."""
    node = snapshot.by_id.get(node_id)
    name = node.display_name if node else (known.display_name if known else "")
    note = f'<span class="mono">{text(node_id)}</span> {link(address("nodes"), "All nodes")}'
    actions = (drain_button(node) if node else "") + _ban_button(node_id, name, known)
    if node is not None:
        actions += button("Plan again", "replan", confirm="Plan again now?")
    head = page_head(name or node_id, note=note, aside=actions)
    return head + _absence(snapshot, node_id, known)


def draw_node(snapshot: Snapshot, node: NodeView, known: KnownNode | None) -> str:
    """What it is and holds, and how its figures stand against what was predicted."""
    kv = f"{figures.count(node.kv_tokens_reserved)} of {figures.count(node.kv_tokens_max)} tokens"
    off = error_note(node) or figures.DASH
    held = (
        f"layers {figures.layers(node.span)} of {text(node.model_id)}" if node.span else "nothing"
    )
    own = (
        ("State", node_state(node)),
        ("Holds", held),
        ("Weights in memory", figures.num_bytes(node.weight_bytes)),
        ("KV", meter(node.kv_tokens_reserved, node.kv_tokens_max, kv)),
        ("Requests", figures.count(node.num_requests)),
        ("Heard", heard_chip(snapshot.telemetry.get(node.node_id))),
        ("Device", text(node.device_name or node.device_kind) or figures.DASH),
        ("Lends", figures.num_bytes(node.memory_bytes)),
        ("Computes in", text(node.compute_dtype) or figures.DASH),
        ("Uplink", figures.rate(node.up_bytes_per_s)),
        ("Downlink", figures.rate(node.down_bytes_per_s)),
        ("To the coordinator", figures.measured(node.coordinator_rtt_ms)),
    )
    speed = (
        ("Stage, measured", figures.measured(node.stage_ms)),
        ("Stage, planned", figures.measured(node.predicted_stage_ms)),
        ("Off by", off),
        ("Decode, a layer", figures.measured(node.decode_layer_ms)),
        ("Prompt, a layer and token", figures.measured(node.prefill_layer_ms_per_token)),
        ("Tokens", figures.count(node.tokens_total)),
        ("Sent", figures.num_bytes(node.sent_bytes_total)),
        ("Frames dropped", figures.count(node.frames_dropped_total)),
        ("Here for", figures.age(snapshot.view.now_ms - node.attached_ms)),
        ("First seen", moment(known.first_seen_unix_ms) if known else figures.DASH),
    )
    return (
        f'<div class="pair">{section("What it is", facts(own))}'
        f"{section('How it does', facts(speed))}</div>"
    )


def draw_history(series: NodeSeries) -> str:
    """The last half hour, a figure every ten seconds."""
    num_steps = len(series.stage_ms)
    if num_steps < 2:
        empty = '<p class="empty">Figures gather every ten seconds; come back in a moment.</p>'
        return section("Speed", empty)
    drawn = "".join(
        chart(title, list(getattr(series, name)), _figure(name)) for title, name in SERIES
    )
    span = figures.age(num_steps * STEP_MS)
    return section("Speed", f'<div class="charts">{drawn}</div>', aside=f"last {span}")


def draw_hops(node: NodeView, names: Mapping[str, str]) -> str:
    """Its ways to neighbours, as measured and as they would be predicted."""
    rows = (row(hop.neighbour_id, HOP_HEADS, _hop_cells(hop, names)) for hop in node.hops)
    empty = "No hop of this node has been measured yet."
    return section("Hops", table("Hops to neighbours", HOP_HEADS, rows, empty=empty))


def draw_requests_of(snapshot: Snapshot, node_id: str, ended: Sequence[RequestView]) -> str:
    """Those that run through it now, then those that did."""
    now = [
        request
        for request in snapshot.view.requests
        if request.total_ms is None and any(hop.node_id == node_id for hop in request.route)
    ]
    shown = [*now, *ended][:12]
    body = request_table(snapshot, shown, empty="No request has run here lately.")
    return section("Requests here", body, aside=f"{figures.count(len(now))} now")


def _absence(snapshot: Snapshot, node_id: str, known: KnownNode | None) -> str:
    """Why there may be little to see."""
    if known is not None and known.is_banned:
        return banner("bad", "Banned", "It may neither join nor renew its certificate: unban it.")
    if node_id in snapshot.by_id:
        return ""
    if known is None:
        return banner("warn", "No such node", "None of this id has ever enrolled in this network.")
    return banner("warn", "Not here", "It is enrolled, but not attached now; what is below is old.")


def _ban_button(node_id: str, name: str, known: KnownNode | None) -> str:
    if known is None:
        return ""
    if known.is_banned:
        return button(
            "Unban", "unban", node_id, confirm="Let it in again?", described=f"Unban {name}"
        )
    confirm = "Put it out, keep it out?"
    return button("Ban", "ban", node_id, confirm=confirm, described=f"Ban {name}")


def _figure(name: str) -> Callable[[float], str]:
    match name:
        case "tokens_per_s":
            return figures.per_second
        case "stage_ms":
            return figures.measured
        case _:
            return lambda value: f"{figures.num_bytes(value)}/s"


def _hop_cells(hop: MeasuredHopView, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        node_link(names, hop.neighbour_id),
        figures.measured(hop.rtt_ms),
        figures.measured(hop.predicted_rtt_ms),
        figures.rate(hop.bytes_per_s),
        figures.rate(hop.predicted_bytes_per_s),
    )
