"""A thread that brings rows of remote weights, so that no step of other requests waits for them."""

from collections.abc import Callable

from node.engine.background import Background
from plait.errors import WeightsError


class RowFetcher(Background[list[int]]):
    """Calls `fetch` with the ids of one request after the other.

    A fetch ends by itself: its own time limits and tries are those of `plait.models.http_ranges`.
    """

    def __init__(self, fetch: Callable[[list[int]], None]) -> None:
        super().__init__(
            fetch,
            name="plait-rows",
            waiting="prompts wait for embedding rows",
            failed=_fetch_failed,
        )


def _fetch_failed(error: Exception) -> WeightsError:
    return WeightsError(
        f"embedding rows could not be fetched: {type(error).__name__}: {error}",
        reason="weights_unavailable",
    )
