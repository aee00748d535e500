"""The gateway as one piece: what `coordinator.main` builds and hands around."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import FastAPI
from grpc import aio
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.gateway.auth import Authenticator
from coordinator.gateway.catalogue import Catalogue
from coordinator.gateway.door import GatewayDoor
from coordinator.gateway.generate import GenerateLimits, Generator
from coordinator.gateway.guard import guarded_protocol
from coordinator.gateway.http import HttpDoor
from coordinator.gateway.limits import DoorLimits, Turnstile
from coordinator.gateway.link_service import GatewayLinkService
from coordinator.gateway.relay import Relay
from coordinator.gateway.tokens import Tokenizer, TokenizerRegistry
from coordinator.ports import Inbox, KeyStore, ViewSource
from plait.clock import Clock
from plait.types import DType, ModelId, ModelSpec
from plait.wire.v1 import data_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of the gateway. `ticket_life_ms` bounds how long a route may serve."""

    network_id: str
    wire_dtype: DType = DType.FLOAT32
    ticket_life_ms: int = 600_000
    generate: GenerateLimits = field(default_factory=GenerateLimits)
    door: DoorLimits = field(default_factory=DoorLimits)


class Gateway:
    """Relay, generator and doors, wired together. `relay` is the core's RequestActor. Tickets are
    dated by `ticket_clock`, where it is not `clock`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        models: Sequence[ModelSpec],
        tokenizers: Mapping[ModelId, Tokenizer],
        inbox: Inbox,
        views: ViewSource,
        keys: KeyStore,
        sign: Callable[[bytes], bytes],
        clock: Clock,
        ticket_clock: Clock | None = None,
        new_id: Callable[[], str],
    ) -> None:
        self._limits = config.door
        catalogue = Catalogue(models)
        self._tokenizers = TokenizerRegistry(dict(tokenizers))
        self.relay = Relay(
            inbox=inbox,
            sign=sign,
            network_id=config.network_id,
            clock=ticket_clock or clock,
            new_id=new_id,
            wire_dtype=config.wire_dtype,
            ticket_life_ms=config.ticket_life_ms,
        )
        self.generator = Generator(
            relay=self.relay,
            inbox=inbox,
            catalogue=catalogue,
            tokenizers=self._tokenizers,
            clock=clock,
            new_id=new_id,
            limits=config.generate,
            network_id=config.network_id,
        )
        authenticator, turnstile = Authenticator(keys), Turnstile(config.door)
        self._http = HttpDoor(
            generator=self.generator,
            catalogue=catalogue,
            authenticator=authenticator,
            turnstile=turnstile,
            views=views,
            limits=config.door,
            clock=clock,
            new_id=new_id,
        )
        self._door = GatewayDoor(
            generator=self.generator,
            catalogue=catalogue,
            authenticator=authenticator,
            turnstile=turnstile,
            views=views,
            limits=config.door,
        )

    def http_app(self) -> FastAPI:
        """The OpenAI door, to be served on the HTTP port."""
        return self._http.app()

    def http_protocol(self) -> type[H11Protocol]:
        """The connections' protocol for the uvicorn server of `http_app`."""
        return guarded_protocol(self._limits)

    def add_to_node_port(self, server: aio.Server) -> None:
        """Serve the nodes' token streams; the port must be mutual TLS."""
        data_pb2_grpc.add_GatewayLinkServiceServicer_to_server(
            GatewayLinkService(self.relay), server
        )

    def add_to_public_port(self, server: aio.Server) -> None:
        """Serve the SDK's door."""
        self._door.add_to(server)

    def stop(self) -> None:
        """Say to all clients that this process ends. What nodes run for them goes on: who asks the
        next process again gets the rest."""
        self.relay.stop()
        self.generator.stop()

    async def close(self) -> None:
        """End the encoding threads and the compiler's process."""
        await self.generator.close()
        self._tokenizers.close()
