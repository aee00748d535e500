"""What becomes of sessions that ended: the last word of each node, once, and none of a stop."""

from collections.abc import Mapping, Sequence

from coordinator.core import effects as fx
from coordinator.shell.lifetimes import LifetimeKeeper
from plait.errors import UnavailableError
from plait.types import NodeId

A, B = NodeId("a"), NodeId("b")


class FakeRegister:
    """Keeps what it is given; fails while it is told to."""

    def __init__(self) -> None:
        self.kept: list[dict[NodeId, tuple[int, ...]]] = []
        self.is_failing = False

    async def keep(self, sessions_ms: Mapping[NodeId, Sequence[int]]) -> None:
        if self.is_failing:
            raise UnavailableError("the disk is full", reason="store_unavailable")
        if sessions_ms:
            self.kept.append({node_id: tuple(ms) for node_id, ms in sessions_ms.items()})

    async def recall(self) -> Sequence[tuple[NodeId, tuple[int, ...]]]:
        if self.is_failing:
            raise UnavailableError("the disk is full", reason="store_unavailable")
        return [(A, (1, 2))]


def remember(node_id: NodeId, *sessions_ms: int) -> fx.RememberSessions:
    return fx.RememberSessions(node_id=node_id, sessions_ms=sessions_ms)


async def test_the_last_word_of_each_node_is_written_once() -> None:
    register = FakeRegister()
    keeper = LifetimeKeeper(register)
    for effect in (remember(A, 1), remember(B, 5), remember(A, 1, 2)):
        keeper.perform_remember(effect)
    await keeper.flush()
    await keeper.flush()
    assert register.kept == [{B: (5,), A: (1, 2)}]


async def test_sessions_that_a_stop_cuts_are_not_nodes_leaving() -> None:
    register = FakeRegister()
    keeper = LifetimeKeeper(register)
    keeper.perform_remember(remember(A, 1))
    keeper.stop()
    keeper.perform_remember(remember(A, 1, 2))
    keeper.perform_remember(remember(B, 3))
    await keeper.flush()
    assert register.kept == [{A: (1,)}]


async def test_a_store_that_fails_costs_memory_and_no_service() -> None:
    register = FakeRegister()
    keeper = LifetimeKeeper(register)
    register.is_failing = True
    assert await keeper.recall() is None
    keeper.perform_remember(remember(A, 1))
    await keeper.flush()
    register.is_failing = False
    keeper.perform_remember(remember(A, 1, 2))
    await keeper.flush()
    assert register.kept == [{A: (1, 2)}]
