"""What a node says and hears on its control stream, as messages."""

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from node.core import effects as ef
from node.core import events as ev
from node.core.machines import NodeState
from plait.errors import FrameError
from plait.models.formats import suits
from plait.types import (
    CachedSpan,
    HeldSpan,
    ModelId,
    NodeId,
    NodeLoad,
    NodeProfile,
    Reason,
    WeightFormat,
)
from plait.wire.channel import FRAME_BYTES_MAX
from plait.wire.codec import (
    cached_span_to_proto,
    held_span_to_proto,
    load_to_proto,
    model_source_from_proto,
    model_spec_from_proto,
    profile_to_proto,
    reason_to_proto,
    span_from_proto,
)
from plait.wire.v1 import common_pb2, control_pb2
from plait.wire.version import PROTOCOL_VERSION

_STATES: Final = {
    NodeState.JOINING: common_pb2.NODE_STATE_JOINING,
    NodeState.LOADING: common_pb2.NODE_STATE_LOADING,
    NodeState.SERVING: common_pb2.NODE_STATE_SERVING,
    NodeState.DRAINING: common_pb2.NODE_STATE_DRAINING,
    NodeState.GONE: common_pb2.NODE_STATE_GONE,
}


class ReportWriter:
    """Stamps every report with the incarnation."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    def hello(
        self,
        *,
        version: str,
        display_name: str,
        addresses: tuple[str, ...],
        held: HeldSpan | None,
        cached: Sequence[CachedSpan] = (),
        paused: str = "",
    ) -> control_pb2.NodeReport:
        hello = control_pb2.Hello(
            software_version=version,
            protocol_version=PROTOCOL_VERSION,
            display_name=display_name,
            addresses=addresses,
            held=held_span_to_proto(held) if held is not None else None,
            reuses_prefixes=True,
            cached=[cached_span_to_proto(span) for span in cached],
            paused=paused,
        )
        return control_pb2.NodeReport(incarnation=self._incarnation, hello=hello)

    def profiled(self, profile: NodeProfile) -> control_pb2.NodeReport:
        return control_pb2.NodeReport(
            incarnation=self._incarnation, profiled=profile_to_proto(profile)
        )

    def heartbeat(self, state: NodeState, load: NodeLoad) -> control_pb2.NodeReport:
        heartbeat = load_to_proto(load)
        heartbeat.state = _STATES[state]
        return control_pb2.NodeReport(incarnation=self._incarnation, heartbeat=heartbeat)

    def progress(
        self, allocation_epoch: int, phase: str, done_bytes: int, total_bytes: int
    ) -> control_pb2.NodeReport:
        progress = control_pb2.LoadProgress(
            allocation_epoch=allocation_epoch,
            phase=phase,
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )
        return control_pb2.NodeReport(incarnation=self._incarnation, load_progress=progress)

    def neighbour(
        self, neighbour_id: NodeId, measured: tuple[float, float] | None
    ) -> control_pb2.NodeReport:
        """`measured` is (rtt_ms, bytes_per_s); None: not reachable from here."""
        rtt_ms, bytes_per_s = measured if measured is not None else (0.0, 0.0)
        message = control_pb2.NeighbourMeasured(
            node_id=neighbour_id,
            rtt_ms=rtt_ms,
            bytes_per_s=bytes_per_s,
            reachable=measured is not None,
        )
        return control_pb2.NodeReport(incarnation=self._incarnation, neighbour_measured=message)

    def effect(self, effect: ef.ReportEffect) -> control_pb2.NodeReport:
        report = control_pb2.NodeReport(incarnation=self._incarnation)
        match effect:
            case ef.ReportSpanLoaded():
                report.span_loaded.held.CopyFrom(held_span_to_proto(effect.held))
            case ef.ReportLoadFailed():
                report.load_failed.allocation_epoch = effect.allocation_epoch
                report.load_failed.status.CopyFrom(reason_to_proto(effect.reason, int(effect.code)))
            case ef.ReportHopBroken():
                report.hop_broken.node_id = effect.neighbour_id
                report.hop_broken.reason = effect.reason
            case ef.ReportDrainAsked():
                report.drain_asked.reason = effect.reason
                report.drain_asked.limit_ms = effect.limit_ms
            case ef.ReportDrained():
                report.drained.SetInParent()
            case _:
                assert_never(effect)
        return report


def welcome_event(
    welcome: control_pb2.Welcome, allows: Callable[[str], bool] = lambda _: True
) -> ev.ControlAttached:
    """Models that this version does not know, or that the owner does not allow, are left out: the
    node may still hold the others."""
    models = []
    for offer in welcome.models:
        if not allows(offer.spec.model_id):
            continue
        try:
            spec, source = model_spec_from_proto(offer.spec), model_source_from_proto(offer.source)
        except FrameError:
            continue
        models.append(ev.ModelOffered(spec, source))
    return ev.ControlAttached(models=tuple(models), frame_bytes_max=frame_limit(welcome))


def weights_refusal(welcome: control_pb2.Welcome, weights: str) -> Reason | None:
    """Why an owner who asked for `weights` does not serve this network; None where all its models
    are in such numbers. Every node of a network computes with the same ones, so that a request may
    go on elsewhere and get the same tokens."""
    for offer in welcome.models:
        word = offer.spec.weight_format or WeightFormat.NATIVE
        if word not in tuple(WeightFormat) or not suits(weights, WeightFormat(word)):
            return Reason(
                code="weights_refused",
                message=f"this network serves {offer.spec.model_id} as {word}, this node was told "
                f"--weights {weights}: join with --weights auto",
            )
    return None


def frame_limit(welcome: control_pb2.Welcome) -> int:
    """Largest frame on a hop, in bytes; the default where the coordinator says none."""
    return welcome.frame_bytes_max or FRAME_BYTES_MAX


def command_event(command: control_pb2.NodeCommand) -> ev.LifecycleEvent | None:
    """The event in a command; None for those that are not the core's. Raises FrameError."""
    match command.WhichOneof("command"):
        case "assign_span":
            assign = command.assign_span
            return ev.SpanAssigned(
                allocation_epoch=assign.allocation_epoch,
                model_id=ModelId(assign.model_id),
                span=span_from_proto(assign.span),
                kv_tokens_min=assign.kv_tokens_min,
                reason=assign.reason,
            )
        case "unassign_span":
            return ev.SpanUnassigned(command.unassign_span.allocation_epoch)
        case "drain":
            return ev.DrainOrdered(command.drain.limit_ms)
        case "evict":
            evict = command.evict
            reason = Reason(code=evict.reason or "evicted", message=evict.message)
            return ev.Evicted(reason=reason, may_rejoin=evict.may_rejoin)
        case _:
            return None
