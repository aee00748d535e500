"""Events for the core are kept in order while it is busy, up to a bound."""

import asyncio

from coordinator.core import events as ev
from coordinator.gateway.posting import Poster
from plait.types import RequestId
from tests.kit.inbox import ListInbox


def cancelled(name: str) -> ev.Event:
    return ev.RequestCancelled(request_id=RequestId(name))


async def test_what_a_full_inbox_refused_comes_first_and_the_rest_is_counted() -> None:
    inbox = ListInbox(is_full=True)
    poster = Poster(inbox, unposted_max=2)
    for name in ("a", "b", "c"):
        poster.post(cancelled(name))
    assert poster.num_lost == 1
    inbox.is_full = False
    async with asyncio.timeout(2):
        while len(inbox.events) < 2:  # noqa: ASYNC110 - a plain list carries no event
            await asyncio.sleep(0.01)
    poster.post(cancelled("d"))
    assert inbox.events == [cancelled("a"), cancelled("b"), cancelled("d")]
