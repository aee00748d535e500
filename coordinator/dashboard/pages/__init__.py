"""The pages, registered once per process, NiceGUI's way. What they show is drawn beside this
package; here stands what each page is made of and what its buttons do."""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from nicegui import ui

from coordinator.dashboard.pages import access, network, nodes, plan, requests
from coordinator.dashboard.sources import Sources

Page = Callable[[Sources, Request], Awaitable[None]]
PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("/", "plait", network.overview_page),
    ("/map", "Map · plait", network.map_page),
    ("/nodes", "Nodes · plait", nodes.nodes_page),
    ("/nodes/{node_id}", "Node · plait", nodes.node_page),
    ("/models", "Models · plait", network.models_page),
    ("/requests", "Requests · plait", requests.requests_page),
    ("/requests/{request_id}", "Request · plait", requests.request_page),
    ("/plan", "Plan · plait", plan.plan_page),
    ("/events", "Events · plait", network.events_page),
    ("/enrolment", "Enrolment · plait", access.enrolment_page),
    ("/keys", "API keys · plait", access.keys_page),
)


def register(sources: Sources) -> None:
    """Define the pages on NiceGUI's application."""
    for path, title, page in PAGES:
        _register(sources, path, title, page)


def _register(sources: Sources, path: str, title: str, page: Page) -> None:
    @ui.page(path, title=title, response_timeout=10)
    async def show(request: Request) -> None:
        await page(sources, request)
