"""The list of requests, and one request's page."""

from functools import partial

from fastapi import Request

from coordinator.dashboard import request as one
from coordinator.dashboard import requests
from coordinator.dashboard.frame import Frame
from coordinator.dashboard.markup import banner, link, page_head
from coordinator.dashboard.paging import PAGE_SIZE, Choice, address, filter_form, wanted_of
from coordinator.dashboard.sources import Sources

GONE = (
    "Neither among those that are open nor among the last that ended: ids are in answers "
    "and in the list."
)


async def requests_page(sources: Sources, request: Request) -> None:
    """What is open, and what ended, a page at a time."""
    frame = Frame(sources, request, at="requests")
    wanted = wanted_of("requests", request.query_params, ("model", "key", "outcome"))
    keys = await _key_names(sources)
    head, asked, opened, ended = frame.regions(4)
    head.show(page_head("Requests", note="Counts and times; never a prompt or an answer."))
    served = tuple((str(spec.model_id), str(spec.model_id)) for spec in sources.specs)
    choices = (
        Choice(name="model", title="Model", options=served),
        Choice(name="key", title="Key", options=tuple(sorted(keys.items(), key=lambda k: k[1]))),
        Choice(name="outcome", title="Outcome", options=tuple((o, o) for o in requests.OUTCOMES)),
    )
    asked.show(filter_form(wanted, choices))

    async def tick() -> None:
        draw = partial(requests.draw_open, wanted=wanted)
        is_over = bool(wanted.get("outcome"))
        opened.show("" if is_over else sources.snapshot.drawn(("open", wanted), draw))
        fetch = partial(
            sources.archive.page,
            offset=wanted.offset,
            limit=PAGE_SIZE,
            model_id=wanted.get("model"),
            key_id=wanted.get("key"),
            outcome=wanted.get("outcome"),
        )
        past, total = await sources.past_requests.get(wanted, fetch)
        ended.show(requests.draw_past(past, total, wanted, keys))

    await frame.run(tick)


async def request_page(sources: Sources, request: Request) -> None:
    """One request: from the network, the shelf or the store."""
    request_id = str(request.path_params["request_id"])[:128]
    frame = Frame(sources, request, at="requests")
    keys = await _key_names(sources)
    head, shown = frame.regions(2)
    note = link(address("requests"), "All requests")
    head.show(page_head(request_id, note=note))
    past = await sources.archive.find(request_id)

    async def tick() -> None:
        snapshot = sources.snapshot.current()
        found = snapshot.request(request_id) or sources.snapshot.shelf.find(request_id)
        if found is not None:
            shown.show(one.draw_request(snapshot, found, keys.get(found.key_id, "")))
        elif past is not None:
            shown.show(one.draw_past_request(past, keys.get(past.key_id, "")))
        else:
            shown.show(banner("warn", "No such request", GONE))

    await frame.run(tick)


async def _key_names(sources: Sources) -> dict[str, str]:
    return {key.key_id: key.display_name or key.key_id for key in await sources.keys.list_keys()}
