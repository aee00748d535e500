"""Pages that show the whole network: overview, map, models, events."""

from collections.abc import Callable
from functools import partial
from typing import Final

from fastapi import Request

from coordinator.dashboard import events, layers, models, network_map, nodes, overview, requests
from coordinator.dashboard.frame import Frame
from coordinator.dashboard.live import Action
from coordinator.dashboard.markup import page_head
from coordinator.dashboard.pages.actions import act_on_network
from coordinator.dashboard.paging import PAGE_SIZE, filter_form, wanted_of
from coordinator.dashboard.snapshot import Snapshot
from coordinator.dashboard.sources import Sources

REGIONS: Final[tuple[tuple[str, Callable[[Snapshot], str]], ...]] = (
    ("headline", overview.draw_headline),
    ("tiles", overview.draw_tiles),
    ("layers", layers.draw_layers),
    ("nodes", nodes.draw_nodes),
    ("requests", requests.draw_requests),
    ("plan", overview.draw_plan),
)


async def overview_page(sources: Sources, request: Request) -> None:
    """The network, live."""
    frame = Frame(sources, request, at="")

    async def do(action: Action) -> None:
        await act_on_network(frame, sources, action)

    shown = frame.regions(len(REGIONS), do)

    async def tick() -> None:
        for (name, draw), region in zip(REGIONS, shown, strict=True):
            region.show(sources.snapshot.drawn(name, draw))

    await frame.run(tick)


async def map_page(sources: Sources, request: Request) -> None:
    """Who feeds whom."""
    frame = Frame(sources, request, at="map")
    head, shown = frame.regions(2)
    head.show(page_head("Map", note="Prompts go in on the left, layer by layer to the right."))

    async def tick() -> None:
        shown.show(sources.snapshot.drawn("map", network_map.draw_maps))

    await frame.run(tick)


async def models_page(sources: Sources, request: Request) -> None:
    """What is served, and what it lacks."""
    frame = Frame(sources, request, at="models")
    head, shown = frame.regions(2)
    head.show(page_head("Models"))
    specs = {str(spec.model_id): spec for spec in sources.specs}

    async def tick() -> None:
        draw = partial(models.draw_model_list, specs=specs)
        shown.show(sources.snapshot.drawn("models", draw))

    await frame.run(tick)


async def events_page(sources: Sources, request: Request) -> None:
    """What happened of late."""
    frame = Frame(sources, request, at="events")
    wanted = wanted_of("events", request.query_params, ("node", "kind"))
    head, asked, shown = frame.regions(3)
    head.show(page_head("Events", note="The last 5 000 since the coordinator started."))
    asked.show(filter_form(wanted, events.CHOICES))

    def draw(snapshot: Snapshot) -> str:
        entries, total = sources.chronicle.page(
            offset=wanted.offset,
            limit=PAGE_SIZE,
            node_id=events.found_node(wanted, snapshot.names),
            kind=wanted.get("kind"),
        )
        return events.draw_events(entries, total, wanted, snapshot.names)

    async def tick() -> None:
        shown.show(sources.snapshot.drawn(("events", wanted), draw))

    await frame.run(tick)
