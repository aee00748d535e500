"""The control service on the node port: reports become events, effects become commands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from grpc import aio

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.ports import Inbox
from coordinator.shell.enrol import peer_host
from coordinator.shell.reports import (
    Attachment,
    attached,
    attachment_from_hello,
    command_from_effect,
    event_from_report,
)
from coordinator.shell.sessions import Admission, NodeSession, Pace, Sessions
from plait.clock import Clock, SystemClock
from plait.errors import (
    AuthenticationError,
    ConfigError,
    FrameError,
    OverloadedError,
    PlaitError,
)
from plait.log import get
from plait.types import ModelSource, ModelSpec, NodeId
from plait.wire import codec
from plait.wire.channel import FRAME_BYTES_MAX, peer_node_id
from plait.wire.status import abort_with
from plait.wire.v1 import control_pb2, control_pb2_grpc
from plait.wire.version import PROTOCOL_VERSION

PROTOCOL_VERSION_MIN: Final = 2
HEARTBEAT_MS: Final = 1_000
HELLO_S: Final = 10.0
WRITE_S: Final = 30.0
FRAMES_DROPPED_MAX: Final = 100
PROBE_BYTES_MAX: Final = 4 << 20
PREFILL_CHUNK_TOKENS: Final = 512
FRAME_SLACK_BYTES: Final = 64 << 10

log = get("control")
Context = aio.ServicerContext[control_pb2.NodeReport, control_pb2.NodeCommand]
RenewFunction = Callable[[NodeId, bytes, bytes], Awaitable[bytes]]
"""(node, csr_der, identity_signature) -> certificate chain PEM. Raises AuthenticationError."""
AdmitFunction = Callable[[NodeId], Awaitable[None]]
"""Called when a node attaches. Raises AuthenticationError for a banned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What every welcome says: the models, and where telemetry goes."""

    models: tuple[tuple[ModelSpec, ModelSource], ...]
    telemetry_url: str = ""
    telemetry_credentials: Callable[[NodeId], tuple[str, str]] | None = None
    telemetry_prefix: str = "plait"
    heartbeat_ms: int = HEARTBEAT_MS


def frame_bytes_max(specs: list[ModelSpec]) -> int:
    """The largest frame that a hop may carry: a prefill chunk of the widest model, in fp32."""
    widest = max((spec.hidden_size for spec in specs), default=0)
    return max(FRAME_BYTES_MAX, PREFILL_CHUNK_TOKENS * widest * 4 + FRAME_SLACK_BYTES)


def welcome_from_offer(
    offer: Offer, node_id: NodeId, *, unix_ms: int = 0
) -> control_pb2.NodeCommand:
    """The first command of a stream. `unix_ms` is the time by which tickets are dated."""
    username, password = "", ""
    if offer.telemetry_url and offer.telemetry_credentials is not None:
        username, password = offer.telemetry_credentials(node_id)
    return control_pb2.NodeCommand(
        welcome=control_pb2.Welcome(
            heartbeat_ms=offer.heartbeat_ms,
            models=[
                control_pb2.ModelOffer(
                    spec=codec.model_spec_to_proto(spec), source=codec.model_source_to_proto(source)
                )
                for spec, source in offer.models
            ],
            telemetry_url=offer.telemetry_url,
            telemetry_username=username,
            telemetry_password=password,
            telemetry_prefix=offer.telemetry_prefix,
            frame_bytes_max=frame_bytes_max([spec for spec, _ in offer.models]),
            unix_ms=unix_ms,
        )
    )


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Serves nodes, and performs the core's effects on them (`coordinator.ports.NodeActor`)."""

    def __init__(
        self,
        inbox: Inbox,
        offer: Offer,
        renew: RenewFunction,
        *,
        admit: AdmitFunction | None = None,
        hello_s: float = HELLO_S,
        clock: Clock | None = None,
    ) -> None:
        self._inbox = inbox
        self._offer = offer
        self._renew = renew
        self._admit_node = admit
        self._hello_s = hello_s
        self._clock = clock if clock is not None else SystemClock()
        self._sessions = Sessions(self._clock)
        self.num_reports_dropped = 0

    # --- effects ------------------------------------------------------------------------------

    def perform_node(self, effect: fx.NodeEffect) -> None:
        """Queue the command, or drop it where that incarnation's stream is gone: its detachment is
        on its way to the core."""
        session = self._sessions.current(effect.node_id)
        if session is None or session.who.incarnation != effect.incarnation:
            log.debug("effect_without_node", node_id=effect.node_id, effect=type(effect).__name__)
            return
        command = command_from_effect(effect)
        if isinstance(effect, fx.EvictNode):
            log.info("node_evicted", node_id=effect.node_id, reason=effect.reason.code)
            session.end(command)
        elif not session.send(command):
            log.warning("node_reads_too_slowly", node_id=effect.node_id)

    def addresses(self) -> dict[NodeId, tuple[str, ...]]:
        """Of the nodes that are attached: where neighbours dial them."""
        return {s.who.node_id: s.who.addresses for s in self._sessions.all()}

    def close_all(self) -> None:
        """End every stream, without a word: an eviction would end what runs on the nodes. They go
        on and come back."""
        for session in self._sessions.all():
            session.end(None)

    # --- calls --------------------------------------------------------------------------------

    async def Attach(  # type: ignore[override]  # noqa: N802 - a coroutine, to bound each write
        self, _: object, context: Context
    ) -> None:
        """One node, as long as its stream lives."""
        node_id = await _identity(context)
        try:
            if self._admit_node is not None:
                await self._admit_node(node_id)
            hello = await self._hello(context)
            who = attachment_from_hello(
                node_id, hello.incarnation, hello.hello, host=peer_host(context.peer())
            )
            event = attached(who, hello.hello)
        except PlaitError as error:
            log.info("hello_refused", node_id=node_id, reason=error.code)
            await abort_with(context, error)
        session = NodeSession(who)
        admission = self._admit(session)
        if admission is not Admission.ADMITTED:
            await context.write(_turn_away(admission))
            return
        try:
            now_unix_ms = self._clock.unix_ms()
            await context.write(welcome_from_offer(self._offer, node_id, unix_ms=now_unix_ms))
            self._inbox.post(event)
            log.info("node_attached", node_id=node_id, name=who.display_name)
            await self._serve(session, context)
        except PlaitError as error:
            await abort_with(context, error)
        finally:
            if self._sessions.remove(session):
                self._detach(who)

    async def Probe(  # noqa: N802
        self, request: control_pb2.ProbeRequest, context: Context
    ) -> control_pb2.ProbeResponse:
        """Echo as many bytes as are asked for."""
        await _identity(context)
        return control_pb2.ProbeResponse(
            padding=bytes(min(request.response_bytes, PROBE_BYTES_MAX))
        )

    async def Renew(  # noqa: N802
        self, request: control_pb2.RenewRequest, context: Context
    ) -> control_pb2.RenewResponse:
        """A fresh certificate for the same identity."""
        node_id = await _identity(context)
        try:
            chain = await self._renew(node_id, request.csr_der, request.identity_signature)
        except PlaitError as error:
            log.info("renewal_refused", node_id=node_id, reason=error.code)
            await abort_with(context, error)
        return control_pb2.RenewResponse(certificate_chain_pem=chain)

    # --- inside -------------------------------------------------------------------------------

    async def _hello(self, context: Context) -> control_pb2.NodeReport:
        try:
            async with asyncio.timeout(self._hello_s):
                report = await context.read()
        except TimeoutError:
            message = f"no hello within {self._hello_s:.0f} s"
            raise FrameError(message, reason="hello_missing") from None
        if _is_eof(report) or report.WhichOneof("report") != "hello":
            raise FrameError("the first report must be a hello", reason="hello_missing")
        version = report.hello.protocol_version
        if not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION:
            raise ConfigError(
                f"this node speaks protocol {version}, this network {PROTOCOL_VERSION_MIN} to "
                f"{PROTOCOL_VERSION}: on the older of the two machines, bring plait's folder up "
                "to date and run pip install . in it",
                reason="incompatible",
            )
        return report

    def _admit(self, session: NodeSession) -> Admission:
        admission, old = self._sessions.admit(session)
        if admission is not Admission.ADMITTED:
            log.warning("node_turned_away", node_id=session.who.node_id, reason=admission)
        if old is not None:
            log.info("node_replaced", node_id=session.who.node_id)
            old.end(_turn_away(Admission.OLDER if admission is Admission.ADMITTED else admission))
            self._detach(old.who)
        return admission

    def _detach(self, who: Attachment) -> None:
        log.info("node_detached", node_id=who.node_id)
        self._inbox.post(ev.NodeDetached(node_id=who.node_id, incarnation=who.incarnation))

    async def _serve(self, session: NodeSession, context: Context) -> None:
        """Until either end closes: the reader's end ends the writer, and the other way round."""
        reader = asyncio.create_task(self._read(session, context))
        writer = asyncio.create_task(_write(session, context))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
        for result in results:
            if isinstance(result, PlaitError):
                raise result

    async def _read(self, session: NodeSession, context: Context) -> None:
        num_dropped, pace = 0, Pace()
        while not _is_eof(report := await context.read()):
            if session.is_ending:
                continue
            delay_ms = pace.delay_ms(self._clock.monotonic_ms())
            if delay_ms:
                await asyncio.sleep(delay_ms / 1_000)  # unread, so the flood stays at its sender
            try:
                self._take(session.who, report)
            except FrameError as error:
                num_dropped += 1
                self.num_reports_dropped += 1
                log.info("report_dropped", node_id=session.who.node_id, reason=error.code)
                if num_dropped > FRAMES_DROPPED_MAX:
                    raise

    def _take(self, who: Attachment, report: control_pb2.NodeReport) -> None:
        if report.incarnation != who.incarnation:
            raise FrameError("a report of another incarnation", reason="incarnation_foreign")
        event = event_from_report(who, report)
        if event is None:
            return
        try:
            self._inbox.post(event)
        except OverloadedError:
            if not isinstance(event, ev.NodeReported | ev.NodeLoadProgressed):
                raise


def _is_eof(report: object) -> bool:
    return report is aio.EOF


async def _write(session: NodeSession, context: Context) -> None:
    while (command := await session.next_command()) is not None:
        async with asyncio.timeout(WRITE_S):
            await context.write(command)


async def _identity(context: Context) -> NodeId:
    node_id = peer_node_id(context)
    if node_id is None:
        await abort_with(context, AuthenticationError("the certificate names no node"))
    return node_id


def _evict(reason: str, message: str, *, may_rejoin: bool) -> control_pb2.NodeCommand:
    evict = control_pb2.Evict(reason=reason, message=message, may_rejoin=may_rejoin)
    return control_pb2.NodeCommand(evict=evict)


def _turn_away(admission: Admission) -> control_pb2.NodeCommand:
    message = "another process with this node's identity connected later; one identity serves once"
    if admission is Admission.SUSPENDED:
        message = (
            "two processes take this node's identity from each other, so neither serves for ten "
            "minutes: stop one, or give it an identity of its own (its own --home and token)"
        )
    return _evict(str(admission), message, may_rejoin=False)
