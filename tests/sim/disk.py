"""What outlives a coordinator: what was flushed, and a part of what was not.

The journal is never flushed to the disk itself, so a loss of power takes up to the last half minute
of it and tears a line. What is left has to replay to the very effects that it had. Sessions of
nodes are written once a second; the next coordinator hears of those that were.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.core import Core
from coordinator.shell.journal import FORMAT, replay
from coordinator.shell.plain import event_to_plain
from plait.types import NodeId

TAIL_MS: Final = 30_000
"""What a kernel may hold back of a file that nobody flushes."""
ENTRIES_MAX: Final = 30_000
"""Longer journals are not replayed: a replay costs what the run has cost."""
Step = tuple[int, ev.Event, Sequence[fx.Effect]]


class Disk:
    """One for all coordinators of a fleet, one after the other."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"disk {seed}")
        self._steps: list[Step] = []
        self._sessions_ms: dict[NodeId, tuple[int, ...]] = {}
        self._waiting: dict[NodeId, tuple[int, ...]] = {}
        self.num_kept = 0
        self.num_lost = 0

    def note(self, event: ev.Event, effects: Sequence[fx.Effect], now_ms: int) -> None:
        """Written, but not flushed."""
        if len(self._steps) <= ENTRIES_MAX:
            self._steps.append((now_ms, event, effects))
        for effect in effects:
            if isinstance(effect, fx.RememberSessions):
                self._waiting.pop(effect.node_id, None)
                self._waiting[effect.node_id] = effect.sessions_ms

    def flush(self) -> None:
        """Once a second; acknowledged to nobody, but kept from here on."""
        for node_id, sessions_ms in self._waiting.items():
            self._sessions_ms.pop(node_id, None)
            self._sessions_ms[node_id] = sessions_ms
        self._waiting.clear()

    def recall(self) -> ev.SessionsRecalled | None:
        """What a new coordinator is told before anything else."""
        if not self._sessions_ms:
            return None
        return ev.SessionsRecalled(
            nodes=tuple(
                ev.NodeSessions(node_id=node_id, sessions_ms=sessions_ms)
                for node_id, sessions_ms in self._sessions_ms.items()
            )
        )

    def lose_power(self, core: Callable[[], Core], now_ms: int) -> None:
        """The end of a coordinator. `core` makes one as it was at its start; the first journal of a
        fleet is replayed."""
        steps, self._steps = self._steps, []
        self._waiting.clear()
        if self.num_kept or not steps or len(steps) > ENTRIES_MAX:
            return
        safe_ms = now_ms - self._rng.randrange(TAIL_MS)
        kept = [step for step in steps if step[0] <= safe_ms]
        self.num_kept, self.num_lost = len(kept), len(steps) - len(kept)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "0-00000.jsonl"
            path.write_text(self._lines(kept, steps[len(kept) :]), "utf-8")
            _hold_against(kept, path, core())

    def _lines(self, kept: Sequence[Step], lost: Sequence[Step]) -> str:
        lines = [json.dumps({"format": FORMAT, "segment": 0, "note": ""}), *map(_line, kept)]
        torn = _line(lost[0]) if lost else ""
        return "\n".join(lines) + "\n" + torn[: self._rng.randrange(len(torn) or 1)]


def _line(step: Step) -> str:
    return json.dumps([step[0], event_to_plain(step[1])])


def _hold_against(kept: Sequence[Step], path: Path, core: Core) -> None:
    """Every entry that was kept comes back, once, in order, and does what it did."""
    ahead = iter(kept)

    def watch(now_ms: int, event: ev.Event, effects: Sequence[fx.Effect]) -> None:
        then_ms, before, did = next(ahead)
        assert (then_ms, before) == (now_ms, event), "the journal holds another event"
        assert list(did) == list(effects), f"a replay of {event} does something else"

    num_replayed = replay(path, core, watch=watch)
    assert num_replayed == len(kept), f"{num_replayed} of {len(kept)} entries came back"
