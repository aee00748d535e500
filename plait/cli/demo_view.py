"""What the demo shows: who holds what, how loading goes, what a run cost."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from coordinator.core.view import NetworkView, NodeView
from plait.errors import ModelError

MIB: Final = 1 << 20
LOAD_PATIENCE_S: Final = 10.0
STYLES: Final = {
    "serving": "green",
    "loading": "yellow",
    "joining": "cyan",
    "standby": "blue",
    "draining": "magenta",
}


def nodes_table(view: NetworkView, *, title: str = "") -> Table:
    """Which node holds which layers, in order of layers."""
    table = Table(title=title or None, title_justify="left")
    for heading in ("node", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("layers", "weights", "cap", "ms/layer", "KV slots"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in in_order(view.nodes):
        table.add_row(
            Text(node.display_name),
            Text(_state(node), style=STYLES.get(node.state, "")),
            _layers(node),
            _mib(node.weight_bytes) if node.weight_bytes else "",
            _mib(node.memory_bytes) if node.memory_bytes else "",
            f"{node.decode_layer_ms:.2f}" if node.decode_layer_ms else "",
            f"{node.kv_tokens_max:,}" if node.kv_tokens_max else "",
        )
    return table


class LoadPatience:
    """Gives up on a network whose nodes cannot load what they are to hold: all read the same files,
    so another node or another try reads the same."""

    def __init__(self, *, patience_s: float = LOAD_PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None

    def check(self, view: NetworkView, now_s: float) -> None:
        """Raises ModelError, with the node's words, once a failure has stayed so long."""
        failed = [node for node in in_order(view.nodes) if node.last_error]
        if not failed:
            self._since_s = None
            return
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= self._patience_s:
            node = failed[0]
            raise ModelError(
                f"{node.display_name} cannot load its layers: {node.last_error}",
                reason="load_failed",
            )


def in_order(nodes: Sequence[NodeView]) -> list[NodeView]:
    """Attached nodes, those without layers last."""
    return sorted(
        (node for node in nodes if node.state != "gone"),
        key=lambda node: (node.span is None, node.span or (0, 0), node.display_name),
    )


def _state(node: NodeView) -> str:
    if node.state == "loading" and node.load_total_bytes:
        share = 100 * node.load_done_bytes // max(1, node.load_total_bytes)
        return f"{node.load_phase or 'loading'} {share} %"
    if node.state == "joining":
        return "planning" if node.decode_layer_ms else "measuring"
    return node.state


def _layers(node: NodeView) -> str:
    if node.span is None:
        return "none" if node.state == "standby" else ""
    return f"{node.span[0]}-{node.span[1] - 1}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"
