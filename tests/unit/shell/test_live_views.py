"""What streams shows before the core hears of the last token."""

import dataclasses

from coordinator.core.view import NetworkView
from coordinator.shell.live_views import LiveViews
from tests.unit.dashboard.fakes import network_view, request_view


class Core:
    """A core's view that the test sets."""

    def __init__(self, view: NetworkView) -> None:
        self.now = view

    def view(self) -> NetworkView:
        return self.now


def test_an_open_request_moves_and_so_does_the_total() -> None:
    request = dataclasses.replace(request_view(1, num_generated=0), age_ms=1_184, ttft_ms=184)
    core = Core(dataclasses.replace(network_view(tokens=100), requests=(request,)))
    progress = {request.request_id: 11}
    live = LiveViews(core, lambda: progress)
    seen = live.view()
    assert seen.requests[0].num_generated == 11
    assert seen.requests[0].tokens_per_s == 10.0
    assert seen.counters.tokens_generated == 111
    # The gateway has forgotten it before the core has counted it: nothing goes back.
    progress.clear()
    assert live.view().counters.tokens_generated == 111
    ended = dataclasses.replace(request, state="finished", num_generated=12)
    core.now = dataclasses.replace(network_view(tokens=112), requests=(ended,))
    assert live.view().counters.tokens_generated == 112


def test_a_request_that_ended_is_not_counted_twice() -> None:
    ended = dataclasses.replace(request_view(3, state="finished"), num_generated=64)
    core = Core(dataclasses.replace(network_view(tokens=64), requests=(ended,)))
    live = LiveViews(core, lambda: {ended.request_id: 64})
    assert live.view().counters.tokens_generated == 64


def test_a_request_that_failed_shows_what_it_had() -> None:
    broken = dataclasses.replace(
        request_view(2, state="failed", num_generated=0), age_ms=9_000, ttft_ms=184, total_ms=1_184
    )
    core = Core(dataclasses.replace(network_view(tokens=100), requests=(broken,)))
    seen = LiveViews(core, lambda: {broken.request_id: 11}).view()
    assert (seen.requests[0].num_generated, seen.requests[0].tokens_per_s) == (11, 10.0)
    assert seen.counters.tokens_generated == 100
