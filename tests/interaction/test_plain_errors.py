"""A gRPC door never hands out an exception's text: junk is the caller's mistake, a bug is ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from coordinator.shell.servers import GrpcDoor
from plait.clock import SystemClock
from plait.crypto.authority import CertificateAuthority
from plait.crypto.certificates import COORDINATOR_NAME
from plait.errors import OverloadedError
from plait.wire.channel import secure_channel, tls_server_credentials
from plait.wire.status import abort_with
from plait.wire.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

JUNK = (b"\xff" * 40, b"junk")
GET = "/plait.wire.v1.AdminService/GetNetwork"
LIST = "/plait.wire.v1.AdminService/ListApiKeys"
ATTACH = "/plait.wire.v1.ControlService/Attach"


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """One method has a bug, one refuses."""

    async def GetNetwork(
        self, request: admin_pb2.GetNetworkRequest, context: object
    ) -> admin_pb2.GetNetworkResponse:
        raise KeyError("/secret/path")

    async def ListApiKeys(
        self, request: admin_pb2.ListApiKeysRequest, context: "aio.ServicerContext[object, object]"
    ) -> admin_pb2.ListApiKeysResponse:
        await abort_with(context, OverloadedError("come back later"))


class Control(control_pb2_grpc.ControlServiceServicer):
    """Reads one report."""

    async def Attach(  # type: ignore[override]
        self, _: object, context: "aio.ServicerContext[object, object]"
    ) -> None:
        await context.read()
        await context.write(control_pb2.NodeCommand())


@asynccontextmanager
async def door() -> AsyncIterator[aio.Channel]:
    authority = CertificateAuthority.create(SystemClock())
    tls = authority.issue_server(("127.0.0.1",))
    credentials = tls_server_credentials(key_pem=tls.key_pem, certificate_pem=tls.certificate_pem)
    served = GrpcDoor(
        host="127.0.0.1", port=0, flag="--listen", credentials=credentials, calls_max=9
    )
    admin, control = Admin(), Control()  # type: ignore[abstract]
    async with (
        served.serve(
            lambda server: admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server),
            lambda server: control_pb2_grpc.add_ControlServiceServicer_to_server(control, server),
        ),
        secure_channel(
            f"127.0.0.1:{served.port}",
            ca_pem=authority.certificate_pem,
            target_name=COORDINATOR_NAME,
        ) as channel,
    ):
        yield channel


async def failure(channel: aio.Channel, method: str, content: bytes) -> tuple[grpc.StatusCode, str]:
    unary: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    with pytest.raises(aio.AioRpcError) as caught:
        await unary(content, timeout=5)
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("content", JUNK)
async def test_junk_is_an_invalid_argument_on_calls_and_on_streams(content: bytes) -> None:
    async with door() as channel:
        for method in (LIST, ATTACH):
            code, details = await failure(channel, method, content)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, method
            assert details == "this is no message of this call, or it is damaged"


async def test_a_bug_is_logged_and_told_without_its_text() -> None:
    async with door() as channel:
        code, details = await failure(channel, GET, b"")
        assert code is grpc.StatusCode.INTERNAL
        assert "secret" not in details
        assert "KeyError" not in details


async def test_what_a_method_says_itself_is_left_alone() -> None:
    async with door() as channel:
        code, details = await failure(channel, LIST, b"")
        assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "come back later")
        code, _ = await failure(channel, "/plait.wire.v1.AdminService/Nothing", b"")
        assert code is grpc.StatusCode.UNIMPLEMENTED
        stream: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(ATTACH)
        call = stream(timeout=5)
        await call.write(b"")
        assert await call.read() == b""
