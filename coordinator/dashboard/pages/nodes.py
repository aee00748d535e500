"""The list of nodes, and one node's page."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from fastapi import Request

from coordinator.dashboard import events, node, nodes
from coordinator.dashboard.frame import Frame
from coordinator.dashboard.live import Action
from coordinator.dashboard.markup import page_head
from coordinator.dashboard.pages.actions import act_on_network
from coordinator.dashboard.paging import Choice, address, filter_form, wanted_of
from coordinator.dashboard.sources import Sources
from coordinator.ports import KnownNode

ENTRIES_SHOWN: Final = 12
REQUESTS_SHOWN: Final = 12
INVITE: Final = f'<a class="btn btn-primary" href="{address("enrolment")}">Invite a machine</a>'


async def nodes_page(sources: Sources, request: Request) -> None:
    """All nodes, a page at a time."""
    frame = Frame(sources, request, at="nodes")
    wanted = wanted_of("nodes", request.query_params, ("name", "state", "model"))

    async def do(action: Action) -> None:
        await act_on_network(frame, sources, action)

    head, asked, shown, absent = frame.regions(4, do)
    head.show(page_head("Nodes", aside=INVITE))
    served = tuple((str(spec.model_id), str(spec.model_id)) for spec in sources.specs)
    choices = (
        Choice(name="name", title="Name or id", placeholder="part of it"),
        Choice(name="state", title="State", options=tuple((s, s) for s in nodes.STATES)),
        Choice(name="model", title="Model", options=served),
    )
    asked.show(filter_form(wanted, choices))

    async def tick() -> None:
        draw = partial(nodes.draw_node_list, wanted=wanted)
        shown.show(sources.snapshot.drawn(("nodes", wanted), draw))
        known = await _known(sources)
        present = sources.snapshot.current().by_id
        absent.show(
            sources.snapshot.drawn(
                ("absent", wanted), lambda _: nodes.draw_absent(known, present, wanted)
            )
        )

    await frame.run(tick)


async def node_page(sources: Sources, request: Request) -> None:
    """One node, here or not."""
    node_id = str(request.path_params["node_id"])[:64]
    frame = Frame(sources, request, at="nodes")

    async def do(action: Action) -> None:
        await act_on_network(frame, sources, action)
        await tick()

    head, is_, speed, ran, befell, hops = frame.regions(6, do)

    async def tick() -> None:
        snapshot = sources.snapshot.current()
        known = next((n for n in await _known(sources) if n.node_id == node_id), None)
        here = snapshot.by_id.get(node_id)
        head.show(node.draw_head(snapshot, node_id, known))
        is_.show(node.draw_node(snapshot, here, known) if here else "")
        speed.show(node.draw_history(sources.snapshot.nodes.of(node_id)) if here else "")
        ended = sources.snapshot.shelf.of_node(node_id, REQUESTS_SHOWN)
        ran.show(node.draw_requests_of(snapshot, node_id, ended) if here or ended else "")
        entries, total = sources.chronicle.page(offset=0, limit=ENTRIES_SHOWN, node_id=node_id)
        befell.show(events.draw_events_of(node_id, entries, total, snapshot.names))
        hops.show(node.draw_hops(here, snapshot.names) if here else "")

    await frame.run(tick)


async def _known(sources: Sources) -> Sequence[KnownNode]:
    return await sources.known_nodes.get("all", sources.register.list_nodes)
