"""Small pieces of HTML. Every text that came from outside goes through `text`."""

import html
from collections.abc import Iterable, Sequence

from coordinator.dashboard.figures import num_bytes


def text(value: object) -> str:
    """Escaped, for content and attributes."""
    return html.escape(str(value), quote=True)


def chip(label: str, tone: str) -> str:
    """A state: a coloured dot and a word. Tones: ok, busy, warn, bad, calm."""
    return f'<span class="chip chip-{tone}">{text(label)}</span>'


def section(title: str, body: str, *, aside: str = "", id_: str = "", description: str = "") -> str:
    """A titled panel."""
    anchor = f' id="{id_}"' if id_ else ""
    note = f'<p class="panel-note">{description}</p>' if description else ""
    return (
        f'<section class="panel"{anchor}><header class="panel-head"><h2>{text(title)}</h2>'
        f'<div class="panel-aside">{aside}</div></header>{note}{body}</section>'
    )


def meter(used: int, limit: int, label: str, *, tone: str = "") -> str:
    """A bar with its figure beside it."""
    share = 0.0 if limit <= 0 else min(1.0, used / limit)
    kind = f" meter-{tone}" if tone else ""
    return (
        f'<span class="meter{kind}" role="img" aria-label="{text(label)}">'
        f'<span class="meter-fill" style="width:{share * 100:.0f}%"></span></span>'
        f'<span class="meter-label">{text(label)}</span>'
    )


def loading(phase: str, done_bytes: int, total_bytes: int) -> str:
    """Progress of fetching or loading a span."""
    label = f"{phase} {num_bytes(done_bytes)} of {num_bytes(total_bytes)}"
    return meter(done_bytes, total_bytes, label, tone="busy")


def table(
    caption: str, heads: Sequence[tuple[str, str]], rows: Iterable[str], *, empty: str
) -> str:
    """A table that folds into cards on a phone; `heads` are (title, class), rows from `row`."""
    body = "".join(rows)
    if not body:
        return f'<p class="empty">{empty}</p>'
    head = "".join(f'<th scope="col"{_class(kind)}>{text(title)}</th>' for title, kind in heads)
    return (
        f'<div class="scroll"><table><caption class="hidden">{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def row(key: str, heads: Sequence[tuple[str, str]], cells: Sequence[str]) -> str:
    """One row; `key` tells the browser which row it is when rows move."""
    drawn = "".join(
        f'<td data-label="{text(title)}"{_class(kind)}>{cell}</td>'
        for (title, kind), cell in zip(heads, cells, strict=True)
    )
    return f'<tr data-key="{text(key)}">{drawn}</tr>'


def button(
    label: str,
    action: str,
    value: str = "",
    *,
    kind: str = "quiet",
    confirm: str = "",
    described: str = "",
) -> str:
    """A button whose press reaches the page's `on_action`; `confirm` asks for a second press."""
    asks = f' data-confirm="{text(confirm)}"' if confirm else ""
    name = f' aria-label="{text(described)}"' if described else ""
    return (
        f'<button type="button" class="btn btn-{kind}" data-action="{text(action)}" '
        f'data-value="{text(value)}"{asks}{name}>{text(label)}</button>'
    )


def sparkline(values: Sequence[float], *, width: int = 160, height: int = 36) -> str:
    """A line of the last values, oldest left."""
    if len(values) < 2:
        return f'<svg class="spark" viewBox="0 0 {width} {height}" aria-hidden="true"></svg>'
    top = max(*values, 1e-9)
    step = width / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{height - 2 - value / top * (height - 6):.1f}"
        for at, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        f'aria-hidden="true"><polygon points="0,{height} {points} {width},{height}"/>'
        f'<polyline points="{points}"/></svg>'
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
