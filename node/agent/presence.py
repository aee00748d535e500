"""A paused node on its control stream: there, with the reason, and to be given nothing."""

import asyncio
import random
from collections.abc import Callable

from grpc import aio

from node.agent.reports import ReportWriter
from node.backoff import Backoff
from node.core.machines import NodeState
from plait import log
from plait.errors import PlaitError, UnavailableError
from plait.types import NodeLoad
from plait.wire.status import error_from_rpc
from plait.wire.v1 import control_pb2, control_pb2_grpc

CONNECT_S = 10.0
WRITE_S = 30.0
HEARTBEAT_MS = (100, 60_000)
_IDLE = NodeLoad(
    kv_tokens_reserved=0,
    num_requests=0,
    stage_ms=0.0,
    tokens_total=0,
    sent_bytes_total=0,
    frames_dropped_total=0,
    queue_tokens=0,
)

_log = log.get("control")


class PausedPresence:
    """Keeps the coordinator told. `run` until cancelled; it needs no engine."""

    def __init__(
        self,
        *,
        version: str,
        display_name: str,
        open_channel: Callable[[], aio.Channel],
        new_incarnation: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._version = version
        self._display_name = display_name
        self._open_channel = open_channel
        self._new_incarnation = new_incarnation
        self._backoff = Backoff(rng)

    async def run(self, why: str) -> None:
        """Attach with `why`, and attach again, until cancelled."""
        while True:
            try:
                await self._attach_once(why)
                reason = "the coordinator closed the stream"
            except TimeoutError:
                reason = "no answer"
            except aio.AioRpcError as error:
                reason = error_from_rpc(error).message
            except (asyncio.InvalidStateError, aio.UsageError):
                reason = "the call had ended"
            except PlaitError as error:
                reason = error.message
            _log.info("paused_control_down", reason=reason)
            await asyncio.sleep(self._backoff.next_s())

    async def _attach_once(self, why: str) -> None:
        writer = ReportWriter(self._new_incarnation())
        channel = self._open_channel()
        try:
            call = control_pb2_grpc.ControlServiceStub(channel).Attach()
            async with asyncio.timeout(CONNECT_S):
                await call.write(
                    writer.hello(
                        version=self._version,
                        display_name=self._display_name,
                        addresses=(),
                        held=None,
                        paused=why,
                    )
                )
                command = await call.read()
            if not isinstance(command, control_pb2.NodeCommand) or not command.HasField("welcome"):
                raise UnavailableError("the coordinator did not say welcome")
            self._backoff.reset()
            low, high = HEARTBEAT_MS
            beat_s = min(max(command.welcome.heartbeat_ms, low), high) / 1e3
            reading = asyncio.create_task(_until_closed(call))
            try:
                while not reading.done():
                    async with asyncio.timeout(WRITE_S):
                        await call.write(writer.heartbeat(NodeState.JOINING, _IDLE))
                    await asyncio.wait((reading,), timeout=beat_s)
            finally:
                reading.cancel()
        finally:
            await channel.close()


async def _until_closed(
    call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]",
) -> None:
    """Commands are for nodes that serve: a paused one reads past them."""
    while isinstance(await call.read(), control_pb2.NodeCommand):
        pass
