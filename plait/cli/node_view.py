"""What a node's owner sees: one line per step, and a live line where there is a terminal."""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from node.ports import NodePhase, Progress

_WORDS: Final = {
    NodePhase.CONNECTING: "connecting to",
    NodePhase.MEASURING: "measuring",
    NodePhase.STANDBY: "standing by:",
    NodePhase.WAITING: "waiting:",
    NodePhase.ASSIGNED: "assigned",
    NodePhase.LOADING: "loading:",
    NodePhase.SERVING: "serving",
    NodePhase.DRAINING: "leaving:",
    NodePhase.OFFLINE: "offline:",
    NodePhase.PAUSED: "paused:",
    NodePhase.LEFT: "left:",
}
_LIVE: Final = frozenset(
    {
        NodePhase.CONNECTING,
        NodePhase.MEASURING,
        NodePhase.STANDBY,
        NodePhase.WAITING,
        NodePhase.LOADING,
    }
)
_AWAY: Final = frozenset({NodePhase.CONNECTING, NodePhase.OFFLINE})
PLAIN_STEP: Final = 0.25


class NodeScreen:
    """Prints progress. Repeated lines are shown once; a coordinator that stays away, too."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._last = ""
        self._said_share = 0.0
        self._away: set[str] = set()

    def show(self, progress: Progress) -> None:
        """Show one step."""
        line = f"{_WORDS[progress.phase]} {progress.detail}"
        if progress.done is not None:
            self._show_share(line, progress.done)
            return
        if line == self._last:
            return
        self._last, self._said_share = line, 0.0
        if progress.phase not in _AWAY:
            self._away.clear()
        elif line in self._away:
            return
        else:
            self._away.add(line)
        if progress.phase in _LIVE and self._console.is_terminal:
            self._live(line)
            return
        self._stop_live()
        style = "bold green" if progress.phase is NodePhase.SERVING else "default"
        if progress.phase in (NodePhase.OFFLINE, NodePhase.PAUSED):
            style = "yellow"
        self._console.print(f"[{style}]{escape(line)}[/]", soft_wrap=True)

    def _show_share(self, line: str, share: float) -> None:
        text = f"{line} {share:.0%}"
        if self._console.is_terminal:
            self._live(text)
        elif share - self._said_share >= PLAIN_STEP or (share >= 1.0 > self._said_share):
            self._said_share = share
            self._console.print(escape(text))

    def _live(self, line: str) -> None:
        if self._status is None:
            self._status = self._console.status(escape(line))
            self._status.start()
        else:
            self._status.update(escape(line))

    def close(self) -> None:
        """Take the live line away. Idempotent."""
        self._stop_live()

    def _stop_live(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_live()
