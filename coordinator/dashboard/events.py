"""What happened of late, as HTML. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.dashboard import figures
from coordinator.dashboard.markup import chip, link, moment, row, section, table, text
from coordinator.dashboard.nodes import node_link
from coordinator.dashboard.paging import Choice, Wanted, address, pager
from coordinator.dashboard.requests import request_link
from coordinator.ports import ChronicleEntry

EVENT_HEADS: Final = (("When (UTC)", ""), ("About", ""), ("Whom", ""), ("What happened", ""))
KINDS: Final = (
    ("node", "nodes"),
    ("load", "loading"),
    ("hop", "hops"),
    ("plan", "plans"),
    ("request", "requests"),
)
CHOICES: Final = (
    Choice(name="node", title="Node", placeholder="a name or an id"),
    Choice(name="kind", title="About", options=KINDS),
)


def draw_events(
    entries: Sequence[ChronicleEntry], total: int, wanted: Wanted, names: Mapping[str, str]
) -> str:
    """A page of entries, the newest first."""
    empty = (
        f"Nothing fits. {link(address('events'), 'Show all')}"
        if any(value for _, value in wanted.filters)
        else "Nothing has happened since the coordinator started."
    )
    body = event_table(entries, names, empty=empty) + pager(wanted, total)
    return section("Events", body, aside=f"{figures.count(total)} kept", id_="events")


def draw_events_of(
    node_id: str, entries: Sequence[ChronicleEntry], total: int, names: Mapping[str, str]
) -> str:
    """The last of one node."""
    aside = link(address("events", node=node_id), f"All {figures.count(total)}") if total else ""
    empty = "Nothing has happened to it since the coordinator started."
    return section("Events", event_table(entries, names, empty=empty), aside=aside, id_="events")


def event_table(entries: Sequence[ChronicleEntry], names: Mapping[str, str], *, empty: str) -> str:
    """A row for each."""
    rows = (row(str(entry.number), EVENT_HEADS, _cells(entry, names)) for entry in entries)
    return table("Events", EVENT_HEADS, rows, empty=empty)


def found_node(wanted: Wanted, names: Mapping[str, str]) -> str:
    """The id that a filter means, by id or by name; as it is where nobody is called so."""
    asked = wanted.get("node")
    if not asked or asked in names:
        return asked
    words = asked.lower()
    exact = [node_id for node_id, name in names.items() if name.lower() == words]
    near = exact or [node_id for node_id, name in names.items() if words in name.lower()]
    return near[-1] if near else asked


def _cells(entry: ChronicleEntry, names: Mapping[str, str]) -> tuple[str, ...]:
    whom = [node_link(names, node_id) for node_id in (entry.node_id, entry.other_id) if node_id]
    if entry.request_id:
        whom.append(request_link(entry.request_id))
    return (
        moment(entry.at_unix_ms),
        chip(entry.kind, entry.tone),
        " \u2192 ".join(whom) or figures.DASH,
        text(entry.text),
    )
