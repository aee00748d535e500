"""Who may speak to a node, and whom a node believes: mutual TLS as it really runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc import aio

from node.agent.identity import CertificateRequest
from node.core.events import Event, LinkUp
from node.transport import server as node_server
from node.transport.decode import FrameReader
from node.transport.flow import FlowLimits
from node.transport.links import LinkTable
from node.transport.streams import DialledStream
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import TlsPair, node_tls_name
from plait.crypto.identity import NodeIdentity
from plait.errors import ConfigError
from plait.types import NodeId
from plait.wire.channel import secure_channel
from tests.unit.node.ring import until
from tests.unit.node.test_transport_frames import Tickets

CLOCK = SystemClock()
MESSAGE = b"\x08\x01\x42\x02\x08\x01"  # LinkFrame(sequence=1, ping=LinkPing(nonce=1))


class Papers:
    """A node's identity and certificate from an authority."""

    def __init__(self, authority: CertificateAuthority) -> None:
        self.authority = authority
        self.node_id = NodeIdentity.generate().node_id
        self.renew()

    def renew(self) -> None:
        request = CertificateRequest.make(self.node_id)
        chain = self.authority.issue_node(request.csr_der, self.node_id)
        self.tls = TlsPair(certificate_pem=chain, key_pem=request.key_pem)


class Heard:
    """An inbox that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, event: Event) -> None:
        self.events.append(event)

    def linked(self) -> list[NodeId]:
        return [e.neighbour_id for e in self.events if isinstance(e, LinkUp)]


@asynccontextmanager
async def served(papers: Papers) -> AsyncIterator[tuple[str, Heard]]:
    """A node's server; its address, and what its links report."""
    heard = Heard()
    links = LinkTable(
        channels=lambda _address, _node: pytest.fail("nothing is dialled here"),
        reader=FrameReader(tickets=Tickets(), clock=CLOCK, incarnation=1, held_model=lambda: None),
        inbox=heard,
        limits=FlowLimits(),
        now_s=asyncio.get_running_loop().time,
    )
    credentials = node_server.server_credentials(
        lambda: papers.tls, papers.authority.certificate_pem
    )
    server, port = await node_server.start_server("127.0.0.1:0", links, credentials)
    try:
        yield f"127.0.0.1:{port}", heard
    finally:
        await server.stop(0)


def dial(address: str, expected: NodeId, caller: Papers) -> DialledStream:
    return DialledStream.open(
        node_server.channel_to_node(
            address,
            expected,
            current=lambda: caller.tls,
            ca_pem=caller.authority.certificate_pem,
        )
    )


async def refused(stream: DialledStream) -> str:
    """Why a stream does not come up."""
    try:
        async with asyncio.timeout(5):
            await stream.connected()
            await stream.write(MESSAGE)
            await stream.read()
    except aio.AioRpcError as error:
        return error.code().name
    finally:
        await stream.close()
    raise AssertionError("the stream came up")


async def test_a_neighbour_is_who_its_certificate_says() -> None:
    authority = CertificateAuthority.create(CLOCK)
    here, there = Papers(authority), Papers(authority)
    async with served(there) as (address, heard):
        stream = dial(address, there.node_id, here)
        await stream.connected()
        await stream.write(MESSAGE)
        await until(lambda: heard.linked() == [here.node_id])
        await stream.close()


async def test_another_node_under_the_address_is_not_believed() -> None:
    authority = CertificateAuthority.create(CLOCK)
    here, there, elsewhere = Papers(authority), Papers(authority), Papers(authority)
    async with served(there) as (address, heard):
        assert await refused(dial(address, elsewhere.node_id, here)) == "UNAVAILABLE"
        assert heard.linked() == []


async def test_a_node_of_another_network_gets_nowhere() -> None:
    ours, theirs = CertificateAuthority.create(CLOCK), CertificateAuthority.create(CLOCK)
    there, stranger = Papers(ours), Papers(theirs)
    async with served(there) as (address, heard):
        assert await refused(dial(address, there.node_id, stranger)) == "UNAVAILABLE"
        stranger.authority = ours  # it trusts us; we still do not know it
        assert await refused(dial(address, there.node_id, stranger)) == "UNAVAILABLE"
        assert heard.linked() == []


async def test_without_a_certificate_nobody_gets_in() -> None:
    authority = CertificateAuthority.create(CLOCK)
    there = Papers(authority)
    async with served(there) as (address, heard):
        channel = secure_channel(
            address,
            ca_pem=authority.certificate_pem,
            target_name=node_tls_name(there.node_id),
        )
        assert await refused(DialledStream.open(channel)) == "UNAVAILABLE"
        assert heard.linked() == []


async def test_a_renewed_certificate_serves_new_streams_and_old_ones_stay() -> None:
    authority = CertificateAuthority.create(CLOCK)
    here, there = Papers(authority), Papers(authority)
    async with served(there) as (address, heard):
        old = dial(address, there.node_id, here)
        await old.connected()
        await old.write(MESSAGE)
        await until(lambda: len(heard.linked()) == 1)
        there.node_id = Papers(authority).node_id
        there.renew()
        new = dial(address, there.node_id, Papers(authority))
        await new.connected()
        await old.write(MESSAGE)
        await old.close()
        await new.close()


async def test_a_taken_port_is_a_clear_error() -> None:
    papers = Papers(CertificateAuthority.create(CLOCK))
    async with served(papers) as (address, _):
        links = LinkTable(
            channels=lambda _address, _node: pytest.fail("nothing is dialled here"),
            reader=FrameReader(
                tickets=Tickets(), clock=CLOCK, incarnation=1, held_model=lambda: None
            ),
            inbox=Heard(),
            limits=FlowLimits(),
            now_s=asyncio.get_running_loop().time,
        )
        credentials = node_server.server_credentials(
            lambda: papers.tls, papers.authority.certificate_pem
        )
        with pytest.raises(ConfigError, match="--listen"):
            await node_server.start_server(address, links, credentials)
