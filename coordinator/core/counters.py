"""What the core has done since it began."""

from dataclasses import dataclass
from typing import Final

ASKED_WRONG: Final = frozenset(
    {"model_not_found", "invalid_argument", "context_exceeded", "request_too_large"}
)
"""Reasons that are the client's to change: the network has not failed it."""


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    requests_submitted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_refused: int = 0
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

    def count_error(self, code: str) -> None:
        """A request ended with an error; `code` is its reason's word, or ""."""
        if code in ASKED_WRONG:
            self.requests_refused += 1
        else:
            self.requests_failed += 1
