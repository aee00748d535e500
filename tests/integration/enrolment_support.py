"""A coordinator's doors on loopback: the public port and the node port, with real keys."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from coordinator.shell.authority import Authority
from coordinator.shell.control import ControlService, Offer
from coordinator.shell.enrol import Enrolment, EnrolmentService
from coordinator.shell.preflight import Preflight
from coordinator.shell.store import Store, open_store
from node.agent.identity import NodeCredentials
from plait.clock import Clock, SystemClock
from plait.crypto.certificates import COORDINATOR_NAME
from plait.types import ModelSpec
from plait.wire.channel import secure_channel, server_options
from plait.wire.v1 import control_pb2_grpc
from tests.kit.inbox import ListInbox


@dataclass(frozen=True)
class Network:
    """What the tests look at. Addresses are host:port."""

    authority: Authority
    store: Store
    enrolment: Enrolment
    inbox: ListInbox
    public_address: str
    node_address: str

    async def token(self, valid_s: int = 60) -> str:
        token, _entry = await self.store.tokens.create_token(display_name="t", valid_s=valid_s)
        return token


AddServices = Callable[[aio.Server, Store, ListInbox], None]


@contextlib.asynccontextmanager
async def running_network(
    folder: Path,
    *,
    clock: Clock | None = None,
    add_public: AddServices | None = None,
    specs: Sequence[ModelSpec] = (),
) -> AsyncIterator[Network]:
    """Both doors, until the block ends. `add_public` adds services to the public one; `specs` are
    served, by nobody yet."""
    clock = clock if clock is not None else SystemClock()
    authority = Authority.open(folder / "keys", clock, names=("localhost", "127.0.0.1"))
    inbox = ListInbox()
    async with open_store(folder / "store.db", clock, ca_der=authority.ca.certificate_der) as store:
        enrolment = Enrolment(ca=authority.ca, tokens=store.tokens, nodes=store.nodes)
        public, private = aio.server(options=server_options()), aio.server()
        node_port = private.add_secure_port("127.0.0.1:0", authority.mtls_credentials())
        public_port = public.add_secure_port("127.0.0.1:0", authority.tls_credentials())
        control_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentService(
                enrolment,
                Preflight(
                    tokens=store.tokens, nodes=store.nodes, specs=specs, views=None, clock=clock
                ),
                ticket_key=authority.tickets.public_bytes,
                node_address=f":{node_port}",
            ),
            public,
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(
            ControlService(inbox, Offer(models=()), enrolment.renew, admit=store.nodes.saw), private
        )
        if add_public is not None:
            add_public(public, store, inbox)
        await asyncio.gather(public.start(), private.start())
        try:
            yield Network(
                authority=authority,
                store=store,
                enrolment=enrolment,
                inbox=inbox,
                public_address=f"127.0.0.1:{public_port}",
                node_address=f"127.0.0.1:{node_port}",
            )
        finally:
            await asyncio.gather(public.stop(None), private.stop(None))


def node_channel(credentials: NodeCredentials) -> aio.Channel:
    """A node's mTLS channel to the node port."""
    return secure_channel(
        credentials.node_address,
        ca_pem=credentials.ca_pem,
        target_name=COORDINATOR_NAME,
        certificate_pem=credentials.tls.certificate_pem,
        key_pem=credentials.tls.key_pem,
    )
