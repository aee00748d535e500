"""The one writer: events in, effects out, deadlines kept. Everything else only posts events."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, assert_never

from coordinator.core import effects as fx
from coordinator.core.events import Event, Ticked
from coordinator.core.view import NetworkView
from coordinator.ports import NodeActor, RequestActor
from coordinator.shell.inbox import EventInbox
from plait.clock import Clock


class CorePort(Protocol):
    """What the loop asks of the deterministic core."""

    def handle(self, event: Event, now_ms: int) -> Sequence[fx.Effect]: ...

    def next_deadline_ms(self) -> int | None: ...

    def view(self, now_ms: int) -> NetworkView: ...


class AllocationActor(Protocol):
    """Performs SolveAllocation. Must neither await nor raise."""

    def perform_solve(self, effect: fx.SolveAllocation) -> None: ...


class LifetimeActor(Protocol):
    """Performs RememberSessions. Must neither await nor raise."""

    def perform_remember(self, effect: fx.RememberSessions) -> None: ...


class EventLog(Protocol):
    """Keeps what the core was told. Must neither block nor raise."""

    def append(self, now_ms: int, event: Event) -> None: ...


class Loop:
    """Runs a core under asyncio. An exception out of the core is our bug and ends the loop."""

    def __init__(
        self,
        core: CorePort,
        inbox: EventInbox,
        clock: Clock,
        *,
        nodes: NodeActor,
        requests: RequestActor,
        solver: AllocationActor,
        lifetimes: LifetimeActor | None = None,
        journal: EventLog | None = None,
        batch_max: int = 256,
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._clock = clock
        self._nodes = nodes
        self._requests = requests
        self._solver = solver
        self._lifetimes = lifetimes
        self._journal = journal
        self._batch_max = batch_max

    async def run(self) -> None:
        """Serve until cancelled. Other tasks get their turn between batches."""
        while True:
            events = await self._inbox.take(num_max=self._batch_max, wait_ms=self._wait_ms())
            for event in events or (Ticked(),):
                self._step(event)
            await asyncio.sleep(0)

    def _wait_ms(self) -> int | None:
        due_ms = self._core.next_deadline_ms()
        return None if due_ms is None else max(0, due_ms - self._clock.monotonic_ms())

    def _step(self, event: Event) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._journal is not None:
            self._journal.append(now_ms, event)
        for effect in self._core.handle(event, now_ms):
            self._perform(effect)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.SolveAllocation():
                self._solver.perform_solve(effect)
            case (
                fx.AssignSpan()
                | fx.UnassignSpan()
                | fx.DrainNode()
                | fx.EvictNode()
                | fx.ProbeNeighbours()
            ):
                self._nodes.perform_node(effect)
            case fx.OpenRoute() | fx.CloseRoute() | fx.NotifyQueued() | fx.EndRequest():
                self._requests.perform_request(effect)
            case fx.RememberSessions():
                if self._lifetimes is not None:
                    self._lifetimes.perform_remember(effect)
            case _:
                assert_never(effect)
