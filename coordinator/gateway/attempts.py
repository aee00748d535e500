"""What the gateway knows of a request's current chain."""

from dataclasses import dataclass

from plait.types import NodeId, Route


@dataclass(slots=True)
class OpenedRoute:
    """The current attempt of a request."""

    epoch: int
    route: Route
    is_open: bool = False
    has_token: bool = False
    is_over: bool = False

    @property
    def first_node(self) -> NodeId:
        return self.route[0].node_id

    @property
    def last_node(self) -> NodeId:
        return self.route[-1].node_id
