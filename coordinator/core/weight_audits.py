"""Which fetched bytes the coordinator compares with the hub itself: a small share, drawn so that
nobody can tell which."""

from dataclasses import dataclass
from random import Random
from typing import Final

from plait.types import NodeId
from plait.types.weights import FileRange

SHARE: Final = 1 / 50
"""Of what nodes fetched from the hub, in bytes; never more."""


@dataclass(frozen=True, slots=True)
class Audit:
    """One chunk of a range, and who said what it hashes to."""

    node_id: NodeId
    content_id: str
    range: FileRange
    chunk: int
    said: bytes


class AuditDraw:
    """Every byte that a node fetched pays a share of a byte; when a drawn chunk is paid for, it is
    due, and the draw begins anew."""

    def __init__(self, rng: Random, *, share: float = SHARE) -> None:
        self._rng = rng
        self._share = share
        self._credit = 0.0
        self._num_heard = 0
        self._drawn: Audit | None = None

    def fetched(
        self, node_id: NodeId, content_id: str, held: FileRange, hashes: tuple[bytes, ...]
    ) -> Audit | None:
        """A node's word of what it has from the hub. Returns the chunk that is due, if one is."""
        self._credit += held.size * self._share
        for index, said in enumerate(hashes):
            self._num_heard += 1
            if self._rng.randrange(self._num_heard) == 0:  # each as likely as any other
                self._drawn = Audit(node_id, content_id, held, index, said)
        drawn = self._drawn
        if drawn is None or drawn.range.chunk(drawn.chunk).size > self._credit:
            return None
        self._credit -= drawn.range.chunk(drawn.chunk).size
        self._drawn, self._num_heard = None, 0
        return drawn
