"""The loop: events in order, effects to whom they belong, deadlines kept."""

import asyncio

import pytest

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.view import NetworkView
from coordinator.shell.inbox import EventInbox
from coordinator.shell.loop import Loop
from coordinator.shell.view_cache import ViewCache
from plait.clock import ManualClock, SystemClock
from plait.errors import OverloadedError
from plait.types import NodeId, Reason, RequestId
from tests.kit.wait import until
from tests.unit.shell.fakes import LOAD, PROBLEM, FakeActors, FakeCore

DRAINED = ev.NodeDrained(node_id=NodeId("n1"), incarnation=1)
REPORTED = ev.NodeReported(node_id=NodeId("n1"), incarnation=1, load=LOAD)


async def test_events_reach_the_core_in_order_and_effects_their_actors() -> None:
    solve = fx.SolveAllocation(epoch=3, problem=PROBLEM)
    unassign = fx.UnassignSpan(node_id=NodeId("n1"), incarnation=1, epoch=3)
    queued = fx.NotifyQueued(
        request_id=RequestId("r"), position=1, reason=Reason(code="x", message="y")
    )
    core, actors, inbox = FakeCore([[solve, unassign], [queued]]), FakeActors(), EventInbox()
    clock = ManualClock(5)
    loop = Loop(core, inbox, clock, nodes=actors, requests=actors, solver=actors)
    inbox.post(DRAINED)
    inbox.post(ev.ReplanAsked())
    task = asyncio.create_task(loop.run())
    await until(lambda: len(core.told) == 2)
    task.cancel()
    assert core.told == [(DRAINED, 5), (ev.ReplanAsked(), 5)]
    assert (actors.solves, actors.nodes, actors.requests) == ([solve], [unassign], [queued])


async def test_a_deadline_ticks_without_any_event() -> None:
    core, actors, clock = FakeCore(), FakeActors(), SystemClock()
    core.deadline_ms = clock.monotonic_ms() + 20
    due_ms = core.deadline_ms
    loop = Loop(core, EventInbox(), clock, nodes=actors, requests=actors, solver=actors)
    task = asyncio.create_task(loop.run())
    await until(lambda: bool(core.told))
    task.cancel()
    event, now_ms = core.told[0]
    assert isinstance(event, ev.Ticked)
    assert now_ms >= due_ms


async def test_a_bug_in_the_core_ends_the_loop() -> None:
    class Broken(FakeCore):
        def handle(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
            raise AssertionError("impossible")

    inbox, actors = EventInbox(), FakeActors()
    loop = Loop(Broken(), inbox, ManualClock(), nodes=actors, requests=actors, solver=actors)
    inbox.post(DRAINED)
    with pytest.raises(AssertionError, match="impossible"):
        async with asyncio.timeout(5):
            await loop.run()


async def test_a_full_inbox_refuses_new_work_but_takes_endings() -> None:
    inbox = EventInbox(events_max=2)
    inbox.post(REPORTED)
    inbox.post(REPORTED)
    with pytest.raises(OverloadedError):
        inbox.post(REPORTED)
    inbox.post(DRAINED)
    inbox.post(DRAINED)
    with pytest.raises(OverloadedError):
        inbox.post(DRAINED)
    assert inbox.num_refused == 2
    assert await inbox.take(num_max=10, wait_ms=0) == [REPORTED, REPORTED, DRAINED, DRAINED]


def test_one_snapshot_serves_all_viewers_of_a_moment() -> None:
    core, clock = FakeCore(), ManualClock()
    cache = ViewCache(core, clock)
    first = cache.view()
    clock.advance(249)
    assert cache.view() is first
    clock.advance(1)
    assert cache.view() is not first
    assert core.num_views == 2


class SlowCore(FakeCore):
    """Takes so long to draw itself."""

    def __init__(self, clock: ManualClock, took_ms: int) -> None:
        super().__init__()
        self._clock = clock
        self._took_ms = took_ms

    def view(self, now_ms: int) -> NetworkView:
        self._clock.advance(self._took_ms)
        return super().view(now_ms)


def test_a_view_that_takes_long_rests_longer_and_never_for_ever() -> None:
    clock = ManualClock()
    slow = SlowCore(clock, took_ms=100)
    cache = ViewCache(slow, clock, refresh_ms=250)
    cache.view()
    clock.advance(1_000)
    cache.view()
    assert slow.num_views == 1
    clock.advance(200)
    cache.view()
    assert slow.num_views == 2
    hanging = SlowCore(clock, took_ms=60_000)
    cache = ViewCache(hanging, clock, refresh_ms=250)
    cache.view()
    clock.advance(3_000)
    cache.view()
    assert hanging.num_views == 2
