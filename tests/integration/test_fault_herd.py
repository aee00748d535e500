"""Two hundred nodes whose coordinator is killed come back to the next one, not all at once."""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from grpc import aio

from node.agent.enrol import enrol
from node.agent.identity import NodeCredentials
from node.agent.reports import ReportWriter
from node.backoff import Backoff
from node.core.machines import NodeState
from plait.cli.local_network import LocalNetwork, local_network
from plait.wire.v1 import control_pb2, control_pb2_grpc
from tests.integration.enrolment_support import node_channel
from tests.kit.network import kill_and_restart_coordinator
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until
from tests.unit.core.stories import IDLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_NODES = 200
AT_ONCE = 8
BACK_S = 30.0
ALL_TRY_S = 4.0
BUSY_SHARE_MAX = 0.8
BEAT_S = 1.0


class Herd:
    """Nodes that do nothing but attach and say that they live, with the back-off of real ones."""

    def __init__(self, credentials: Sequence[NodeCredentials]) -> None:
        self._credentials = credentials
        self.attached: set[int] = set()
        self.num_tries = 0

    async def live(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._credentials)):
                group.create_task(self._live(number))

    async def _live(self, number: int) -> None:
        backoff, writer = Backoff(random.Random(number)), ReportWriter(1)
        while True:
            self.num_tries += 1
            async with node_channel(self._credentials[number]) as channel:
                with suppress(aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
                    call = control_pb2_grpc.ControlServiceStub(channel).Attach()
                    await call.write(
                        writer.hello(
                            version=version("plait"),
                            display_name=f"node {number}",
                            addresses=(f"127.0.0.1:{number + 1}",),
                            held=None,
                        )
                    )
                    first = await call.read()
                    assert isinstance(first, control_pb2.NodeCommand), first
                    assert first.WhichOneof("command") == "welcome", first
                    self.attached.add(number)
                    backoff.reset()
                    while True:
                        await call.write(writer.heartbeat(NodeState.JOINING, IDLE))
                        await asyncio.sleep(BEAT_S)
            self.attached.discard(number)
            await asyncio.sleep(backoff.next_s())


async def enrolled(network: LocalNetwork, home: Path) -> list[NodeCredentials]:
    """Papers for everyone."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def papers(number: int) -> NodeCredentials:
        async with turn:
            folder = home / f"node-{number}" / "nodes" / "own"
            folder.mkdir(mode=0o700, parents=True)
            token = await asyncio.to_thread(network.create_token, f"node {number}")
            return await enrol(network.profile.address, token, folder, f"node {number}")

    return list(await asyncio.gather(*map(papers, range(NUM_NODES))))


async def test_a_herd_comes_back_within_half_a_minute_and_leaves_the_coordinator_time(
    tmp_path: Path,
) -> None:
    write_tiny_model(tmp_path / "tiny")
    model = str(tmp_path / "tiny")
    options = ("--weights", "fp32", "--no-mqtt")
    with local_network(home=tmp_path, model=model, num_nodes=1, options=options) as network:
        herd = Herd(await enrolled(network, tmp_path))
        living = asyncio.create_task(herd.live())
        try:
            await until(lambda: len(herd.attached) == NUM_NODES, timeout_s=60, what="the herd")
            await asyncio.to_thread(kill_and_restart_coordinator, network, model)
            await until(lambda: not herd.attached, timeout_s=30, what="the loss of the coordinator")
            await until(lambda: bool(herd.attached), timeout_s=120, what="the first one's return")
            began_s, worked_s = time.perf_counter(), cpu_s(network)
            await until(
                lambda: len(herd.attached) == NUM_NODES, timeout_s=BACK_S, what="all others' return"
            )
            took_s, took_cpu_s = time.perf_counter() - began_s, cpu_s(network) - worked_s
            sys.stderr.write(f"all back after {took_s:.1f} s with {took_cpu_s:.1f} s of CPU\n")
            view = await asyncio.to_thread(network.view)
        finally:
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living
    assert len(view.nodes) == len({node.node_id for node in view.nodes}) == NUM_NODES
    assert took_cpu_s <= BUSY_SHARE_MAX * max(took_s, ALL_TRY_S)


def cpu_s(network: LocalNetwork) -> float:
    times = psutil.Process(network.coordinator.pid).cpu_times()
    return times.user + times.system
