"""Carries what the core remembers of nodes' sessions into the store, and back at the next start."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.lifetimes import NODES_MAX
from plait.errors import PlaitError
from plait.log import get
from plait.types import NodeId

PERIOD_S: Final = 1.0
log = get("lifetimes")


class SessionRegister(Protocol):
    """Where sessions are kept."""

    async def keep(self, sessions_ms: Mapping[NodeId, Sequence[int]]) -> None: ...

    async def recall(self) -> Sequence[tuple[NodeId, tuple[int, ...]]]: ...


class LifetimeKeeper:
    """Performs `RememberSessions`: at most one transaction a second, the last word of each node.

    A store that fails costs memory, never service: what waited is logged as lost, and a node's next
    session says all of it again.
    """

    def __init__(self, register: SessionRegister) -> None:
        self._register = register
        self._waiting: dict[NodeId, tuple[int, ...]] = {}
        self._is_stopped = False

    async def recall(self) -> ev.SessionsRecalled | None:
        """What the core is to be told before anything else; None where nothing is known."""
        try:
            known = await self._register.recall()
        except PlaitError as error:
            log.warning("lifetimes_unread", error=str(error))
            return None
        if not known:
            return None
        log.info("lifetimes_recalled", nodes=len(known))
        return ev.SessionsRecalled(
            nodes=tuple(
                ev.NodeSessions(node_id=node_id, sessions_ms=sessions_ms)
                for node_id, sessions_ms in known
            )
        )

    def perform_remember(self, effect: fx.RememberSessions) -> None:
        """Write it soon. Neither awaits nor raises."""
        if self._is_stopped:
            return
        self._waiting.pop(effect.node_id, None)
        self._waiting[effect.node_id] = effect.sessions_ms
        while len(self._waiting) > NODES_MAX:
            del self._waiting[next(iter(self._waiting))]

    def stop(self) -> None:
        """The coordinator stops: sessions that end from now on are cut by it, not by nodes."""
        self._is_stopped = True

    async def run(self) -> None:
        """Serve until cancelled; what ended by then is still written."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, {}
        try:
            await self._register.keep(waiting)
        except Exception as error:  # root: the store's drivers raise what they like
            log.warning("lifetimes_lost", nodes=len(waiting), error=str(error))
