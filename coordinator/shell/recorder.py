"""Finished requests, from the view into the store: at most two transactions a second."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from coordinator.core.view import RequestView
from coordinator.ports import KeptRequest, PastRequest, ViewSource
from plait.clock import Clock
from plait.log import get

PERIOD_S: Final = 1.0
KNOWN_MAX: Final = 20_000
log = get("recorder")


class History(Protocol):
    """Where finished requests go."""

    async def record(self, requests: Sequence[PastRequest]) -> None: ...


class Routes(Protocol):
    """Where the last of them go whole."""

    async def record(self, requests: Sequence[KeptRequest]) -> None: ...


class Recorder:
    """Watches the view for requests that ended and hands each on once.

    A store that fails costs history, never service: the batch is dropped and logged.
    """

    def __init__(
        self, views: ViewSource, history: History, clock: Clock, routes: Routes | None = None
    ) -> None:
        self._views = views
        self._history = history
        self._routes = routes
        self._clock = clock
        self._known: OrderedDict[str, None] = OrderedDict()

    async def run(self) -> None:
        """Serve until cancelled; what ended by then is still written."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write what ended since the last time."""
        view = self._views.view()
        ended = [
            request
            for request in view.requests
            if request.total_ms is not None and request.request_id not in self._known
        ]
        for request in ended:
            self._known[request.request_id] = None
        fresh = [_finished(request, self._clock.unix_ms()) for request in ended]
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        try:
            await self._history.record(fresh)
            if self._routes is not None:
                names = view.display_names if ended else {}
                # The view has the last to end first.
                await self._routes.record([_kept(each, names) for each in reversed(ended)])
        except Exception as error:  # root: the store's drivers raise what they like
            log.warning("history_lost", requests=len(fresh), error=str(error))


def _kept(request: RequestView, names: Mapping[str, str]) -> KeptRequest:
    named = {hop.node_id for hop in request.route}
    for decision in request.decisions:
        for chain in decision.considered:
            named.update(chain.chain, (chain.obstacle,))
    known = {node_id: names[node_id] for node_id in named if node_id in names}
    return KeptRequest(request=request, names=known)


def _finished(request: RequestView, now_unix_ms: int) -> PastRequest:
    assert request.total_ms is not None
    return PastRequest(
        request_id=request.request_id,
        model_id=request.model_id,
        key_id=request.key_id,
        finish_reason=request.finish_reason,
        reason=request.reason,
        prompt_tokens=request.prompt_tokens,
        generated_tokens=request.num_generated,
        num_attempts=request.epoch,
        ttft_ms=None if request.ttft_ms is None else float(request.ttft_ms),
        total_ms=float(request.total_ms),
        finished_unix_ms=now_unix_ms - (request.age_ms - request.total_ms),
    )
