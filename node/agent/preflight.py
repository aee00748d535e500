"""Asks a coordinator what this machine would meet as its node. Spends no token."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc
from grpc import aio

from plait.clock import Clock
from plait.crypto.certificates import COORDINATOR_NAME
from plait.crypto.identity import NodeIdentity, preflight_message
from plait.crypto.tokens import JoinToken
from plait.errors import FrameError, UnavailableError
from plait.types import LayerSpan, ModelSpec
from plait.wire.channel import secure_channel
from plait.wire.codec import model_spec_from_proto, span_from_proto
from plait.wire.reach import Address
from plait.wire.status import error_from_rpc
from plait.wire.v1 import control_pb2, control_pb2_grpc

CALL_S: Final = 15.0
BULK_BYTES: Final = 384 << 10
NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Need:
    """A served model: layers that nobody serves, and where cover is thinnest."""

    spec: ModelSpec
    missing: tuple[LayerSpan, ...]
    first_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a coordinator said. `skew_ms`: how far this clock is ahead of its; rates in bytes/s.

    `dial_back_error` is "" where the port was reached and it was this machine that answered; None
    where no port was asked about.
    """

    skew_ms: float
    rtt_ms: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    seen_host: str
    dial_back_error: str | None
    needs: tuple[Need, ...]
    software_version: str


class Asker:
    """Who asks: a token, or the identity of a node that is enrolled."""

    def __init__(self, *, token: JoinToken | None, identity: NodeIdentity | None) -> None:
        self._token = token
        self._identity = identity

    def request(self, now_unix_ms: int, *, port: int = 0) -> control_pb2.PreflightRequest:
        request = control_pb2.PreflightRequest(sent_unix_ms=now_unix_ms, dial_back_port=port)
        if self._token is not None:
            request.token_id, request.token_secret = self._token.token_id, self._token.secret
        elif self._identity is not None:
            request.identity_key = self._identity.public_bytes
            request.identity_signature = self._identity.sign(preflight_message(now_unix_ms))
        return request


async def ask(
    address: Address,
    ca_pem: bytes,
    asker: Asker,
    clock: Clock,
    *,
    listen: tuple[str, int] | None,
    now_s: Callable[[], float],
) -> Found:
    """One look. `listen` is where this machine would let neighbours in; None: no port is tried.

    Raises AuthenticationError (token_unknown, token_used, token_expired, token_revoked,
    node_unknown, node_banned), UnavailableError(reason="no_preflight") for a coordinator of an
    older version, and what calls raise. OSError where `listen` cannot be had.
    """
    channel = secure_channel(str(address), ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    stub = control_pb2_grpc.EnrolmentServiceStub(channel)
    try:
        first = await stub.Preflight(asker.request(clock.unix_ms()), timeout=CALL_S)
        sent_ms, start_s = clock.unix_ms(), now_s()
        answer = await stub.Preflight(asker.request(sent_ms), timeout=CALL_S)
        rtt_s = now_s() - start_s
        skew_ms = sent_ms + rtt_s * 500 - answer.now_unix_ms
        up, down = await _rates(stub, asker, clock, rtt_s, now_s)
        problem: str | None = None
        if listen is not None:
            async with _doorbell(*listen) as (port, nonce):
                asked = asker.request(clock.unix_ms(), port=port)
                rung = await stub.Preflight(asked, timeout=CALL_S)
            problem = rung.dial_back_error
            if not problem and rung.dial_back_said != nonce:
                problem = "something else than this machine answered there"
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnavailableError(
                f"the coordinator at {address} is too old to be asked", reason="no_preflight"
            ) from None
        raise error_from_rpc(error) from None
    finally:
        await channel.close()
    return Found(
        skew_ms=skew_ms,
        rtt_ms=rtt_s * 1e3,
        up_bytes_per_s=up,
        down_bytes_per_s=down,
        seen_host=first.seen_host,
        dial_back_error=problem,
        needs=tuple(_needs(first)),
        software_version=first.software_version,
    )


async def _rates(
    stub: "control_pb2_grpc.EnrolmentServiceAsyncStub",
    asker: Asker,
    clock: Clock,
    rtt_s: float,
    now_s: Callable[[], float],
) -> tuple[float, float]:
    """Bytes/s up and down."""
    up, down = asker.request(clock.unix_ms()), asker.request(clock.unix_ms())
    up.padding, down.response_bytes = bytes(BULK_BYTES), BULK_BYTES
    rates = []
    for request in (up, down):
        start_s = now_s()
        await stub.Preflight(request, timeout=CALL_S)
        rates.append(BULK_BYTES / max(now_s() - start_s - rtt_s, 1e-4))
    return rates[0], rates[1]


@asynccontextmanager
async def _doorbell(host: str, port: int) -> AsyncIterator[tuple[int, bytes]]:
    """A port that says a secret word to whoever comes."""
    nonce = secrets.token_bytes(NONCE_BYTES)

    async def ring(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(ring, host or None, port)
    try:
        yield int(server.sockets[0].getsockname()[1]), nonce
    finally:
        server.close()


def _needs(answer: control_pb2.PreflightResponse) -> list[Need]:
    """Models that this version does not know are left out."""
    found = []
    for need in answer.models:
        try:
            spec = model_spec_from_proto(need.spec)
            missing = tuple(span_from_proto(span) for span in need.missing)
        except FrameError:
            continue
        found.append(Need(spec, missing, min(need.first_layer, spec.num_layers - 1)))
    return found
