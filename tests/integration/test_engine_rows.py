"""A first stage with weights at a hub: what it reads, reports, and does when the hub is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.engine.host import ThreadedEngineHost
from node.ports import SequenceOpen, StageResult, StageWork
from plait.models import open_source, resolve
from plait.types import DType, HeldSpan, LayerSpan, ModelSource, RequestId
from tests.unit.engine.kit import CPU
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import TinyModel, tiny_model, write_folder

pytestmark = pytest.mark.slow
DEADLINE_S = 20.0
FIRST = LayerSpan(0, 1)
WARM, COLD = [3, 1400, 7], [3, 19_999, 12_000]
REMOTE = resolve("org/tiny")


@pytest.fixture
def model() -> TinyModel:
    return tiny_model(num_layers=2, vocab_size=20_000)


@pytest.fixture
def hub(tmp_path: Path, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    write_folder(tmp_path / "hub", model)
    with only_hub(tmp_path / "hub", tmp_path / "models", monkeypatch) as server:
        yield server


class Node:
    """An engine with the first layer of `source`."""

    def __init__(self) -> None:
        self.engine = ThreadedEngineHost(CPU, open_source, kv_tokens_max=256, num_threads=1)
        self.results: asyncio.Queue[StageResult] = asyncio.Queue()

    def hear(self, results: list[StageResult]) -> None:
        for result in results:
            self.results.put_nowait(result)

    async def load(self, model: TinyModel, source: ModelSource) -> HeldSpan:
        self.engine.start(self.hear)
        return await self.engine.load(
            model.spec,
            source,
            FIRST,
            allocation_epoch=1,
            kv_tokens_min=64,
            progress=lambda *_at: None,
        )

    def submit(self, name: str, ids: list[int]) -> None:
        request_id = RequestId(name)
        self.engine.open(
            SequenceOpen(
                request_id=request_id,
                epoch=1,
                span=FIRST,
                kv_tokens=16,
                wire_dtype=DType.FLOAT32,
            )
        )
        self.engine.submit(StageWork(request_id, 1, 0, len(ids), token_ids=ids))

    async def next(self) -> StageResult:
        return await asyncio.wait_for(self.results.get(), DEADLINE_S)


@asynccontextmanager
async def serving(model: TinyModel, source: ModelSource) -> AsyncIterator[tuple[Node, HeldSpan]]:
    node = Node()
    try:
        held = await node.load(model, source)
        yield node, held
    finally:
        await node.engine.stop()


async def test_what_the_node_reports_is_what_travelled(hub: HubServer, model: TinyModel) -> None:
    async with serving(model, REMOTE) as (_, held):
        assert held.read_bytes == hub.large_bytes
        table_bytes = model.spec.embedding_params * 4
        assert table_bytes / 3 <= held.read_bytes <= 0.45 * table_bytes  # it is nearly all here
        assert (
            held.weight_bytes <= model.spec.weight_bytes(FIRST, DType.FLOAT32) - 0.7 * table_bytes
        )


async def test_rows_from_a_hub_give_what_rows_from_a_file_give(
    hub: HubServer, model: TinyModel
) -> None:
    async with serving(model, resolve(str(hub.folder))) as (node, _):
        expected = []
        for name, ids in (("warm", WARM), ("cold", COLD)):
            node.submit(name, ids)
            expected.append((await node.next()).hidden)
    async with serving(model, REMOTE) as (node, held):
        given = hub.large_bytes
        node.submit("warm", WARM)
        assert (await node.next()).hidden == expected[0]
        assert hub.large_bytes == given
        node.submit("cold", COLD)
        assert (await node.next()).hidden == expected[1]
        assert hub.large_bytes > given == held.read_bytes
        given = hub.large_bytes
        node.submit("again", COLD)
        assert (await node.next()).hidden == expected[1]
        assert hub.large_bytes == given


async def test_a_hub_that_is_away_costs_the_request_that_needs_it(
    hub: HubServer, model: TinyModel
) -> None:
    async with serving(model, REMOTE) as (node, _):
        hub.faults[:] = [403]
        node.submit("cold", COLD)
        lost = await node.next()
        assert lost.error is not None and lost.error.code == "model_forbidden"
        node.submit("warm", WARM)
        assert (await node.next()).error is None
        node.engine.close(RequestId("cold"), 1)
        node.submit("later", COLD)
        assert (await node.next()).error is None


async def test_a_file_cut_under_a_serving_node_is_a_clear_error_and_no_garbage(
    tmp_path: Path, model: TinyModel
) -> None:
    source = write_folder(tmp_path / "local", model)
    async with serving(model, source) as (node, _):
        node.submit("before", WARM)
        expected = await node.next()
        path = tmp_path / "local" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:100_000])
        node.submit("hit", COLD)
        lost = await node.next()
        assert lost.error is not None and lost.hidden is None
        assert lost.error.code in ("weights_truncated", "weights_changed")
        assert "model.safetensors" in lost.error.message
        node.submit("kept", WARM)  # rows that are in memory are still the right ones
        assert (await node.next()).hidden == expected.hidden
