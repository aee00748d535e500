"""Requests that ended lately, whole: as many as the store keeps so."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from coordinator.core.view import RequestView

KEPT_MAX: Final = 1_000


class RequestShelf:
    """The last `kept_max` that were seen to end."""

    def __init__(self, *, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._kept: OrderedDict[str, RequestView] = OrderedDict()

    def note(self, requests: Iterable[RequestView]) -> None:
        """Keep those that are over."""
        for request in requests:
            if request.total_ms is not None and request.request_id not in self._kept:
                self._kept[request.request_id] = request
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    def find(self, request_id: str) -> RequestView | None:
        """The request, where it is still kept."""
        return self._kept.get(request_id)

    def of_node(self, node_id: str, limit: int) -> list[RequestView]:
        """The last that ran on a node, the newest first."""
        found: list[RequestView] = []
        for request in reversed(self._kept.values()):
            if any(hop.node_id == node_id for hop in request.route):
                found.append(request)
                if len(found) == limit:
                    break
        return found
