"""What the demo shows: who holds what, how loading goes, what a run cost."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from coordinator.core.view import NetworkView, NodeView

MIB = 1 << 20
STYLES = {"serving": "green", "loading": "yellow", "joining": "cyan", "draining": "magenta"}


def nodes_table(view: NetworkView, *, title: str = "") -> Table:
    """Which node holds which layers, in order of layers."""
    table = Table(title=title or None, title_justify="left")
    for heading, justify in (
        ("node", "left"),
        ("state", "left"),
        ("layers", "right"),
        ("weights", "right"),
        ("memory cap", "right"),
        ("decode per layer", "right"),
        ("KV slots", "right"),
        ("device", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for node in in_order(view.nodes):
        table.add_row(
            Text(node.display_name),
            Text(_state(node), style=STYLES.get(node.state, "")),
            _layers(node),
            _mib(node.weight_bytes) if node.weight_bytes else "",
            _mib(node.memory_bytes) if node.memory_bytes else "",
            f"{node.decode_layer_ms:.2f} ms" if node.decode_layer_ms else "",
            f"{node.kv_tokens_max}" if node.kv_tokens_max else "",
            Text(node.device_name[:32]),
        )
    return table


def in_order(nodes: Sequence[NodeView]) -> list[NodeView]:
    """Attached nodes, those without layers last."""
    return sorted(
        (node for node in nodes if node.state != "gone"),
        key=lambda node: (node.span is None, node.span or (0, 0), node.display_name),
    )


def route_text(hops: Sequence[tuple[str, int, int]]) -> str:
    """`node 1 [0-9] -> node 2 [10-19]` for (name, start, end) hops."""
    return " -> ".join(f"{name} [{start}-{end - 1}]" for name, start, end in hops)


def _state(node: NodeView) -> str:
    if node.state == "loading" and node.load_total_bytes:
        share = 100 * node.load_done_bytes // max(1, node.load_total_bytes)
        return f"{node.load_phase or 'loading'} {share} %"
    if node.state == "joining":
        return "planning" if node.decode_layer_ms else "measuring"
    return node.state


def _layers(node: NodeView) -> str:
    if node.span is None:
        return "standby" if node.state == "joining" else ""
    return f"{node.span[0]}-{node.span[1] - 1}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"
