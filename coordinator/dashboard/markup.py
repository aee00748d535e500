"""Small pieces of HTML. Every text that came from outside goes through `text`."""

import datetime as dt
import html
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coordinator.dashboard.figures import num_bytes

NO_TITLE: Final = '<span class="unseen">Actions</span>'


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
    head = "".join(
        f'<th scope="col"{_class(kind)}>{text(title) or NO_TITLE}</th>' for title, kind in heads
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f'<caption class="unseen">{text(caption)}</caption>'
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


def link(href: str, label: str, *, kind: str = "") -> str:
    """A link within the dashboard; `label` is escaped, `href` is a path of ours, quoted."""
    return f'<a href="{text(href)}"{_class(kind)}>{text(label)}</a>'


def banner(tone: str, title: str, sentence: str) -> str:
    """A sentence across the page; bad ones interrupt a screen reader."""
    role = "alert" if tone == "bad" else "status"
    return (
        f'<div class="banner banner-{tone}" role="{role}"><strong>{text(title)}</strong>'
        f"<span>{text(sentence)}</span></div>"
    )


def facts(named: Iterable[tuple[str, str]]) -> str:
    """Names and what is so; the second of each is HTML."""
    drawn = "".join(f"<div><dt>{text(name)}</dt><dd>{fact}</dd></div>" for name, fact in named)
    return f'<dl class="facts">{drawn}</dl>'


def page_head(title: str, *, note: str = "", aside: str = "") -> str:
    """The page's own heading; `note` and `aside` are HTML."""
    said = f'<p class="page-note">{note}</p>' if note else ""
    return (
        f'<div class="page-head"><div><h1>{text(title)}</h1>{said}</div>'
        f'<div class="page-aside">{aside}</div></div>'
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


def chart(title: str, values: Sequence[float], figure: Callable[[float], str]) -> str:
    """A line with its last value and its range said in words."""
    last, low, high = values[-1], min(values), max(values)
    return (
        f'<figure class="chart"><figcaption><span class="tile-name">{text(title)}</span>'
        f'<span class="tile-value">{figure(last)}</span></figcaption>{sparkline(values)}'
        f'<span class="tile-note">{figure(low)} to {figure(high)}</span></figure>'
    )


def moment(unix_ms: int) -> str:
    """A wall-clock time, in UTC."""
    at = dt.datetime.fromtimestamp(unix_ms / 1_000, dt.UTC)
    return f'<time datetime="{at.isoformat()}">{at:%Y-%m-%d %H:%M:%S}</time>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
