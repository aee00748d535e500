"""A node while the machine is its owner's alone: no engine, no port, no weights in memory."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from importlib.metadata import version

from grpc import aio

from node.agent.figures import FiguresFile
from node.agent.identity import NodeCredentials
from node.agent.local_status import StatusKeeper
from node.agent.papers import Papers
from node.agent.presence import PausedPresence
from node.config import NodeConfig
from node.core.effects import Exit
from node.owner.rules import WhyPaused
from node.owner.watch import OwnerWatch
from node.ports import NodePhase, Progress, ProgressSink
from node.transport import server as node_server
from plait.clock import Clock
from plait.types import Reason

FIGURES_S = 1.0


async def stay_paused(
    config: NodeConfig,
    credentials: NodeCredentials,
    owner: OwnerWatch,
    clock: Clock,
    progress: ProgressSink,
) -> Exit | None:
    """Wait until the machine is lent; at once where it is. Returns why the node is to end instead,
    where it was stopped meanwhile."""
    if owner.look() is None:
        return None
    async with StatusKeeper(config.home, clock, progress) as status:
        return await _Paused(config, credentials, owner, clock, status.show).run()


class _Paused:
    def __init__(
        self,
        config: NodeConfig,
        credentials: NodeCredentials,
        owner: OwnerWatch,
        clock: Clock,
        progress: ProgressSink,
    ) -> None:
        self._credentials = credentials
        self._owner = owner
        self._progress = progress
        self._papers = Papers(credentials, clock, self._channel)
        self._figures = FiguresFile(config.home, clock)
        self._presence = PausedPresence(
            version=version("plait"),
            display_name=config.display_name or credentials.display_name,
            open_channel=self._channel,
            new_incarnation=clock.unix_ms,
            rng=random.Random(f"{credentials.node_id}/{clock.unix_ms()}"),
        )
        self._over: asyncio.Future[Exit | None] = asyncio.get_running_loop().create_future()
        self._told: asyncio.Queue[WhyPaused] = asyncio.Queue(maxsize=1)

    async def run(self) -> Exit | None:
        parts = (
            self._papers.run(),
            self._owner.run(self._changed),
            self._be_there(),
            self._write_figures(),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            with self._signals():
                ended = await self._over
            for task in tasks:
                task.cancel()
        return ended

    def _changed(self, why: WhyPaused | None) -> None:
        if why is None:
            self._end(None)
            return
        self._progress(Progress(phase=NodePhase.PAUSED, detail=why.message))
        if self._told.full():
            self._told.get_nowait()
        self._told.put_nowait(why)

    def _end(self, ended: Exit | None) -> None:
        if not self._over.done():
            self._over.set_result(ended)

    async def _be_there(self) -> None:
        """The coordinator hears of a new reason by a new hello; what only counts down is old."""
        why = await self._told.get()
        while True:
            presence = asyncio.create_task(self._presence.run(why.message))
            try:
                code = why.code
                while why.code == code:
                    why = await self._told.get()
            finally:
                presence.cancel()
                await asyncio.wait((presence,))

    async def _write_figures(self) -> None:
        while True:
            self._figures.write(self._owner, None)
            await asyncio.sleep(FIGURES_S)

    def _channel(self) -> aio.Channel:
        return node_server.channel_to_coordinator(
            self._credentials.node_address,
            current=self._papers.tls,
            ca_pem=self._credentials.ca_pem,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        reason = Reason(code="stopped", message="stopped while it was paused")
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self._end, Exit(0, reason))
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
