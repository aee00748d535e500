"""What the core has done since it began."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    requests_submitted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    routes_opened: int = 0
    routes_broken: int = 0
    routes_moved: int = 0
    routes_resumed: int = 0
    tokens_generated: int = 0
    events_ignored: int = 0
    nodes_moved: int = 0
    weight_bytes_moved: int = 0
    weight_bytes_fetched: int = 0
