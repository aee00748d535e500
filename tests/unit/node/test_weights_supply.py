"""A node whose coordinator does not say where weights are."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from node.agent.weight_counts import WeightCounts
from node.agent.weights_desk import Question, Whereabouts
from node.agent.weights_means import SupplyLimits, SupplyMeans
from node.agent.weights_supply import WeightsSupply
from plait.clock import SystemClock
from plait.errors import PlaitError, ServiceError, UnavailableError, WeightsError
from plait.models.gate import Gate
from plait.models.pieces import PieceFolder
from plait.models.shelf import Shelf
from plait.models.supply import Description, NothingNear
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange


class MuteDesk:
    """A coordinator that says one thing to every call."""

    def __init__(self, error: PlaitError) -> None:
        self.error = error
        self.num_asked = 0

    async def describe(self, digest: str) -> Description:
        raise self.error

    async def locate(self, question: Question) -> Whereabouts:
        self.num_asked += 1
        raise self.error

    async def held(
        self,
        content_id: str,
        ranges: Sequence[tuple[FileRange, ChunkHashes]],
        *,
        serves: bool,
        is_anew: bool = False,
        is_whole: bool = False,
    ) -> None:
        raise self.error

    async def released(self, content_id: str, ranges: Sequence[FileRange]) -> None:
        raise self.error

    async def rejected(self, content_id: str, one: FileRange, holder: NodeId) -> None:
        raise self.error


class NoNeighbours:
    async def fetch(
        self,
        holder: NodeId,
        addresses: Sequence[str],
        content_id: str,
        wanted: FileRange,
        chunk: int,
    ) -> bytes:
        raise AssertionError("nobody is known")


class Origin:
    """The hub; `error` is what it says instead."""

    def __init__(self, pieces: PieceFolder, error: PlaitError | None = None) -> None:
        self.pieces = pieces
        self.error = error
        self.num_asked = 0

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        for start, end in ranges:
            self.pieces.write(start, end, iter([bytes(end - start)]))
            yield end - start


def supply_of(desk: MuteDesk, tmp_path: Path, *, others_ms: int = 60_000) -> WeightsSupply:
    return WeightsSupply(
        SupplyMeans(
            desk=desk,
            neighbours=NoNeighbours(),
            shelf=Shelf(tmp_path),
            counts=WeightCounts(),
            gate=Gate(),
            clock=SystemClock(),
            limits=SupplyLimits(others_ms=others_ms),
        )
    )


async def bring(supply: WeightsSupply, origin: Origin) -> list[int]:
    came: list[int] = []
    await asyncio.to_thread(
        supply.bring,
        "f",
        origin.pieces,
        [(0, 10), (10, 30)],
        fetch=origin.fetch,
        advanced=came.append,
    )
    return came


async def test_of_a_coordinator_without_that_service_the_hub_is_asked_at_once(
    tmp_path: Path,
) -> None:
    desk, origin = MuteDesk(ServiceError("no such method")), Origin(PieceFolder(tmp_path / "r"))
    assert await bring(supply_of(desk, tmp_path), origin) == [10, 20]
    assert (desk.num_asked, origin.num_asked) == (1, 1)


async def test_a_coordinator_that_is_away_is_waited_for_a_while(tmp_path: Path) -> None:
    desk, origin = MuteDesk(UnavailableError("away")), Origin(PieceFolder(tmp_path / "r"))
    assert sum(await bring(supply_of(desk, tmp_path, others_ms=500), origin)) == 30
    assert desk.num_asked > 1 and origin.num_asked == 1


async def test_a_hub_that_fails_is_what_the_load_fails_with(tmp_path: Path) -> None:
    desk = MuteDesk(ServiceError("no such method"))
    refused = WeightsError("gated", reason="model_forbidden")
    origin = Origin(PieceFolder(tmp_path / "r"), refused)
    with pytest.raises(WeightsError) as caught:
        await bring(supply_of(desk, tmp_path), origin)
    assert caught.value is refused


async def test_a_node_that_leaves_waits_for_nothing(tmp_path: Path) -> None:
    desk, origin = MuteDesk(UnavailableError("away")), Origin(PieceFolder(tmp_path / "r"))
    supply = supply_of(desk, tmp_path)
    supply.close()
    with pytest.raises(UnavailableError, match="leaving"):
        await bring(supply, origin)


def test_nothing_near_is_said_at_once(tmp_path: Path) -> None:
    origin = Origin(PieceFolder(tmp_path / "r"))
    with pytest.raises(WeightsError) as caught:
        NothingNear().bring(
            "f", origin.pieces, [(0, 10)], fetch=origin.fetch, advanced=lambda _: None
        )
    assert caught.value.code == "weights_not_here" and origin.num_asked == 0
