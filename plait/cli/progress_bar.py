"""A Rich bar for a pull: phase, bytes, speed, time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_TEXTS: Final = {"waiting": "waiting for another process that pulls"}


@contextmanager
def pull_bar(console: Console, name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar while inside; yields what to call with (phase, done bytes, total bytes)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(escape(name), total=None)
        shown = ""

        def progress(phase: str, done_bytes: int, total_bytes: int) -> None:
            nonlocal shown
            if phase != shown:
                shown = phase
                bars.reset(task, total=total_bytes)
            text = f"{_TEXTS.get(phase, phase)} {escape(name)}"
            bars.update(task, description=text, completed=done_bytes, total=total_bytes)

        yield progress
