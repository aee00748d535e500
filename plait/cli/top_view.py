"""What `plait top` shows: the same snapshot as `plait status`, and how fast its counters grow."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from plait.cli.fields import Fields
from plait.cli.status_parts import (
    DASH,
    OPEN_STATES,
    STYLES,
    figure,
    layers,
    lined_table,
    node_name,
    node_order,
    node_state,
    percent,
)
from plait.cli.status_view import NO_NODE, counters_line, headline, requests_table

WINDOW_MS: Final = 5_000
"""Rates are over about so long: nodes tell their counters every second or two."""
LOOKS_MAX: Final = 32
LINES_BESIDE: Final = 9
"""Headline, totals in two lines, two headings, two counts of the rest, and two empty lines."""
ROWS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class _Look:
    now_ms: int
    tokens: int
    by_node: Mapping[str, tuple[int, int]]  # incarnation, tokens


class Rates:
    """Tokens/s of nodes and of the network, from the last looks."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=LOOKS_MAX)

    def look(self, view: Fields) -> None:
        """Take a snapshot in. A coordinator that was started anew begins anew here."""
        counters = view.one("counters")
        now = _Look(
            view.count("now_ms"),
            counters.count("tokens_generated") if counters is not None else 0,
            {
                node.text("node_id"): (node.count("incarnation"), node.count("tokens_total"))
                for node in view.many("nodes")
            },
        )
        if self._looks and now.now_ms < self._looks[-1].now_ms:
            self._looks.clear()
        if not self._looks or now.now_ms > self._looks[-1].now_ms:
            self._looks.append(now)
        while len(self._looks) > 2 and now.now_ms - self._looks[1].now_ms >= WINDOW_MS:
            self._looks.popleft()

    def network(self) -> float | None:
        """Tokens/s given out; None until there is something to compare with."""
        if len(self._looks) < 2:
            return None
        old, new = self._looks[0], self._looks[-1]
        return max(0.0, 1e3 * (new.tokens - old.tokens) / (new.now_ms - old.now_ms))

    def node(self, node_id: str) -> float | None:
        """Tokens/s through the node's layers, prompts included; None where it is new."""
        if len(self._looks) < 2:
            return None
        old, new = self._looks[0], self._looks[-1]
        then, now = old.by_node.get(node_id), new.by_node.get(node_id)
        if then is None or now is None or then[0] != now[0]:
            return None
        return max(0.0, 1e3 * (now[1] - then[1]) / (new.now_ms - old.now_ms))


def frame(view: Fields, rates: Rates, *, height: int, hint: str = "") -> RenderableType:
    """One picture of at most about `height` lines; what has no room is counted."""
    nodes = view.many("nodes")
    lacks = [model.text("lack") for model in view.many("models") if model.text("lack")]
    num_open = sum(r.text("state") in OPEN_STATES for r in view.many("requests"))
    room = max(2 * ROWS_MIN, height - LINES_BESIDE - len(lacks) - bool(hint))
    nodes_max = max(ROWS_MIN, min(len(nodes), room - min(num_open, room // 2)))
    requests_max = max(ROWS_MIN, room - min(len(nodes), nodes_max))
    parts: list[RenderableType] = [_first_line(view, rates, num_open), counters_line(view)]
    parts += [Text(lack, style="red", no_wrap=True, overflow="ellipsis") for lack in lacks]
    parts += [Text(), _nodes(nodes, rates, nodes_max), Text()]
    if num_open:
        parts.append(requests_table(view, requests_max, only_open=True))
        parts += _more(num_open - requests_max, "requests")
    else:
        parts.append(Text("no request now", style="dim"))
    if hint:
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _first_line(view: Fields, rates: Rates, num_open: int) -> Text:
    line, num_queued = headline(view, is_short=True), view.count("num_queued")
    rate = rates.network()
    line.append(", ")
    line.append(DASH if rate is None else f"{rate:.1f}", style="bold")
    line.append(f" tokens/s, {max(0, num_open - num_queued)} requests run, {num_queued} wait")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _nodes(nodes: list[Fields], rates: Rates, nodes_max: int) -> RenderableType:
    if not nodes:
        return Text(NO_NODE, style="yellow")
    table = lined_table(
        ("node", "left"),
        ("state", "left"),
        ("layers", "right"),
        ("tokens/s", "right"),
        ("stage ms", "right"),
        ("rtt ms", "right"),
        ("kv", "right"),
        ("requests", "right"),
        rest="device",
    )
    for node in sorted(nodes, key=node_order)[:nodes_max]:
        rate = rates.node(node.text("node_id"))
        table.add_row(
            Text(node_name(node)),
            Text(node_state(node), style=STYLES.get(node.text("state"), "")),
            layers(node.span("span")),
            DASH if rate is None else f"{rate:.1f}",
            figure(node.number("stage_ms")),
            figure(node.number("coordinator_rtt_ms")),
            percent(node.count("kv_tokens_reserved"), node.count("kv_tokens_max")),
            str(node.count("num_requests")),
            Text(node.text("device_name") or node.text("device_kind")),
        )
    return Group(table, *_more(len(nodes) - nodes_max, "nodes"))


def _more(num: int, what: str) -> list[Text]:
    return [Text(f"and {num} more {what}", style="dim")] if num > 0 else []
