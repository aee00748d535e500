"""What fetching weights from neighbours is done with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from node.agent.weight_counts import WeightCounts
from node.agent.weights_desk import Question, Whereabouts
from node.core.weight_errand import ErrandLimits
from plait.clock import Clock
from plait.models.gate import Gate
from plait.models.shelf import Shelf
from plait.models.supply import Description
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange


class Desk(Protocol):
    """The coordinator's. Each raises PlaitError."""

    async def describe(self, digest: str) -> Description: ...

    async def locate(self, question: Question) -> Whereabouts: ...

    async def held(
        self,
        content_id: str,
        ranges: Sequence[tuple[FileRange, ChunkHashes]],
        *,
        serves: bool,
        is_anew: bool = False,
        is_whole: bool = False,
    ) -> None: ...

    async def released(self, content_id: str, ranges: Sequence[FileRange]) -> None: ...

    async def rejected(self, content_id: str, one: FileRange, holder: NodeId) -> None: ...


class Neighbours(Protocol):
    """Gives chunks; see `node.transport.weights_client`."""

    async def fetch(
        self,
        holder: NodeId,
        addresses: Sequence[str],
        content_id: str,
        wanted: FileRange,
        chunk: int,
    ) -> bytes:
        """Raises OverloadedError (come again), FrameError (wrong on its face), PlaitError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLimits:
    """How long is waited. `others_ms`: for another node's fetch, then this one asks the hub
    itself; `offline_ms`: for bytes that no node here holds."""

    others_ms: int = 60_000
    offline_ms: int = 120_000
    errand: ErrandLimits = field(default_factory=ErrandLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyMeans:
    """Shared by all errands of a node. `is_offline`: the hub is never asked; `serves`: what comes
    is given to others."""

    desk: Desk
    neighbours: Neighbours
    shelf: Shelf
    counts: WeightCounts
    gate: Gate
    clock: Clock
    is_offline: bool = False
    serves: bool = True
    limits: SupplyLimits = SupplyLimits()
