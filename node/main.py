"""One node, wired: engine, core, links, gateway, control, telemetry."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Final

from grpc import aio

from node.agent.cached import CachedLayers
from node.agent.control import ControlClient
from node.agent.figures import FiguresFile
from node.agent.identity import NodeCredentials
from node.agent.local_status import StatusKeeper
from node.agent.meter import NodeMeter
from node.agent.network_time import NetworkTime
from node.agent.papers import Papers
from node.agent.profile import SelfProfile
from node.agent.reports import ReportWriter, frame_limit, weights_refusal, welcome_event
from node.agent.runtime import NodeRuntime
from node.agent.telemetry_following import TelemetryFollower
from node.agent.weights import OwnersGate, allows_model, open_weights
from node.choices import memory_limit, own_addresses, pick_allowed
from node.config import NodeConfig
from node.core import NodeCore
from node.core.effects import Exit
from node.core.events import ModelOffered, StopAsked
from node.core.machines import NodeState
from node.core.state import Limits
from node.draft_port import DraftHost
from node.drafter import open_drafter
from node.engine.parallel.host import GroupEngineHost
from node.grouping import RANK_DRAIN_MS, open_engine, rank_lost, unfit
from node.owner.rules import WhyPaused
from node.owner.watch import OwnerWatch
from node.ports import EngineHost, NodePhase, Progress, ProgressSink
from node.transport import server as node_server
from node.transport.decode import FrameReader
from node.transport.flow import FlowLimits
from node.transport.gateway import GatewayLink
from node.transport.links import LinkTable
from node.transport.pace import Pace
from node.transport.probe import LinkProbe
from node.weights import NodeWeights
from plait import log
from plait.clock import Clock, SystemClock
from plait.config import models_dir
from plait.crypto.tickets import TicketVerifier
from plait.models.gate import Gate
from plait.types import ModelId, NodeId, Reason
from plait.wire.tickets import decode_payload
from plait.wire.v1 import control_pb2

FLUSH_S: Final = 1.0
FIGURES_S: Final = 1.0
PAUSE_DRAIN_MS: Final = 2_500
"""How long requests may take to move when the owner wants the machine: with PAUSE_STOP_S, FLUSH_S
and the rules' own second under five seconds."""
PAUSE_STOP_S: Final = 0.5
OWNER_PAUSED: Final = "owner_paused"
PATIENCE_S: Final = 0.5
INTERRUPTED: Final = 130
WELCOME_REFUSED: Final = 3

_log = log.get("node")


async def run(
    config: NodeConfig, credentials: NodeCredentials, owner: OwnerWatch, progress: ProgressSink
) -> Exit:
    """Serve with the papers from `node.agent.joining.join` until the node leaves; returns why.
    Where its owner's rules want the machine back, that is `OWNER_PAUSED`.

    Raises PlaitError for addresses or devices that will not do.
    """
    await asyncio.sleep(0)  # a Ctrl-C while the engine's libraries loaded ends it here
    device = pick_allowed(config)
    clock = SystemClock()
    gate = OwnersGate(
        config.owner,
        models_dir(),
        count=owner.count_weights,
        now_s=perf_counter,
        is_offline=config.is_offline,
    )
    weights = partial(open_weights, gate=gate)
    memory_bytes = memory_limit(config, device.kind)
    drafter, memory_bytes = await open_drafter(config, device, weights, memory_bytes, progress)
    engine = await open_engine(config, device, weights, memory_bytes)
    async with StatusKeeper(config.home, clock, progress) as status:
        node = Node(
            config,
            credentials,
            engine,
            clock,
            status.show,
            owner=owner,
            gate=gate,
            drafter=drafter,
            refuses=partial(unfit, config, device),
        )
        if isinstance(engine, GroupEngineHost):
            engine.when_lost(node.lose_rank)
        return await node.run()


