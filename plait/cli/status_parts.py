"""Parts of the operator's terminal views: words, figures and tables that they share."""

from typing import Final

from rich.table import Table

from plait.cli.fields import Fields
from plait.types.guesses import draft_complaint

DASH: Final = "-"
OPEN_STATES: Final = ("queued", "opening", "prefill", "decode")
STYLES: Final = {
    "serving": "green",
    "loading": "yellow",
    "joining": "cyan",
    "standby": "blue",
    "draining": "magenta",
    "paused": "magenta",
    "gone": "dim",
    "decode": "green",
    "prefill": "cyan",
    "opening": "cyan",
    "queued": "yellow",
    "failed": "red",
    "finished": "dim",
    "cancelled": "dim",
}


def layers(span: tuple[int, int] | None) -> str:
    """First and last, 0-based and inclusive."""
    return DASH if span is None else f"{span[0]}-{span[1] - 1}"


def node_name(node: Fields) -> str:
    return node.text("display_name") or node.text("node_id")


def node_order(node: Fields) -> tuple[bool, tuple[int, int], str]:
    return node.text("state") == "gone", node.span("span") or (1 << 30, 0), node.text("node_id")


def node_state(node: Fields) -> str:
    state, total = node.text("state"), node.count("load_total_bytes")
    if state == "loading" and total > 0:
        return f"{node.text('load_phase')} {100 * node.count('load_done_bytes') // total} %"
    return state


def node_complaint(node: Fields) -> str:
    """What is wrong with a node's draft model; "" where nothing is."""
    draft = node.one("draft")
    if draft is None:
        return ""
    return draft_complaint(draft.text("model_id"), draft.text("state"), draft.text("why"))


def figure(value: float) -> str:
    """Without its unit, which the heading says; 0 is unknown."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value > 0 else DASH


def percent(part: int, whole: int) -> str:
    return f"{100 * part // whole} %" if whole > 0 else DASH


def millis(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} ms"


def lined_table(*columns: tuple[str, str], rest: str) -> Table:
    """A line a row: the last column, `rest`, has the room that the others leave."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for title, justify in columns:
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    table.add_column(rest, no_wrap=True, overflow="ellipsis", ratio=1)
    return table
