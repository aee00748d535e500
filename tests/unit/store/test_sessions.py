"""How long nodes stayed, over a coordinator's restart."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.lifetimes import NODES_MAX, SESSIONS_MAX, Lifetimes
from coordinator.shell.lifetimes import LifetimeKeeper
from coordinator.shell.store import Store, open_store
from coordinator.shell.store_sessions import NodeSessions
from plait.clock import ManualClock
from plait.types import NodeId
from tests.unit.core.stories import Story, only

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


async def test_sessions_come_back_in_the_order_in_which_nodes_were_heard_of(
    store: Store, clock: ManualClock
) -> None:
    await store.sessions.keep({A: (1, 2), B: (3,)})
    clock.advance(1_000)
    await store.sessions.keep({A: tuple(range(30))})
    assert await store.sessions.recall() == [
        (B, (3,)),
        (A, tuple(range(30 - SESSIONS_MAX, 30))),
    ]
    await store.sessions.keep({})


async def test_the_register_is_bounded_and_forgets_the_oldest(
    store: Store, clock: ManualClock
) -> None:
    sessions = NodeSessions(store.sessions.engine, clock, nodes_max=4, pruned_every=1)
    for number in range(9):
        clock.advance(1_000)
        await sessions.keep({NodeId(f"n{number}"): (number,)})
    reader = NodeSessions(store.sessions.engine, clock)
    assert [node_id for node_id, _ in await reader.recall()] == ["n5", "n6", "n7", "n8"]


@pytest.mark.parametrize("text", ["", "{}", "[", '["x", true, -1, 1.5]', "null", "[[1]]"])
async def test_rows_that_nobody_wrote_here_are_left_out(
    store: Store, tmp_path: Path, text: str
) -> None:
    await store.sessions.keep({A: (5,), B: (6,)})
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE node_sessions SET sessions_ms = ? WHERE node_id = 'a'", (text,))
    assert await store.sessions.recall() == [(B, (6,))]


async def test_a_restarted_coordinator_plans_with_what_the_earlier_one_saw(tmp_path: Path) -> None:
    first = Story()
    first.start("a", "b", memory_mib=2_000)
    for incarnation in range(1, 4):
        first.wait(60_000, beating=("a", "b"))
        first.tell(ev.NodeDetached(node_id=A, incarnation=incarnation))
        first.join("a", incarnation=incarnation + 1, memory_mib=2_000)
    (before,) = only(first.wait(600, beating=("a", "b")), fx.SolveAllocation)
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock, ca_der=b"") as store:
        keeper = LifetimeKeeper(store.sessions)
        for effect in only(first.effects, fx.RememberSessions):
            keeper.perform_remember(effect)
        await keeper.flush()
    second = Story()
    async with open_store(tmp_path / "store.db", clock, ca_der=b"") as store:
        recalled = await LifetimeKeeper(store.sessions).recall()
    assert recalled is not None
    second.tell(recalled)
    second.join("a", memory_mib=2_000)
    second.join("b", memory_mib=2_000)
    (after,) = only(second.wait(600, beating=("a", "b")), fx.SolveAllocation)
    known, again = dict(before.problem.mean_session_s), dict(after.problem.mean_session_s)
    assert again[A] == pytest.approx(known[A], rel=0.01)
    assert again[A] < again[B] / 3


async def test_without_anything_remembered_nothing_is_told(store: Store) -> None:
    assert await LifetimeKeeper(store.sessions).recall() is None


SESSIONS = st.lists(
    st.tuples(st.sampled_from((A, B, C)), st.integers(0, 10**10)), max_size=3 * SESSIONS_MAX
)


@given(before=SESSIONS, after=SESSIONS)
def test_recalled_lifetimes_go_on_as_if_nothing_had_stopped(
    before: list[tuple[NodeId, int]], after: list[tuple[NodeId, int]]
) -> None:
    whole, first, second = Lifetimes(), Lifetimes(), Lifetimes()
    kept: dict[NodeId, tuple[int, ...]] = {}
    for node_id, ms in before:
        whole.record(node_id, ms)
        kept.pop(node_id, None)
        kept[node_id] = first.record(node_id, ms)
    for node_id, sessions_ms in kept.items():
        second.restore(node_id, sessions_ms)
    for node_id, ms in after:
        assert second.record(node_id, ms) == whole.record(node_id, ms)
    assert len(second) == len(whole)
    for node_id in (A, B, C):
        assert second.mean_session_s(node_id, 7) == whole.mean_session_s(node_id, 7)


def test_lifetimes_are_bounded_whatever_is_recalled() -> None:
    lifetimes = Lifetimes()
    lifetimes.record(A, 60_000)
    lifetimes.restore(A, [120_000] * 100)
    assert lifetimes.record(A, 1)[-2:] == (60_000, 1)
    lifetimes.restore(B, [])
    lifetimes.restore(C, [-5])
    assert len(lifetimes) == 1
    for number in range(NODES_MAX + 5):
        lifetimes.restore(NodeId(f"n{number}"), [1])
    assert len(lifetimes) == NODES_MAX
