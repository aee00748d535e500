"""What nodes say as events, what the core orders as commands. Pure: no socket, no clock."""

from dataclasses import dataclass
from typing import Final, assert_never

from coordinator.core import effects as fx
from coordinator.core import events as ev
from plait.errors import FrameError
from plait.types import NodeId
from plait.wire import codec
from plait.wire.v1 import control_pb2

ADDRESSES_MAX: Final = 8
NAME_CHARS_MAX: Final = 64
CACHED_MAX: Final = 64
PAUSED_CHARS_MAX: Final = 160
DRAIN_LIMIT_MS: Final = 10_000
DRAIN_LIMIT_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Who is at the other end of a control stream; the identity is the certificate's."""

    node_id: NodeId
    incarnation: int
    display_name: str
    addresses: tuple[str, ...]


def attachment_from_hello(
    node_id: NodeId, incarnation: int, hello: control_pb2.Hello, *, host: str
) -> Attachment:
    """`host` (where the node dialled from) fills in addresses that name a port only.

    Raises FrameError for an address that cannot be dialled or an incarnation of 0.
    """
    if incarnation < 1:
        raise FrameError("the hello has no incarnation", reason="hello_invalid")
    if len(hello.addresses) > ADDRESSES_MAX:
        raise FrameError(f"more than {ADDRESSES_MAX} addresses", reason="hello_invalid")
    return Attachment(
        node_id=node_id,
        incarnation=incarnation,
        display_name=_clean(hello.display_name) or node_id,
        addresses=tuple(_address(given, host) for given in hello.addresses),
    )


def attached(who: Attachment, hello: control_pb2.Hello) -> ev.NodeAttached:
    """The event of a hello. Raises FrameError for a nonsensical held span."""
    return ev.NodeAttached(
        node_id=who.node_id,
        incarnation=who.incarnation,
        display_name=who.display_name,
        addresses=who.addresses,
        held=codec.held_span_from_proto(hello.held) if hello.HasField("held") else None,
        reuses_prefixes=hello.reuses_prefixes,
        cached=tuple(codec.cached_span_from_proto(c) for c in hello.cached[:CACHED_MAX]),
        paused=_clean(hello.paused, PAUSED_CHARS_MAX),
    )


def event_from_report(who: Attachment, report: control_pb2.NodeReport) -> ev.Event | None:
    """The event behind a report after the hello; None for a report of a newer protocol.

    Raises FrameError for nonsense.
    """
    ids = _Ids(who.node_id, who.incarnation)
    match report.WhichOneof("report"):
        case "profiled":
            return ev.NodeProfiled(
                profile=codec.profile_from_proto(
                    report.profiled,
                    node_id=who.node_id,
                    display_name=who.display_name,
                    addresses=who.addresses,
                ),
                incarnation=who.incarnation,
            )
        case "heartbeat":
            load = codec.load_from_proto(report.heartbeat)
            return ev.NodeReported(node_id=ids.node, incarnation=ids.incarnation, load=load)
        case "load_progress" | "span_loaded" | "load_failed":
            return _loading(ids, report)
        case "drained":
            return ev.NodeDrained(node_id=ids.node, incarnation=ids.incarnation)
        case "drain_asked":
            return ev.NodeDrainAsked(
                node_id=ids.node,
                incarnation=ids.incarnation,
                reason=_clean(report.drain_asked.reason, PAUSED_CHARS_MAX) or "asked",
                limit_ms=min(report.drain_asked.limit_ms or DRAIN_LIMIT_MS, DRAIN_LIMIT_MS_MAX),
            )
        case "neighbour_measured":
            return _neighbour(ids, report.neighbour_measured)
        case "hop_broken":
            return ev.HopBroke(
                node_id=ids.node,
                neighbour_id=NodeId(report.hop_broken.node_id),
                reason=_clean(report.hop_broken.reason),
            )
        case "hello":
            raise FrameError("a second hello on one stream", reason="hello_repeated")
        case _:
            return None


def command_from_effect(effect: fx.NodeEffect) -> control_pb2.NodeCommand:
    """The command that performs an effect."""
    match effect:
        case fx.AssignSpan():
            return control_pb2.NodeCommand(
                assign_span=control_pb2.AssignSpan(
                    allocation_epoch=effect.epoch,
                    model_id=effect.model_id,
                    span=codec.span_to_proto(effect.span),
                    kv_tokens_min=effect.kv_tokens_min,
                    reason=effect.reason,
                )
            )
        case fx.UnassignSpan():
            unassign = control_pb2.UnassignSpan(allocation_epoch=effect.epoch)
            return control_pb2.NodeCommand(unassign_span=unassign)
        case fx.DrainNode():
            return control_pb2.NodeCommand(drain=control_pb2.Drain(limit_ms=effect.limit_ms))
        case fx.EvictNode():
            return control_pb2.NodeCommand(
                evict=control_pb2.Evict(
                    reason=effect.reason.code,
                    message=effect.reason.message,
                    may_rejoin=effect.may_rejoin,
                )
            )
        case fx.ProbeNeighbours():
            return control_pb2.NodeCommand(
                probe_neighbours=control_pb2.ProbeNeighbours(
                    neighbours=[
                        control_pb2.NeighbourAddress(node_id=node_id, addresses=addresses)
                        for node_id, addresses in effect.neighbours
                    ]
                )
            )
        case _:
            assert_never(effect)


@dataclass(frozen=True, slots=True)
class _Ids:
    node: NodeId
    incarnation: int


def _loading(ids: _Ids, report: control_pb2.NodeReport) -> ev.Event:
    if report.WhichOneof("report") == "load_progress":
        progress = report.load_progress
        return ev.NodeLoadProgressed(
            node_id=ids.node,
            incarnation=ids.incarnation,
            epoch=progress.allocation_epoch,
            phase=_clean(progress.phase),
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
        )
    if report.WhichOneof("report") == "span_loaded":
        held = codec.held_span_from_proto(report.span_loaded.held)
        return ev.NodeLoaded(node_id=ids.node, incarnation=ids.incarnation, held=held)
    return ev.NodeLoadFailed(
        node_id=ids.node,
        incarnation=ids.incarnation,
        epoch=report.load_failed.allocation_epoch,
        reason=codec.reason_from_proto(report.load_failed.status),
    )


def _neighbour(ids: _Ids, measured: control_pb2.NeighbourMeasured) -> ev.NeighbourMeasured:
    if not (0 <= measured.rtt_ms < 1e7 and 0 <= measured.bytes_per_s < 1e13):
        raise FrameError("a link's measure is out of range", reason="measurement_invalid")
    return ev.NeighbourMeasured(
        node_id=ids.node,
        neighbour_id=NodeId(measured.node_id),
        rtt_ms=measured.rtt_ms,
        bytes_per_s=measured.bytes_per_s,
        is_reachable=measured.reachable,
    )


def _address(given: str, host: str) -> str:
    name, _, port = given.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536 or len(given) > 255:
        raise FrameError(f"not an address: {given[:64]!r}", reason="hello_invalid")
    if name in ("", "0.0.0.0", "[::]"):
        return f"{host}:{port}"
    return given


def _clean(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """Printable, and short enough for a table: these strings reach operators' terminals."""
    return "".join(c for c in text if c.isprintable())[:chars_max].strip()
