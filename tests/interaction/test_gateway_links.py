"""Nodes' streams to the gateway over real mutual TLS."""

import asyncio

import grpc
import pytest
from grpc import aio

from coordinator.core import events as ev
from plait.types import NodeId
from plait.wire.channel import secure_channel
from plait.wire.v1 import data_pb2, data_pb2_grpc
from tests.kit.gateway_rig import open_doors
from tests.kit.scripted_network import FIRST, LAST, ScriptedNetwork, says

ATTACH = data_pb2.NodeToGateway(attach=data_pb2.LinkAttach(incarnation=1))


Link = aio.StreamStreamCall[data_pb2.NodeToGateway, data_pb2.GatewayToNode]


def exchange(channel: aio.Channel) -> Link:
    return data_pb2_grpc.GatewayLinkServiceStub(channel).Exchange()


async def read(link: Link) -> data_pb2.GatewayToNode:
    message = await link.read()
    assert isinstance(message, data_pb2.GatewayToNode)
    return message


async def test_two_nodes_serve_a_request_over_their_links() -> None:
    network = ScriptedNetwork(says("hi"))
    async with open_doors(network, with_nodes=False) as rig:
        relay = rig.gateway.relay
        async with rig.node_channel(FIRST) as one, rig.node_channel(LAST) as two:
            first, last = exchange(one), exchange(two)
            await first.write(ATTACH)
            await last.write(ATTACH)
            await network.wait_for(lambda: relay.is_attached(FIRST) and relay.is_attached(LAST))
            async with rig.async_client() as client:
                answer = asyncio.create_task(client.generate("yo", max_tokens=2))
                start = (await read(first)).start
                ticket = data_pb2.TicketPayload.FromString(start.open.ticket.payload)
                opened = data_pb2.Opened(request_id=ticket.request_id, epoch=1)
                together = data_pb2.NodeToGateway(opened=opened)
                for position, token_id in ((2, 104), (3, 105)):
                    token = data_pb2.SampledToken(
                        request_id=ticket.request_id, epoch=1, position=position, token_id=token_id
                    )
                    together.more.add(token=token)
                await last.write(together)
                assert (await answer).text == "hi"
            for call in (first, last):
                assert (await read(call)).WhichOneof("body") == "close"
            first.cancel()
            await network.wait_for(lambda: not relay.is_attached(FIRST))
    changes = [
        (event.node_id, event.is_up)
        for event in network.events
        if isinstance(event, ev.GatewayLinkChanged)
    ]
    assert (FIRST, True) in changes
    assert (FIRST, False) in changes


async def test_the_certificate_says_who_a_node_is() -> None:
    network, impostor = ScriptedNetwork(), NodeId("nimpostor")
    async with (
        open_doors(network, with_nodes=False) as rig,
        rig.node_channel(impostor) as channel,
    ):
        call = exchange(channel)
        await call.write(ATTACH)
        await network.wait_for(lambda: rig.gateway.relay.is_attached(impostor))
        token = data_pb2.SampledToken(request_id="x", epoch=1, position=1, token_id=1)
        await call.write(data_pb2.NodeToGateway(token=token))
        await network.wait_for(lambda: rig.gateway.relay.dropped["late"] == 1)


async def test_without_a_certificate_nobody_gets_in() -> None:
    async with (
        open_doors(ScriptedNetwork(), with_nodes=False) as rig,
        secure_channel(
            rig.node_address, ca_pem=rig.ca_pem, target_name="plait-coordinator"
        ) as channel,
    ):
        call = exchange(channel)
        with pytest.raises(grpc.RpcError):
            await call.write(ATTACH)
            await call.read()


@pytest.mark.parametrize(
    "message",
    [
        data_pb2.NodeToGateway(),
        data_pb2.NodeToGateway(opened=data_pb2.Opened(request_id="x")),
    ],
)
async def test_a_stream_must_begin_with_attach(message: data_pb2.NodeToGateway) -> None:
    async with (
        open_doors(ScriptedNetwork(), with_nodes=False) as rig,
        rig.node_channel(FIRST) as channel,
    ):
        call = exchange(channel)
        await call.write(message)
        with pytest.raises(grpc.RpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_message_closes_the_stream_and_says_why() -> None:
    network = ScriptedNetwork()
    async with (
        open_doors(network, with_nodes=False) as rig,
        rig.node_channel(FIRST) as channel,
    ):
        call = exchange(channel)
        await call.write(ATTACH)
        await call.write(data_pb2.NodeToGateway())
        with pytest.raises(grpc.RpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await network.wait_for(lambda: not rig.gateway.relay.is_attached(FIRST))


async def test_a_newer_stream_of_a_node_ends_the_older_one() -> None:
    network = ScriptedNetwork()
    async with (
        open_doors(network, with_nodes=False) as rig,
        rig.node_channel(FIRST) as one,
        rig.node_channel(FIRST) as two,
    ):
        older, newer = exchange(one), exchange(two)
        await older.write(ATTACH)
        await network.wait_for(lambda: rig.gateway.relay.is_attached(FIRST))
        await newer.write(data_pb2.NodeToGateway(attach=data_pb2.LinkAttach(incarnation=2)))
        assert await older.read() is aio.EOF
        await network.wait_for(lambda: rig.gateway.relay.is_attached(FIRST))
