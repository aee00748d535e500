"""What strangers try with weights: paths, floods, lies. Refused, counted, and never believed."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from node.agent.weights_desk import Question, WeightsDesk
from node.transport import server as node_server
from node.transport.weights_client import FETCH_METHOD, ChunkClient
from node.transport.weights_service import GIVEN_TO_ONE_MAX
from plait.errors import FrameError, InvalidRequestError, ModelError, PlaitError
from plait.models import resolve
from plait.types import LayerSpan, NodeId
from plait.types.weights import CHUNK_BYTES, FileRange
from plait.wire.v1 import weights_pb2
from tests.kit.wait import until
from tests.kit.weights_rig import RigNode, WeightsRig, weights_rig
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import TinyModel, tiny_model, write_folder

SOURCE = resolve("org/tiny")
SPAN = LayerSpan(1, 2)


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return tiny_model()


@pytest.fixture
def hub(tmp_path: Path, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = tmp_path / "hub"
    write_folder(folder, model)
    with only_hub(folder, tmp_path / "unused", monkeypatch) as server:
        yield server


def desk_of(rig: WeightsRig, node: RigNode) -> WeightsDesk:
    """The node's own papers, in a stranger's hands."""
    desk = WeightsDesk(
        lambda: node_server.channel_to_coordinator(
            rig.coordinator_address,
            current=lambda: node.tls,
            ca_pem=rig.authority.certificate_pem,
        )
    )
    rig.stack.push_async_callback(desk.close)
    return desk


def channel_of(rig: WeightsRig, node: RigNode, to: RigNode) -> aio.Channel:
    channel = node_server.channel_to_node(
        to.address,
        to.node_id,
        current=lambda: node.tls,
        ca_pem=rig.authority.certificate_pem,
    )
    rig.stack.push_async_callback(channel.close)
    return channel


async def outcome(channel: aio.Channel, request: bytes) -> str:
    fetch: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
        FETCH_METHOD, request_serializer=None, response_deserializer=None
    )
    try:
        async with asyncio.timeout(20):
            async for _ in fetch(request):
                pass
    except aio.AioRpcError as error:
        return error.code().name
    return "OK"


def asks_for(content_id: str, start: int, size: int, chunk: int = 0) -> bytes:
    return weights_pb2.FetchRequest(
        content_id=content_id,
        range=weights_pb2.FileRange(start=start, size=size),
        chunk=chunk,
    ).SerializeToString()


async def test_what_is_no_range_of_a_served_model_is_refused_and_counted(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        node, stranger = await rig.add(), await rig.add()
        await node.load(rig.source, model, SPAN)
        channel = channel_of(rig, stranger, node)
        (content_id,) = node.disk.content_ids()
        one = node.disk.ranges(content_id)[0]
        assert await outcome(channel, asks_for(content_id, one.start, one.size)) == "OK"
        secret = tmp_path / "secret"
        secret.write_text("not for you")
        up = "../" * 12
        for path in (str(secret), f"{up}etc/passwd", "plait.json", "", "a" * 500, "\0"):
            assert await outcome(channel, asks_for(path, 0, 11)) == "NOT_FOUND"
        bad = [
            (asks_for(content_id, one.start + 1, one.size), "NOT_FOUND"),
            (asks_for(content_id, one.start, one.size + 1), "NOT_FOUND"),
            (asks_for(content_id, 2**64 - 1, 2**64 - 1), "NOT_FOUND"),
            (asks_for(content_id, one.start, 0), "INVALID_ARGUMENT"),
            (asks_for(content_id, one.start, one.size, chunk=1), "INVALID_ARGUMENT"),
            (asks_for(content_id, one.start, one.size, chunk=2**32 - 1), "INVALID_ARGUMENT"),
            (asks_for("x" * 5_000, 0, 11), "INVALID_ARGUMENT"),
            (b"\xff" * 40, "INVALID_ARGUMENT"),
            (os.urandom(4_000_000), "INVALID_ARGUMENT"),
        ]
        for request, code in bad:
            assert await outcome(channel, request) == code
        assert sum(node.counts.refused.values()) == 6 + len(bad)
        assert set(node.counts.refused) == {"unknown", "range", "oversize", "malformed"}
        assert await outcome(channel, asks_for(content_id, one.start, one.size)) == "OK"


async def test_many_at_once_of_one_neighbour_are_told_to_come_again(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        node, stranger = await rig.add(), await rig.add()
        await node.load(rig.source, model, SPAN)
        (content_id,) = node.disk.content_ids()
        one = node.disk.ranges(content_id)[0]
        loop, may_go = asyncio.get_running_loop(), asyncio.Event()

        def hold() -> None:
            asyncio.run_coroutine_threadsafe(may_go.wait(), loop).result()

        node.disk.asked = hold
        channel = channel_of(rig, stranger, node)
        request = asks_for(content_id, one.start, one.size)
        calls = [asyncio.create_task(outcome(channel, request)) for _ in range(12)]
        await until(
            lambda: node.counts.refused.get("busy", 0) == 12 - GIVEN_TO_ONE_MAX, what="refusals"
        )
        may_go.set()
        ended = await asyncio.gather(*calls)
        assert sorted(ended) == ["OK"] * GIVEN_TO_ONE_MAX + ["RESOURCE_EXHAUSTED"] * (
            12 - GIVEN_TO_ONE_MAX
        )
        assert await outcome(channel, request) == "OK"


async def test_an_owner_who_gives_nothing_gives_nothing(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        node, stranger = await rig.add(serves=False), await rig.add()
        await node.load(rig.source, model, SPAN)
        (content_id,) = node.disk.content_ids()
        one = node.disk.ranges(content_id)[0]
        channel = channel_of(rig, stranger, node)
        request = asks_for(content_id, one.start, one.size)
        assert await outcome(channel, request) == "PERMISSION_DENIED"
        assert node.counts.refused == {"off": 1}


async def test_more_bytes_than_a_chunk_are_not_taken(tmp_path: Path) -> None:
    """A giver that never ends costs a chunk."""
    server, num_sent = aio.server(), 0

    async def endless(_: bytes, context: aio.ServicerContext[bytes, bytes]) -> None:
        nonlocal num_sent
        while True:
            num_sent += 1
            block = weights_pb2.FetchResponse(content=bytes(2**18))
            await context.write(block.SerializeToString())

    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "plait.wire.v1.NodeWeightsService",
                {"Fetch": grpc.unary_stream_rpc_method_handler(endless)},
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ChunkClient(lambda address, _: aio.insecure_channel(address))
    with pytest.raises(FrameError):
        await client.fetch(
            NodeId("n1"),
            (f"127.0.0.1:{port}",),
            "f",
            FileRange(0, CHUNK_BYTES),
            0,
        )
    assert num_sent < 400
    await client.close()
    await server.stop(0)


async def test_questions_and_reports_that_cannot_be_are_refused(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        stranger = await rig.add()
        desk = desk_of(rig, stranger)
        (content_id,) = rig.content_ids
        with pytest.raises(ModelError):
            await desk.describe("0" * 64)
        with pytest.raises(ModelError):
            await desk.locate(Question(content_id="../x", wanted=[FileRange(0, 1)]))
        for wanted in ([FileRange(0, 0)], [FileRange(2**40, 5)], [FileRange(0, 2**63)]):
            with pytest.raises(InvalidRequestError):
                await desk.locate(Question(content_id=content_id, wanted=wanted))
            with pytest.raises(InvalidRequestError):
                await desk.held(content_id, [(wanted[0], (b"x" * 32,))], serves=True)
        with pytest.raises(InvalidRequestError):
            await desk.held(content_id, [(FileRange(0, 10), (b"short",))], serves=True)
        with pytest.raises(PlaitError):
            await desk.held("nothing", [], serves=True)
        await desk.rejected(content_id, FileRange(5, 5), stranger.node_id)


async def test_a_lie_is_settled_by_the_coordinator_and_its_teller_heard_no_more(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    async with weights_rig(tmp_path, SOURCE) as rig:
        honest, liar, other = [await rig.add() for _ in range(3)]
        await honest.load(rig.source, model, SPAN)
        (content_id,) = honest.disk.content_ids()
        ranges = [r for r in honest.disk.ranges(content_id) if r.size > 10_000]
        desk = desk_of(rig, liar)
        await desk.held(content_id, [(r, (b"w" * 32,)) for r in ranges], serves=True)
        await rig.service.compared()
        await until(lambda: not rig.service.book.disputed(), what="what is so")
        assert rig.service.book.accusations.is_distrusted(liar.node_id)
        assert not rig.service.book.accusations.is_distrusted(honest.node_id)
        before = hub.large_bytes
        await other.load(rig.source, model, SPAN)
        assert hub.large_bytes == before and other.counts.totals().rejected_chunks == 0


async def test_who_was_sent_to_the_hub_and_lies_is_found_by_audits(
    hub: HubServer, model: TinyModel, tmp_path: Path
) -> None:
    """Of ranges that nobody else has, only the coordinator can tell."""
    async with weights_rig(tmp_path, SOURCE) as rig:
        liar = await rig.add()
        desk = desk_of(rig, liar)
        (content_id,) = rig.content_ids
        end = (hub.folder / "model.safetensors").stat().st_size
        wanted = [FileRange(at, 500) for at in range(10_000, end - 500, 500)]
        said = await desk.locate(Question(content_id=content_id, wanted=wanted[:250]))
        claimed = [one.range for one in said.found if not one.hashes]
        assert claimed, "the liar is sent to the hub"
        await desk.held(content_id, [(one, (b"w" * 32,)) for one in claimed], serves=True)
        await rig.service.compared()
        assert rig.service.num_audited >= 1
        assert rig.service.book.accusations.is_distrusted(liar.node_id)
