"""What happened of late, for the operator: noted on the way into the core and out of it."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from coordinator.core.effects import NodeEffect, RequestEffect
from coordinator.core.events import Event
from coordinator.ports import ChronicleEntry, NodeActor, RequestActor
from coordinator.shell.chronicle_words import TEXT_CHARS_MAX, Said, of_effect, of_event
from coordinator.shell.loop import EventLog
from plait.clock import Clock

ENTRIES_MAX: Final = 5_000


class Chronicle:
    """A `coordinator.ports.ChronicleReader` of the last `entries_max` entries of this process."""

    def __init__(self, clock: Clock, *, entries_max: int = ENTRIES_MAX) -> None:
        self._clock = clock
        self._entries: deque[ChronicleEntry] = deque(maxlen=entries_max)
        self._num_noted = 0

    def note(self, said: Said | None) -> None:
        """Keep an entry; the oldest goes where there are too many."""
        if said is None:
            return
        self._num_noted += 1
        self._entries.append(
            ChronicleEntry(
                number=self._num_noted,
                at_unix_ms=self._clock.unix_ms(),
                kind=said.kind,
                tone=said.tone,
                text=said.text[:TEXT_CHARS_MAX],
                node_id=said.node_id,
                other_id=said.other_id,
                request_id=said.request_id,
            )
        )

    def page(
        self, *, offset: int, limit: int, node_id: str = "", kind: str = ""
    ) -> tuple[Sequence[ChronicleEntry], int]:
        """Entries, the newest first, and how many there are in all."""
        found = [
            entry
            for entry in reversed(self._entries)
            if (not kind or entry.kind == kind)
            and (not node_id or node_id in (entry.node_id, entry.other_id))
        ]
        return found[offset : offset + limit], len(found)


class NotedEvents:
    """An `EventLog` in front of another: what the core is told."""

    def __init__(self, chronicle: Chronicle, log: EventLog) -> None:
        self._chronicle = chronicle
        self._log = log

    def append(self, now_ms: int, event: Event) -> None:
        """As the log does; noted where it is news."""
        self._log.append(now_ms, event)
        self._chronicle.note(of_event(event))


class NotedNodes:
    """A `NodeActor` in front of another: what nodes are ordered to do."""

    def __init__(self, chronicle: Chronicle, actor: NodeActor) -> None:
        self._chronicle = chronicle
        self._actor = actor

    def perform_node(self, effect: NodeEffect) -> None:
        """As the actor does; noted where it is news."""
        self._actor.perform_node(effect)
        self._chronicle.note(of_effect(effect))


class NotedRequests:
    """A `RequestActor` in front of another: which requests fail."""

    def __init__(self, chronicle: Chronicle, actor: RequestActor) -> None:
        self._chronicle = chronicle
        self._actor = actor

    def perform_request(self, effect: RequestEffect) -> None:
        """As the actor does; noted where it is news."""
        self._actor.perform_request(effect)
        self._chronicle.note(of_effect(effect))
