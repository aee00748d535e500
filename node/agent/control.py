"""The control stream: the node dials, says hello, and obeys. Open requests outlive it."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import grpc
from grpc import aio

from node.agent.meter import NodeMeter
from node.agent.network_time import NetworkTime
from node.agent.profile import SelfProfile
from node.agent.punctual import Punctuality
from node.agent.reports import ReportWriter, command_event, welcome_event
from node.backoff import Backoff
from node.core import NodeCore
from node.core import effects as ef
from node.core import events as ev
from node.core.machines import NodeState
from node.ports import Inbox, NeighbourProbe, NodePhase, Progress, ProgressSink
from plait import log
from plait.crypto.tickets import SKEW_MS
from plait.errors import FrameError, PlaitError, ServiceError, UnavailableError
from plait.types import CachedSpan, ModelId, NodeId, Reason
from plait.wire.status import error_from_rpc
from plait.wire.v1 import control_pb2, control_pb2_grpc

CONNECT_S: Final = 10.0
WRITE_S: Final = 30.0
QUEUE_MAX: Final = 1_024
PROGRESS_STEP: Final = 0.02
HEARTBEAT_MS: Final = (100, 60_000)
_LEAVING: Final = frozenset({NodeState.DRAINING, NodeState.GONE})
_FINAL_CODES: Final = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_log = log.get("control")


class ControlClient:
    """Keeps the node attached. A `node.ports.Reporter`; `run` until cancelled."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        display_name: str,
        version: str,
        addresses: tuple[str, ...],
        coordinator: str,
        open_channel: Callable[[], aio.Channel],
        core: NodeCore,
        inbox: Inbox,
        meter: NodeMeter,
        profile: SelfProfile,
        probe: NeighbourProbe,
        writer: ReportWriter,
        on_welcome: Callable[[control_pb2.Welcome], None],
        progress: ProgressSink,
        rng: random.Random,
        now_s: Callable[[], float],
        time: NetworkTime,
        cached: Callable[[], Sequence[CachedSpan]] = tuple,
        allows: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._node_id = node_id
        self._display_name = display_name
        self._version = version
        self._addresses = addresses
        self._coordinator = coordinator
        self._open_channel = open_channel
        self._core = core
        self._inbox = inbox
        self._meter = meter
        self._profile = profile
        self._probe = probe
        self._writer = writer
        self._on_welcome = on_welcome
        self._progress = progress
        self._time = time
        self._cached = cached
        self._allows = allows
        self._backoff = Backoff(rng)
        self._punctuality = Punctuality(now_s)
        self._queue: deque[control_pb2.NodeReport] = deque()
        self._wake = asyncio.Event()
        self._progress_said: tuple[int, str, float] = (0, "", 0.0)
        self._refused: tuple[ModelId, ...] = ()
        self.is_attached = False

    # What the core has to say

    def report(self, effect: ef.ReportEffect) -> None:
        """Queue a report. While detached it is dropped: the next hello says how things are."""
        self._tell_owner(effect)
        self._put(self._writer.effect(effect))

    def report_progress(self, allocation_epoch: int, phase: str, done: int, total: int) -> None:
        """Queue progress, at most one report per step of it."""
        share = done / total if total > 0 else 0.0
        said_epoch, said_phase, said_share = self._progress_said
        is_new = (said_epoch, said_phase) != (allocation_epoch, phase)
        if not (is_new or share - said_share >= PROGRESS_STEP or share >= 1.0 > said_share):
            return
        self._progress_said = (allocation_epoch, phase, share)
        detail = phase if " " in phase else f"{phase} layers"
        self._progress(Progress(phase=NodePhase.LOADING, detail=detail, done=share))
        self._put(self._writer.progress(allocation_epoch, phase, done, total))

    def _tell_owner(self, effect: ef.ReportEffect) -> None:
        match effect:
            case ef.ReportSpanLoaded():
                held = effect.held
                self._say(NodePhase.SERVING, f"layers {held.span} of {held.model_id}")
            case ef.ReportLoadFailed():
                self._say(NodePhase.WAITING, f"could not load: {effect.reason.message}")
            case ef.ReportDrainAsked():
                self._say(NodePhase.DRAINING, "finishing what runs")
            case ef.ReportDrained():
                self._say(NodePhase.LEFT, "everything that ran has ended")
            case ef.ReportHopBroken():
                pass

    def _say(self, phase: NodePhase, detail: str) -> None:
        self._progress(Progress(phase=phase, detail=detail))

    def _put(self, report: control_pb2.NodeReport) -> None:
        if self.is_attached and len(self._queue) < QUEUE_MAX:
            self._queue.append(report)
            self._wake.set()

    async def flush(self) -> None:
        """Until everything queued is on its way; the caller bounds the wait."""
        while self.is_attached and self._queue:  # noqa: ASYNC110 - only at the end of a life
            await asyncio.sleep(0.01)

    # The stream

    async def run(self) -> None:
        """Attach, and attach again, until cancelled."""
        while True:
            self._say(NodePhase.CONNECTING, self._coordinator)
            reason = await self._attach_once()
            if self.is_attached:
                self.is_attached = False
                self._queue.clear()
                self._inbox.post(ev.ControlDetached())
            wait_s = self._backoff.next_s()
            if self._core.state is not NodeState.GONE:
                _log.info("control_down", reason=reason, retry_s=round(wait_s, 2))
                self._say(NodePhase.OFFLINE, f"{self._coordinator}: {reason}; trying again")
            await asyncio.sleep(wait_s)

    async def _attach_once(self) -> str:
        """One stream, from connect to its end; returns why it ended."""
        channel = self._open_channel()
        try:
            call = control_pb2_grpc.ControlServiceStub(channel).Attach()
            asked_ms = self._time.monotonic_ms()
            async with asyncio.timeout(CONNECT_S):
                await call.write(
                    self._writer.hello(
                        version=self._version,
                        display_name=self._display_name,
                        addresses=self._addresses,
                        held=self._core.held if self._core.state is NodeState.SERVING else None,
                        cached=self._cached(),
                    )
                )
                welcome = self._welcome(await call.read())
            self._hear_time(welcome.unix_ms, trip_ms=self._time.monotonic_ms() - asked_ms)
            self.is_attached = True
            self._backoff.reset()
            await self._serve(call, channel, welcome)
        except TimeoutError:
            return f"{self._coordinator} did not answer within {CONNECT_S:g} s"
        except (asyncio.InvalidStateError, aio.UsageError):
            return "the call had ended"
        except aio.AioRpcError as error:
            return self._failed(error)
        except PlaitError as error:
            return error.message
        finally:
            await channel.close()
        return "the coordinator closed the stream"

    def _hear_time(self, unix_ms: int, *, trip_ms: int) -> None:
        ahead_ms = self._time.heard(unix_ms, trip_ms=trip_ms)
        if abs(ahead_ms) > SKEW_MS:
            way = "ahead of" if ahead_ms > 0 else "behind"
            _log.warning(
                "clock_off",
                message=f"this machine's clock is {abs(ahead_ms) // 1000} s {way} the "
                "coordinator's: tickets are checked by the coordinator's; set the clock",
            )

    def _failed(self, rpc_error: aio.AioRpcError) -> str:
        """A refusal is for good; anything else is tried again."""
        error = error_from_rpc(rpc_error)
        if rpc_error.code() in _FINAL_CODES:
            reason = Reason(code=error.code, message=error.message)
            self._inbox.post(ev.Evicted(reason=reason, may_rejoin=False))
        return error.message

    def _welcome(self, command: object) -> control_pb2.Welcome:
        if not isinstance(command, control_pb2.NodeCommand):
            raise UnavailableError("the coordinator closed the stream")
        if command.WhichOneof("command") == "evict":
            self._take(command)
        if command.WhichOneof("command") != "welcome":
            raise UnavailableError("the coordinator did not say welcome")
        return command.welcome

    async def _serve(
        self,
        call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]",
        channel: aio.Channel,
        welcome: control_pb2.Welcome,
    ) -> None:
        attached = welcome_event(welcome, self._allows)
        offered = [offer.spec.model_id for offer in welcome.models]
        self._refused = tuple(ModelId(name) for name in offered if not self._allows(name))
        _log.info("attached", coordinator=self._coordinator, num_models=len(attached.models))
        self._inbox.post(attached)
        self._on_welcome(welcome)
        end: BaseException = UnavailableError("the call has ended")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(call))
                group.create_task(self._punctuality.run())
                group.create_task(self._beat(welcome.heartbeat_ms))
                group.create_task(self._measure(attached, channel))
                group.create_task(self._read(call, group))
        except* (asyncio.InvalidStateError, aio.UsageError, TimeoutError):
            pass
        except* PlaitError as ended:
            end = _first(ended)
        except* aio.AioRpcError as failed:
            end = _first(failed)
        raise end

    async def _read(
        self,
        call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]",
        group: asyncio.TaskGroup,
    ) -> None:
        while isinstance(command := await call.read(), control_pb2.NodeCommand):
            if command.WhichOneof("command") == "probe_neighbours":
                neighbours = list(command.probe_neighbours.neighbours)
                group.create_task(self._probe_neighbours(neighbours))
            else:
                self._take(command)
        raise UnavailableError("the coordinator closed the stream")

    def _take(self, command: control_pb2.NodeCommand) -> None:
        try:
            event = command_event(command)
        except FrameError as error:
            _log.warning("command_refused", reason=error.code)
            return
        if event is None:
            return
        if isinstance(event, ev.SpanAssigned):
            why = f" ({event.reason})" if event.reason else ""
            detail = f"layers {event.span} of {event.model_id}{why}"
            self._say(NodePhase.ASSIGNED, detail)
        elif isinstance(event, ev.SpanUnassigned):
            self._say(NodePhase.STANDBY, "the plan needs no layers here")
        elif isinstance(event, ev.DrainOrdered) and self._core.state not in _LEAVING:
            self._say(NodePhase.DRAINING, "the coordinator takes this node out")
        self._inbox.post(event)

    async def _write(
        self, call: "aio.StreamStreamCall[control_pb2.NodeReport, control_pb2.NodeCommand]"
    ) -> None:
        queue, wake = self._queue, self._wake
        while True:
            while queue:
                async with asyncio.timeout(WRITE_S):
                    await call.write(queue[0])
                queue.popleft()
            wake.clear()
            await wake.wait()

    async def _beat(self, heartbeat_ms: int) -> None:
        low, high = HEARTBEAT_MS
        interval_s = min(max(heartbeat_ms, low), high) / 1e3
        while True:
            load = replace(self._meter.load(), held_up_ms=self._punctuality.take_ms())
            self._put(self._writer.heartbeat(self._core.state, load))
            await asyncio.sleep(interval_s)

    async def _measure(self, attached: ev.ControlAttached, channel: aio.Channel) -> None:
        names = ", ".join(offer.spec.model_id for offer in attached.models)
        self._say(NodePhase.MEASURING, f"this machine with {names or 'no model'}")
        profile = await self._profile.measure(
            [offer.spec for offer in attached.models],
            channel,
            node_id=self._node_id,
            display_name=self._display_name,
            addresses=self._addresses,
        )
        self._put(self._writer.profiled(replace(profile, refused_models=self._refused)))
        _log.info(
            "profiled",
            device=profile.device_name,
            memory_gib=round(profile.memory_bytes / 2**30, 2),
            rtt_ms=round(profile.coordinator_rtt_ms, 2),
        )
        held = self._core.held
        if held is not None and self._core.state is NodeState.SERVING:
            self._say(NodePhase.SERVING, f"layers {held.span} of {held.model_id}")
        elif self._core.state is NodeState.JOINING:
            self._say(NodePhase.STANDBY, self._standby())

    def _standby(self) -> str:
        if not self._refused:
            return "measured; the plan decides"
        return f"measured; the plan decides, without {', '.join(self._refused)} (models_allow)"

    async def _probe_neighbours(self, neighbours: list[control_pb2.NeighbourAddress]) -> None:
        for neighbour in neighbours:
            neighbour_id = NodeId(neighbour.node_id)
            measured = None
            try:
                measured = await self._probe.probe(neighbour_id, tuple(neighbour.addresses))
            except ServiceError as error:
                _log.info("neighbour_unreachable", neighbour=neighbour_id, reason=error.message)
            self._put(self._writer.neighbour(neighbour_id, measured))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
