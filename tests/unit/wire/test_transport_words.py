"""A connection that cannot be made is told in words, not in gRPC's own."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from plait.errors import UnavailableError
from plait.wire.status import error_from_rpc
from plait.wire.v1 import gateway_pb2, gateway_pb2_grpc


def failure(address: str) -> UnavailableError:
    with grpc.secure_channel(address, grpc.ssl_channel_credentials()) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=10)
    error = error_from_rpc(caught.value)
    assert isinstance(error, UnavailableError)
    return error


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    message = failure(f"127.0.0.1:{port}").message
    assert message == "the connection was refused: is it running, and is the port right?"


def test_a_port_without_tls() -> None:
    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(answer, listening)
        message = failure(f"127.0.0.1:{listening.getsockname()[1]}").message
    assert "is the port right" in message and "SSL" not in message
