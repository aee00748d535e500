"""`plait status`: the network as its coordinator sees it, the same truth as the dashboard."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

if TYPE_CHECKING:
    from grpc import aio

    from plait.wire.v1.admin_pb2_grpc import AdminServiceAsyncStub

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
app = typer.Typer(help="Show nodes, layers, requests and the plan.")
CALL_S: Final = 10.0
REQUESTS_MIN: Final = 3

Fetch = Callable[[], Awaitable[str]]


@app.callback(invoke_without_command=True)
def show(
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole snapshot as one JSON object.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, once a second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show nodes, layers, requests and the plan."""
    if as_json and watch:
        raise typer.BadParameter("--json and --watch exclude each other")
    if not watch:
        asyncio.run(_show_once(as_json=as_json))
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch())


async def _show_once(*, as_json: bool) -> None:
    from rich.console import Console

    from plait.cli.fields import Fields
    from plait.cli.status_view import draw

    async with connected() as fetch:
        text = await fetch()
    view = Fields.parse(text)
    if as_json:
        typer.echo(text)
    else:
        Console().print(draw(view))


async def _watch() -> None:
    from rich.console import Console, RenderableType

    from plait.cli.fields import Fields
    from plait.cli.status_view import draw, lines_beside_requests
    from plait.cli.watching import every_second, watch

    console = Console()

    def drawn(view: Fields) -> RenderableType:
        room = console.height - lines_beside_requests(view)
        return draw(view, requests_max=max(REQUESTS_MIN, room))

    async with connected() as fetch:
        await watch(fetch, drawn, every_second, console=console)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Fetch]:
    """A way to fetch `view_json` over one channel. Raises ConfigError, PlaitError."""
    async with connected_admin() as admin:
        yield admin.fetch


@contextlib.asynccontextmanager
async def connected_admin() -> AsyncIterator["Admin"]:
    """The operator's door over one channel. Raises ConfigError, PlaitError."""
    from plait.crypto.certificates import COORDINATOR_NAME
    from plait.sdk.settings import resolve
    from plait.wire.channel import secure_channel
    from plait.wire.reach import Address, check_reachable
    from plait.wire.v1.admin_pb2_grpc import AdminServiceStub

    settings = resolve(None, None, None)
    address, ca_pem = Address.parse(settings.address), settings.ca_pem
    await check_reachable(address, ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    channel = secure_channel(str(address), ca_pem=ca_pem, target_name=COORDINATOR_NAME)
    try:
        yield Admin(AdminServiceStub(channel), settings.metadata)
    finally:
        await channel.close()


class Admin:
    """What operators' commands ask. Every call raises PlaitError."""

    def __init__(
        self, stub: "AdminServiceAsyncStub", metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self._stub = stub
        self._metadata = metadata

    async def fetch(self) -> str:
        """The network as JSON."""
        from plait.wire.v1 import admin_pb2 as pb

        request = pb.GetNetworkRequest()
        return (await self._answer(self._stub.GetNetwork, request)).view_json

    async def past_request(self, request_id: str) -> tuple[str, dict[str, str]]:
        """A request that ended, as JSON, and names of nodes by id."""
        from plait.wire.v1 import admin_pb2 as pb

        request = pb.GetRequestRequest(request_id=request_id)
        answer = await self._answer(self._stub.GetRequest, request)
        return answer.request_json, dict(answer.display_names)

    async def drain(self, node_id: str, *, limit_ms: int) -> None:
        """Take a node out in order; 0: the network's default limit."""
        from plait.wire.v1 import admin_pb2 as pb

        request = pb.DrainNodeRequest(node_id=node_id, limit_ms=limit_ms)
        await self._answer(self._stub.DrainNode, request)

    async def _answer(
        self, call: "aio.UnaryUnaryMultiCallable[_Request, _Response]", request: _Request
    ) -> _Response:
        from grpc import aio

        from plait.wire.status import error_from_rpc

        try:
            return await call(request, timeout=CALL_S, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from None
