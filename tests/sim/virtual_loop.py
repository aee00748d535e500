"""An event loop of virtual time, as far as queues, events and timers of the gateway need one."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TypeVar, TypeVarTuple

from tests.sim.clockwork import Clockwork

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


class VirtualLoop(asyncio.AbstractEventLoop):
    """What is scheduled here runs on the clockwork. `enter` makes it the running loop."""

    def __init__(self, clock: Clockwork) -> None:
        self._clock = clock

    def enter(self) -> asyncio.AbstractEventLoop | None:
        """Returns the loop that ran before; hand it to `leave`."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        return before

    def leave(self, before: asyncio.AbstractEventLoop | None) -> None:
        """Undo `enter`."""
        asyncio._set_running_loop(before)

    def time(self) -> float:
        return self._clock.now_ms / 1e3

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[object]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[object, object, Result]
    ) -> "asyncio.Task[Result]":
        return asyncio.Task(coro, loop=self)

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """Tasks of a process that was killed are never awaited; what else fails here, fails."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            raise error

    def call_soon(
        self,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_later(0, callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        when = self.time() + delay
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.after(delay * 1e3, lambda: self._fire(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by a handle that is cancelled; it stays on the clockwork and does nothing."""

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            handle._run()
