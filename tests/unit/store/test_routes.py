"""Requests that ended are kept whole, the newest of them, and found again by another process."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from coordinator.ports import KeptRequest
from coordinator.shell.store import Store, open_store
from coordinator.shell.store_routes import REQUEST_CHARS_MAX, RequestRoutes
from coordinator.shell.store_tables import finished_routes
from plait.clock import ManualClock
from tests.unit.dashboard.fakes import DECISION, request_view


def kept(request_id: str, **changes: object) -> KeptRequest:
    request = replace(request_view(3, state="finished"), request_id=request_id)
    names = {hop.node_id: f"box {at}" for at, hop in enumerate(request.route)}
    return KeptRequest(request=replace(request, **changes), names=names)  # type: ignore[arg-type]


async def test_another_process_finds_them_with_their_chains_and_names(tmp_path: Path) -> None:
    wanted = kept("abc-1")
    for _ in range(2):  # the second one finds what the first one wrote
        async with open_store(tmp_path / "db", ManualClock(), ca_der=b"") as store:
            if not await store.routes.recent(9):
                await store.routes.record([kept("abd"), wanted])
                await store.routes.record([])
            assert [each.request.request_id for each in await store.routes.recent(9)] == [
                *("abc-1", "abd")
            ]
            assert await store.routes.find("abc-1") == await store.routes.find("abc") == wanted
            assert wanted.request.route and wanted.request.decisions == (DECISION,)
            for none in ("", "ab", "x", "%", "ab_"):
                assert await store.routes.find(none) is None, none


async def test_the_newest_are_kept_and_an_id_that_came_twice_is_the_last(store: Store) -> None:
    routes = RequestRoutes(store.history.engine, rows_max=10, pruned_every=5)
    for number in range(43):
        await routes.record([kept(f"r{number:02}", prompt_tokens=number)])
    assert 10 <= len(await routes.recent(100)) <= 15
    assert [each.request.prompt_tokens for each in await routes.recent(2)] == [42, 41]
    await routes.record([kept("r42", prompt_tokens=7)])
    again = await routes.find("r4")
    assert again is None, "two ids begin so"
    again = await routes.find("r42")
    assert again is not None and again.request.prompt_tokens == 7


async def test_what_is_too_long_is_kept_without_the_chains_that_were_considered(
    store: Store,
) -> None:
    long = replace(DECISION, considered=DECISION.considered * 400)
    await store.routes.record([kept("r", decisions=(long,))])
    found = await store.routes.find("r")
    assert found is not None and found.request.decisions == (replace(long, considered=()),)
    assert len(str(long)) > REQUEST_CHARS_MAX


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"request_id": 1}'])
async def test_what_this_version_cannot_read_is_passed_over(store: Store, text: str) -> None:
    await store.routes.record([kept("old"), kept("new")])
    is_old = finished_routes.c.request_id == "old"
    async with store.history.engine.begin() as connection:
        await connection.execute(update(finished_routes).where(is_old).values(request=text))
    assert [each.request.request_id for each in await store.routes.recent(9)] == ["new"]
    assert await store.routes.find("old") is None
