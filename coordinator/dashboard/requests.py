"""Requests as HTML: a few, all that are open, and those that ended long ago. Never what they said.
Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.core.view import RequestView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import chip, link, meter, moment, row, section, table, text
from coordinator.dashboard.paging import Wanted, address, pager
from coordinator.dashboard.snapshot import Snapshot
from coordinator.ports import PastRequest

REQUESTS_SHOWN: Final = 12
OPEN_SHOWN: Final = 50
OPEN_STATES: Final = ("queued", "opening", "prefill", "decode")
OUTCOMES: Final = ("stop", "length", "cancelled", "error")
REQUEST_TONES: Final = {
    "queued": "warn",
    "opening": "busy",
    "prefill": "busy",
    "decode": "ok",
    "finished": "calm",
    "failed": "bad",
    "cancelled": "calm",
}
OUTCOME_TONES: Final = {"error": "bad"}
REQUEST_HEADS: Final = (
    ("Request", ""),
    ("State", ""),
    ("Route", ""),
    ("Tokens", ""),
    ("TTFT", "num"),
    ("Tokens/s", "num"),
    ("Time", "num"),
)
PAST_HEADS: Final = (
    ("Request", ""),
    ("Model", ""),
    ("Ended (UTC)", ""),
    ("Outcome", ""),
    ("Key", ""),
    ("In", "num"),
    ("Out", "num"),
    ("TTFT", "num"),
    ("Time", "num"),
    ("Chains", "num"),
)
NO_REQUEST: Final = "No request has come in yet."


def draw_requests(snapshot: Snapshot) -> str:
    """Open requests first, then those that ended lately; the newest first among both."""
    ordered = sorted(snapshot.view.requests, key=_recency)
    hidden = len(ordered) - REQUESTS_SHOWN
    aside = link(address("requests"), "All requests") if hidden > 0 else ""
    body = request_table(snapshot, ordered[:REQUESTS_SHOWN], empty=NO_REQUEST)
    return section("Requests", body, aside=aside, id_="requests")


def draw_open(snapshot: Snapshot, wanted: Wanted) -> str:
    """Those that are open, narrowed as the list of the others is."""
    found = sorted(
        (
            request
            for request in snapshot.view.requests
            if request.state in OPEN_STATES and _is_wanted(request, wanted)
        ),
        key=_recency,
    )
    hidden = len(found) - OPEN_SHOWN
    aside = f"{figures.count(len(found))} open"
    if hidden > 0:
        aside += f", {figures.count(hidden)} not shown"
    body = request_table(snapshot, found[:OPEN_SHOWN], empty="Nothing runs or waits now.")
    return section("Open", body, aside=aside, id_="open")


def draw_past(
    past: Sequence[PastRequest], total: int, wanted: Wanted, keys: Mapping[str, str]
) -> str:
    """One page of those that ended; `keys` are the names of keys by id."""
    rows = (row(request.request_id, PAST_HEADS, _past_cells(request, keys)) for request in past)
    empty = (
        f"No request fits. {link(address('requests'), 'Show all')}"
        if any(value for _, value in wanted.filters)
        else "No request has ended yet."
    )
    body = table("Requests that ended", PAST_HEADS, rows, empty=empty) + pager(wanted, total)
    return section("Ended", body, aside=f"{figures.count(total)} kept", id_="ended")


def request_table(snapshot: Snapshot, requests: Sequence[RequestView], *, empty: str) -> str:
    """A row for each."""
    rows = (
        row(request.request_id, REQUEST_HEADS, _cells(request, snapshot.names))
        for request in requests
    )
    return table("Requests", REQUEST_HEADS, rows, empty=empty)


def request_link(request_id: str) -> str:
    """The id, leading to the request's page."""
    return link(address(f"requests/{request_id}"), request_id, kind="mono cell-id")


def state_chip(request: RequestView) -> str:
    """How it ended, or what it does."""
    tone = REQUEST_TONES.get(request.state, "calm")
    return chip(request.finish_reason or request.state, tone)


def route_list(request: RequestView, names: Mapping[str, str]) -> str:
    """The chain, each node with its layers."""
    hops = "".join(
        f'<li title="{text(hop.node_id)}">{text(names.get(hop.node_id) or hop.node_id)} '
        f"<span>{figures.layers(hop.span)}</span></li>"
        for hop in request.route
    )
    return f'<ol class="route">{hops}</ol>' if hops else figures.DASH


def _recency(request: RequestView) -> tuple[bool, int]:
    """The view has the last to end first, and an age that ends with the request is no recency."""
    is_open = request.state in OPEN_STATES
    return not is_open, request.age_ms if is_open else 0


def _is_wanted(request: RequestView, wanted: Wanted) -> bool:
    model, key = wanted.get("model"), wanted.get("key")
    return (not model or request.model_id == model) and (not key or request.key_id == key)


def _cells(request: RequestView, names: Mapping[str, str]) -> tuple[str, ...]:
    why = f'<span class="cell-note">{text(request.reason)}</span>' if request.reason else ""
    retried = f'<span class="cell-note">epoch {request.epoch}</span>' if request.epoch > 1 else ""
    label = f"{request.num_generated} of {request.max_new_tokens}"
    return (
        request_link(request.request_id)
        + f'<span class="cell-note">{text(request.model_id)}, {request.prompt_tokens} in</span>',
        state_chip(request) + why + retried,
        route_list(request, names),
        meter(request.num_generated, request.max_new_tokens, label),
        figures.milliseconds(request.ttft_ms),
        figures.per_second(request.tokens_per_s) if request.tokens_per_s > 0 else figures.DASH,
        figures.age(request.age_ms)
        if request.total_ms is None
        else figures.milliseconds(request.total_ms),
    )


def _past_cells(request: PastRequest, keys: Mapping[str, str]) -> tuple[str, ...]:
    why = f'<span class="cell-note">{text(request.reason)}</span>' if request.reason else ""
    ttft = None if request.ttft_ms is None else round(request.ttft_ms)
    return (
        request_link(request.request_id),
        text(request.model_id),
        moment(request.finished_unix_ms),
        chip(request.finish_reason or "ended", OUTCOME_TONES.get(request.finish_reason, "calm"))
        + why,
        text(keys.get(request.key_id) or request.key_id) or figures.DASH,
        figures.count(request.prompt_tokens),
        figures.count(request.generated_tokens),
        figures.milliseconds(ttft),
        figures.milliseconds(round(request.total_ms)),
        figures.count(request.num_attempts),
    )
