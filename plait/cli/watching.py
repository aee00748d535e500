"""A live view of the network: asked again and again, with what was last seen kept on the screen
while the coordinator is away."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from plait.cli.fields import Fields
from plait.errors import ServiceError

EVERY_S: Final = 1.0
FAILURES_MAX: Final = 30
HINT: Final = "q or Ctrl-C ends"
"""Of a view whose pause is `until_key("q")`."""

Drawing = Callable[[Fields], RenderableType]
Pause = Callable[[], Awaitable[bool]]
"""Waits until the next look; False ends the view."""


async def watch(
    fetch: Callable[[], Awaitable[str]],
    draw: Drawing,
    pause: Pause,
    *,
    console: Console,
    screen: bool = False,
) -> None:
    """Look until `pause` says that it is enough. Raises ServiceError where the coordinator stays
    away, or will never answer."""
    failures = 0
    with Live(
        Text("asking the coordinator"),
        console=console,
        auto_refresh=False,
        vertical_overflow="crop",
        screen=screen,
    ) as live:
        while True:
            try:
                drawn = draw(Fields.parse(await fetch()))
                failures = 0
                live.update(drawn, refresh=True)
            except ServiceError as error:
                failures += 1
                if failures > FAILURES_MAX or not error.is_retryable:
                    raise
                if failures == 1:
                    notice = Text(f"coordinator away: {error.message}", style="red")
                    live.update(Group(notice, live.renderable))
                live.refresh()
            if not await pause():
                return


async def every_second() -> bool:
    """A `Pause` that only Ctrl-C ends."""
    await asyncio.sleep(EVERY_S)
    return True


@contextlib.contextmanager
def until_key(key: str) -> Iterator[Pause]:
    """A `Pause` that `key` ends at once, where a terminal can be listened to; Ctrl-C does always.

    Call inside a running loop.
    """
    pressed = asyncio.Event()

    async def pause() -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY_S):
                await pressed.wait()
        return not pressed.is_set()

    with _listening(key, pressed):
        yield pause


@contextlib.contextmanager
def _listening(key: str, pressed: asyncio.Event) -> Iterator[None]:
    import sys

    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import os
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def read() -> None:
        typed = os.read(stdin, 64).decode("utf-8", "replace")
        if key in typed.lower() or not typed:  # nothing to read: the terminal is gone
            pressed.set()

    loop = asyncio.get_running_loop()
    tty.setcbreak(stdin)
    loop.add_reader(stdin, read)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