class Node:
    """The parts of one node, and how they end."""

    def __init__(
        self,
        config: NodeConfig,
        credentials: NodeCredentials,
        engine: EngineHost,
        clock: Clock,
        progress: ProgressSink,
        *,
        owner: OwnerWatch | None = None,
        gate: Gate | None = None,
        drafter: DraftHost | None = None,
        refuses: Callable[[Sequence[ModelOffered]], Reason | None] = lambda _: None,
    ) -> None:
        """Weights come through `gate`. `refuses` says why a network with these models cannot be
        served within the limits."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._papers = Papers(credentials, clock, self._channel_to_coordinator)
        self._engine = engine
        self._clock = clock
        self._time = NetworkTime(clock)
        self._tell = progress
        self._owner = owner
        self._refuses = refuses
        self._pausing: WhyPaused | None = None
        self._lost_rank: str | None = None
        self._incarnation = clock.unix_ms()
        self._rng = random.Random(f"{credentials.node_id}/{self._incarnation}")
        self._exit: asyncio.Future[Exit] = loop.create_future()
        self._core = NodeCore(
            credentials.node_id,
            self._incarnation,
            Limits(drain_ms=config.drain_ms, drafts_max=config.drafts_max),
        )
        self._cached = CachedLayers(config.home, models_dir())
        self._runtime = NodeRuntime(
            self._core, engine, clock, keep=self._cached.keep, drafter=drafter
        )
        reader = self._frame_reader(credentials)
        limits = config.owner.limits
        self._pace = Pace(
            now_s=perf_counter,
            up_bytes_per_s=limits.bytes_per_s(limits.up_mbit),
            down_bytes_per_s=limits.bytes_per_s(limits.down_mbit),
        )
        self._links = LinkTable(
            channels=self._channel_to_node,
            reader=reader,
            inbox=self._runtime,
            limits=FlowLimits(),
            now_s=perf_counter,
            pace=self._pace,
        )
        self._gateway = GatewayLink(
            open_channel=self._channel_to_coordinator,
            reader=reader,
            inbox=self._runtime,
            incarnation=self._incarnation,
            rng=self._rng,
            pace=self._pace,
        )
        channels = (self._channel_to_coordinator, self._channel_to_node)
        self._weights = NodeWeights(config, gate or Gate(), clock, *channels)
        self._meter = NodeMeter(self._core, engine, self._links, self._weights.counts, drafter)
        self._telemetry = self._telemetry_follower()

    def _telemetry_follower(self) -> TelemetryFollower:
        return TelemetryFollower(
            lambda: self._credentials,
            self._meter,
            incarnation=self._incarnation,
            clock=self._clock,
            rng=self._rng,
            is_on=self._config.has_telemetry,
        )

    def _frame_reader(self, credentials: NodeCredentials) -> FrameReader:
        tickets = TicketVerifier(
            public_key=credentials.ticket_key,
            network_id=credentials.network_id,
            node_id=credentials.node_id,
            clock=self._time,
            decode=decode_payload,
        )
        self._time.on_earlier = tickets.accept_earlier
        return FrameReader(
            tickets=tickets,
            clock=self._time,
            incarnation=self._incarnation,
            held_model=self._held_model,
        )

    @property
    def _credentials(self) -> NodeCredentials:
        return self._papers.credentials

    async def run(self) -> Exit:
        """Serve until the node leaves; returns why. Cancelling drops everything at once."""
        server, port = await node_server.start_server(
            self._config.listen,
            self._links,
            node_server.server_credentials(self._papers.tls, self._credentials.ca_pem),
            giver=self._weights.giver(self._pace, self._links),
        )
        try:
            control = self._control(own_addresses(self._config, port))
            self._runtime.connect(
                links=self._links,
                gateway=self._gateway,
                reporter=control,
                leaver=self,
                explain=self._weights.explain,
            )
            self._engine.start(self._runtime.results)
            with self._signals():
                return await self._serve(control)
        finally:
            self._weights.close()
            await server.stop(0)
            await self._stop_engine()

    def leave(self, effect: Exit) -> None:
        """End `run` with this; the first reason stays."""
        if not self._exit.done():
            self._exit.set_result(effect)

    def lose_rank(self, why: str) -> None:
        """A part of the stage is gone: what runs goes on elsewhere, and the node ends."""
        self._lost_rank = why
        _log.warning("rank_lost", message=why)
        self._runtime.post(StopAsked("rank_lost", limit_ms=RANK_DRAIN_MS))

    async def _serve(self, control: ControlClient) -> Exit:
        parts = [self._runtime.run(), self._links.run(), self._gateway.run(), control.run()]
        parts += [self._papers.run(), self._telemetry.run(), self._weights.run()]
        if self._owner is not None:
            self._owner.count_frames(lambda: self._pace.totals.all_bytes)
            parts += [self._owner.run(self._owner_says), self._write_figures(self._owner)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            leaving = await self._exit
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await control.flush()
            self._runtime.close()
            await end(tasks)
        _log.info("left", reason=leaving.reason.code, code=leaving.code)
        if self._pausing is not None and leaving.code == 0:
            return Exit(0, Reason(code=OWNER_PAUSED, message=self._pausing.message))
        return leaving if self._lost_rank is None else rank_lost(self._lost_rank)

    async def _stop_engine(self) -> None:
        """An owner who wants the machine back does not wait for a step or a load to end: the
        process ends, or starts anew without the engine."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_STOP_S if self._pausing is not None else None):
                await self._engine.stop()

    def _progress(self, progress: Progress) -> None:
        """What is done on the way into a pause is shown as the pause that it is."""
        if self._pausing is not None and progress.phase in (NodePhase.DRAINING, NodePhase.LEFT):
            detail = f"{self._pausing.message}; {progress.detail}"
            progress = Progress(phase=NodePhase.PAUSED, detail=detail)
        self._tell(progress)

    def _owner_says(self, why: WhyPaused | None) -> None:
        if why is None or self._core.state in (NodeState.DRAINING, NodeState.GONE):
            return
        self._pausing = why
        self._runtime.post(StopAsked(f"paused: {why.message}", limit_ms=PAUSE_DRAIN_MS))

    async def _write_figures(self, owner: OwnerWatch) -> None:
        file = FiguresFile(self._config.home, self._clock)
        while True:
            totals = self._pace.totals
            file.write(
                owner,
                self._meter.figures(
                    sent_bytes=totals.sent_bytes, received_bytes=totals.received_bytes
                ),
            )
            await asyncio.sleep(FIGURES_S)

    def _control(self, addresses: tuple[str, ...]) -> ControlClient:
        credentials = self._credentials
        limits = self._config.owner.limits
        return ControlClient(
            node_id=credentials.node_id,
            display_name=self._config.display_name or credentials.display_name,
            version=version("plait"),
            addresses=addresses,
            coordinator=credentials.node_address,
            open_channel=self._channel_to_coordinator,
            core=self._core,
            inbox=self._runtime,
            meter=self._meter,
            profile=SelfProfile(
                self._engine,
                perf_counter,
                up_bytes_per_s=limits.bytes_per_s(limits.up_mbit),
                down_bytes_per_s=limits.bytes_per_s(limits.down_mbit),
            ),
            probe=LinkProbe(self._channel_to_node, perf_counter, self._pace),
            writer=ReportWriter(self._incarnation),
            on_welcome=self._welcomed,
            progress=self._progress,
            rng=self._rng,
            now_s=perf_counter,
            time=self._time,
            cached=self._cached.spans,
            allows=partial(allows_model, limits),
        )

    def _held_model(self) -> ModelId | None:
        held = self._core.held
        return held.model_id if held is not None else None

    def _channel_to_node(self, address: str, node_id: NodeId) -> aio.Channel:
        return node_server.channel_to_node(
            address,
            node_id,
            current=self._papers.tls,
            ca_pem=self._credentials.ca_pem,
        )

    def _channel_to_coordinator(self) -> aio.Channel:
        return node_server.channel_to_coordinator(
            self._credentials.node_address,
            current=self._papers.tls,
            ca_pem=self._credentials.ca_pem,
        )

    def _welcomed(self, welcome: control_pb2.Welcome) -> None:
        refusal = weights_refusal(welcome, self._config.weights)
        if refusal is None:
            allowed = partial(allows_model, self._config.owner.limits)
            refusal = self._refuses(welcome_event(welcome, allowed).models)
        if refusal is not None:
            self.leave(Exit(WELCOME_REFUSED, refusal))
            return
        self._links.set_frame_bytes_max(frame_limit(welcome))
        self._telemetry.follow(welcome)
        self._weights.welcomed(welcome)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C leave in order; a second one of either leaves at once. After the
        operator's drain the first is the second."""
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            if self._pausing is not None:  # the pause's drain is in order too; then it ends
                self._pausing = None
                return
            if self._core.state in (NodeState.DRAINING, NodeState.GONE):
                os._exit(INTERRUPTED)
            self._runtime.post(StopAsked(name))

        handled = {signal.SIGTERM: "sigterm", signal.SIGINT: "sigint"}
        for number, name in handled.items():
            loop.add_signal_handler(number, stop, name)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


async def end(tasks: Sequence[asyncio.Task[None]], *, patience_s: float = PATIENCE_S) -> None:
    """Cancel until all have ended: a task group that fails in the very moment in which it is
    cancelled forgets the cancellation (Python before 3.13), and its task would go on for ever."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=patience_s)
