"""Proxies in a thread of their own, for whoever blocks its event loop or has none.

    with ProxyThread() as links:
        proxy = links.open(target_port, up=Conditions(delay_ms=20), down=Conditions(delay_ms=20))
        links.do(lambda: proxy.change(delay_ms=50))

Its loop waits by select(2), to the microsecond; epoll would round up to whole milliseconds.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from tests.kit.proxy import Proxy
from tests.kit.proxy_pacing import Conditions

CALL_S: Final = 5.0

_T = TypeVar("_T")


class ProxyThread:
    """Proxies while its block lasts. All methods may be called from any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._run, name="proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def open(
        self,
        target_port: int,
        *,
        up: Conditions | None = None,
        down: Conditions | None = None,
        seed: int = 0,
    ) -> Proxy:
        """A proxy that stands; read its counters from anywhere, change it by `do` alone."""
        proxy = Proxy(target_port, up=up, down=down, seed=seed)
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), self._loop).result(CALL_S)
        self._proxies.append(proxy)
        return proxy

    def do(self, change: Callable[[], _T]) -> _T:
        """Call it in the proxies' thread; returns what it returns."""

        async def run() -> _T:
            return change()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_S)

    def accept(self, proxy: Proxy) -> None:
        """Let a proxy that refused take connections again."""
        asyncio.run_coroutine_threadsafe(proxy.accept(), self._loop).result(CALL_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for proxy in self._proxies:
            ended = asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), self._loop)
            ended.result(CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()
