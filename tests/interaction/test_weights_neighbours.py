"""Weights from neighbours over real TLS: the hub is asked once, wrong bytes are found and named,
fetches go on where they were, and without a hub nothing but neighbours is asked."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from grpc import aio

from coordinator.core.weight_book import WeightBook, WeightLimits
from node.agent.weights_desk import WeightsDesk
from node.agent.weights_means import SupplyLimits
from plait.errors import WeightsError
from plait.models import resolve
from plait.types import LayerSpan
from plait.types.weights import CHUNK_BYTES, ChunkHashes, FileRange
from tests.kit.weights_rig import weights_rig
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import TinyModel, tiny_model, write_folder

SOURCE = resolve("org/tiny")
NUM_LAYERS = 6
WHOLE = LayerSpan(0, NUM_LAYERS)


@pytest.fixture(scope="module")
def model() -> TinyModel:
    """Small layers, and an embedding of three chunks."""
    return tiny_model(num_layers=NUM_LAYERS, vocab_size=40_000)


@pytest.fixture
def hub(tmp_path: Path, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = tmp_path / "hub"
    write_folder(folder, model)
    with only_hub(folder, tmp_path / "unused", monkeypatch) as server:
        yield server


def model_bytes(hub: HubServer) -> int:
    return (hub.folder / "model.safetensors").stat().st_size


@pytest.mark.slow
async def test_five_nodes_ask_the_hub_for_one_model(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    """They begin at once, and each ends with all of it; what the coordinator compares is in it."""
    async with weights_rig(tmp_path, SOURCE, limits=WeightLimits(claim_bytes=2**18)) as rig:
        nodes = [await rig.add() for _ in range(5)]
        await asyncio.gather(*(node.load(rig.source, model, WHOLE) for node in nodes))
        assert hub.large_bytes <= 1.05 * model_bytes(hub)
        assert sum(node.counts.hub_bytes > 0 for node in nodes) > 1, "the work was shared"
        given = sum(node.counts.served_bytes for node in nodes)
        assert 3.9 * model_bytes(hub) < given < 4.1 * model_bytes(hub)
        for node in nodes:
            totals = node.counts.totals()
            assert totals.hub_bytes + totals.neighbour_bytes >= model_bytes(hub) - 16
            assert not totals.rejected_chunks
        assert "from neighbours" in nodes[0].counts.line() or nodes[0].counts.hub_bytes


@pytest.mark.slow
async def test_a_neighbour_with_wrong_bytes_is_named_and_avoided(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        first, second, third, fourth = [await rig.add() for _ in range(4)]
        await first.load(rig.source, model, WHOLE)
        await second.load(rig.source, model, WHOLE)
        await rig.service.compared()
        fetched = hub.large_bytes
        second.disk.is_spoilt = True
        await third.load(rig.source, model, WHOLE)
        assert list(third.counts.rejected) == [second.node_id]
        assert third.counts.from_source.get(first.node_id, 0) > 0
        assert third.counts.totals().rejected_chunks <= 2, "and asked no more"
        served = second.counts.served_bytes
        await fourth.load(rig.source, model, WHOLE)
        assert second.counts.served_bytes == served, "others are sent elsewhere"
        assert hub.large_bytes == fetched
        assert second.node_id in third.counts.line()


async def test_the_hub_settles_where_the_only_neighbour_is_spoilt(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        spoilt, other = await rig.add(), await rig.add()
        await spoilt.load(rig.source, model, LayerSpan(0, 1))
        spoilt.disk.is_spoilt = True
        await other.load(rig.source, model, LayerSpan(0, 1))
        assert list(other.counts.rejected) == [spoilt.node_id]
        assert other.counts.hub_bytes > 0


@pytest.mark.slow
async def test_a_fetch_goes_on_after_its_neighbour_died(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    """The embedding comes in chunks: the hub gives what is left of it, from the first byte that is
    not here."""
    async with weights_rig(tmp_path, SOURCE) as rig:
        first, second = await rig.add(), await rig.add()
        await first.load(rig.source, model, WHOLE)
        await rig.service.compared()
        before, loop = hub.large_bytes, asyncio.get_running_loop()
        stops: list[object] = []

        def die_after_a_chunk() -> None:
            if first.counts.served_bytes > CHUNK_BYTES and not stops:
                stops.append(asyncio.run_coroutine_threadsafe(first.server.stop(0), loop))

        first.disk.asked = die_after_a_chunk
        await second.load(rig.source, model, WHOLE)
        again = hub.large_bytes - before
        assert second.counts.from_source[first.node_id] > CHUNK_BYTES
        assert 0 < again <= model_bytes(hub) - CHUNK_BYTES, "what had come did not come again"


@pytest.mark.slow
async def test_without_a_hub_neighbours_are_enough(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        first = await rig.add()
        await first.load(rig.source, model, WHOLE)
        await rig.service.compared()
        hub.requests.clear()
        lonely = [await rig.add(is_offline=True) for _ in range(2)]
        await asyncio.gather(*(node.load(rig.source, model, WHOLE) for node in lonely))
        assert hub.requests == []


@pytest.mark.slow
async def test_what_no_node_holds_is_waited_for_and_said(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    limits = SupplyLimits(offline_ms=1_500)
    async with weights_rig(tmp_path, SOURCE) as rig:
        first, lonely = await rig.add(), await rig.add(is_offline=True, limits=limits)
        await first.load(rig.source, model, LayerSpan(2, 4))
        await rig.service.compared()
        hub.requests.clear()
        loading = asyncio.create_task(lonely.load(rig.source, model, LayerSpan(2, 6)))
        said: set[str] = set()
        while not loading.done():
            said.add(lonely.supply.says(LayerSpan(2, 6)))
            await asyncio.sleep(0.05)
        with pytest.raises(WeightsError) as caught:
            loading.result()
        assert caught.value.code == "weights_not_here" and "MB" in caught.value.message
        assert any("of layers 2-5 that no node here holds" in line for line in said), said
        assert hub.requests == []
        await first.load(rig.source, model, LayerSpan(4, 6))
        await lonely.load(rig.source, model, LayerSpan(2, 6))


class _FarDesk(WeightsDesk):
    """Its words take a while, as over a long way."""

    num_heard = 0

    async def held(
        self,
        content_id: str,
        ranges: Iterable[tuple[FileRange, ChunkHashes]],
        *,
        serves: bool,
        is_anew: bool = False,
        is_whole: bool = False,
    ) -> None:
        said = list(ranges)
        await asyncio.sleep(0.1)
        await super().held(content_id, said, serves=serves, is_anew=is_anew, is_whole=is_whole)
        self.num_heard += len(said)


async def test_who_has_loaded_has_said_so(hub: HubServer, model: TinyModel, tmp_path: Path) -> None:
    """However far it is: who asks next is sent to it, and nothing is left to compare later."""
    desks: list[_FarDesk] = []

    def far(open_channel: Callable[[], aio.Channel]) -> WeightsDesk:
        desks.append(_FarDesk(open_channel))
        return desks[-1]

    async with weights_rig(tmp_path, SOURCE) as rig:
        node = await rig.add(make_desk=far)
        await node.load(rig.source, model, LayerSpan(2, 3))
        num_ranges = sum(len(node.disk.ranges(one)) for one in rig.content_ids)
        assert desks[0].num_heard == num_ranges > 0


@pytest.mark.slow
async def test_who_serves_nothing_is_no_holder(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        selfish, other = await rig.add(serves=False), await rig.add()
        await selfish.load(rig.source, model, LayerSpan(2, 4))
        await rig.service.compared()
        before = hub.large_bytes
        await other.load(rig.source, model, LayerSpan(2, 4))
        assert hub.large_bytes > before
        assert selfish.counts.served_bytes == 0 and not selfish.counts.refused


@pytest.mark.slow
async def test_what_nodes_say_anew_counts_after_the_coordinator_forgot(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    """What two have is had from them; what one has, one more fetches, unless it cannot."""
    async with weights_rig(tmp_path, SOURCE) as rig:
        first, second, third = await rig.add(), await rig.add(), await rig.add()
        await first.load(rig.source, model, LayerSpan(1, 4))
        await second.load(rig.source, model, LayerSpan(2, 4))
        await rig.service.compared()
        rig.service.book = WeightBook()
        for content_id, size_bytes in rig.copies.files.items():
            rig.service.book.serve(content_id, size_bytes)
        for node in (first, second):
            await node.supply.announce([rig.source.digest or ""])
        before = hub.large_bytes
        await third.load(rig.source, model, LayerSpan(2, 4))
        assert hub.large_bytes == before and third.counts.hub_bytes == 0
        lonely = await rig.add(is_offline=True)
        await lonely.load(rig.source, model, LayerSpan(1, 4))
        await third.load(rig.source, model, LayerSpan(1, 4))
        assert third.counts.hub_bytes > 0
