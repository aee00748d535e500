"""Bytes of a LinkFrame or a GatewayToNode -> the core's events. Trusts nothing that it reads."""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from node.core import events as ev
from node.core.messages import Activations, Broken, PrefixShort, StageOpen, StatusCode, Token
from node.ports import TicketCheck
from plait.clock import Clock
from plait.errors import FrameError, OverloadedError, PeerError, PlaitError, TicketError
from plait.prefixes import BLOCK_TOKENS, NAME_BYTES, NAMED_BLOCKS_MAX, reusable_blocks
from plait.types import DType, FinishReason, ModelId, NodeId, Reason, RequestId, RouteTicket
from plait.wire.codec import (
    dtype_from_proto,
    finish_reason_from_proto,
    reason_from_proto,
)
from plait.wire.sampling import sampling_from_proto
from plait.wire.tickets import decode_payload
from plait.wire.v1 import data_pb2

STOP_TOKENS_MAX: Final = 1_024
PENALTY_IDS_MAX: Final = 262_144
REQUEST_ID_CHARS_MAX: Final = 64


class FrameReader:
    """Makes events of what neighbours and the gateway say; checks every Open's ticket, once."""

    def __init__(
        self,
        *,
        tickets: TicketCheck,
        clock: Clock,
        incarnation: int,
        held_model: Callable[[], ModelId | None],
    ) -> None:
        self._tickets = tickets
        self._clock = clock
        self._incarnation = incarnation
        self._held_model = held_model

    def link_event(self, sender: NodeId, frame: data_pb2.LinkFrame) -> ev.DataEvent:
        """The event in a frame that is not flow control."""
        kind = frame.WhichOneof("body")
        if kind == "activations":
            return _activations(sender, frame.activations)
        if kind == "token":
            return ev.TokenReceived(sender, _token(frame.token))
        if kind == "open":
            opened = self._open(sender, frame.open)
            return opened if isinstance(opened, ev.OpenRefused) else ev.OpenReceived(sender, opened)
        if kind == "close":
            return _close(sender, frame.close)
        if kind == "broken":
            return ev.BrokenReceived(sender, _broken(frame.broken))
        if kind == "prefix_short":
            return ev.PrefixShortReceived(sender, _prefix_short(frame.prefix_short))
        return rejected(sender, "frame_empty", "a frame without a known body")

    def gateway_event(self, data: bytes) -> ev.DataEvent:
        """The event in a message from the gateway."""
        try:
            message = data_pb2.GatewayToNode.FromString(data)
        except DecodeError:
            return rejected(None, "frame_malformed", "a message of the gateway cannot be read")
        kind = message.WhichOneof("body")
        if kind == "start":
            opened = self._open(None, message.start.open)
            if isinstance(opened, ev.OpenRefused):
                return opened
            prompt = tuple(message.start.prompt_token_ids)
            return ev.RequestStarted(open=opened, prompt_token_ids=prompt)
        if kind == "close":
            return _close(None, message.close)
        return rejected(None, "frame_empty", "a message of the gateway without a known body")

    def _open(self, sender: NodeId | None, message: data_pb2.Open) -> StageOpen | ev.OpenRefused:
        try:
            ticket = self._tickets.verify(
                message.ticket,
                stage_index=message.stage_index,
                held_model=self._held_model(),
                sender_node_id=sender,
                incarnation=self._incarnation,
            )
            return self._stage_open(ticket, message)
        except (PeerError, OverloadedError) as error:
            return _refused(sender, message, error)

    def _stage_open(self, ticket: RouteTicket, message: data_pb2.Open) -> StageOpen:
        penalty_ids = len(message.penalty_prompt_ids) + len(message.penalty_generated_ids)
        if len(message.stop_token_ids) > STOP_TOKENS_MAX or penalty_ids > PENALTY_IDS_MAX:
            raise FrameError("more stop or penalty ids than allowed", reason="open_invalid")
        if len(ticket.request_id) > REQUEST_ID_CHARS_MAX:
            raise FrameError("the request's id is too long", reason="open_invalid")
        if not 0 <= message.stage_index < len(ticket.stages):
            raise TicketError(
                f"the ticket has no stage {message.stage_index}", reason="ticket_wrong_hop"
            )
        return StageOpen(
            request_id=ticket.request_id,
            epoch=ticket.epoch,
            ticket=(message.ticket.payload, message.ticket.signature),
            valid_ms=max(0, ticket.expires_unix_ms - self._clock.unix_ms()),
            model_id=ticket.model_id,
            stages=ticket.stages,
            stage_index=message.stage_index,
            kv_tokens=ticket.kv_tokens,
            wire_dtype=ticket.wire_dtype,
            hop_dtypes=_hop_dtypes(ticket),
            sampling=sampling_from_proto(message.sampling),
            stop_token_ids=tuple(message.stop_token_ids),
            max_new_tokens=message.max_new_tokens,
            prompt_tokens=message.prompt_tokens,
            penalty_prompt_ids=tuple(message.penalty_prompt_ids),
            penalty_generated_ids=tuple(message.penalty_generated_ids),
            trace_id=message.trace_id,
            cache_salt=ticket.cache_salt,
            admission=ticket.admission,
            block_names=_block_names(message),
            cached_blocks=message.cached_blocks,
            drafts_max=message.drafts_max if message.HasField("drafts_max") else None,
        )


def _hop_dtypes(ticket: RouteTicket) -> tuple[DType, ...]:
    if all(stage.wire_dtype is None for stage in ticket.stages):
        return ()
    return tuple(map(ticket.hop_dtype, range(len(ticket.stages))))


def rejected(
    sender: NodeId | None,
    code: str,
    message: str,
    *,
    request_id: str | None = None,
    epoch: int = 0,
) -> ev.FrameRejected:
    """A frame that makes no sense."""
    return ev.FrameRejected(
        sender=sender,
        request_id=RequestId(request_id) if request_id else None,
        epoch=epoch,
        reason=Reason(code=code, message=message),
    )


def _activations(sender: NodeId, rows: data_pb2.Activations) -> ev.DataEvent:
    dtype = None
    if rows.dtype:
        try:
            dtype = dtype_from_proto(rows.dtype)
        except FrameError as error:
            return rejected(
                sender, error.code, error.message, request_id=rows.request_id, epoch=rows.epoch
            )
    return ev.ActivationsReceived(
        sender,
        Activations(
            RequestId(rows.request_id),
            rows.epoch,
            rows.position,
            rows.num_tokens or 1,
            rows.payload,
            sample=rows.sample,
            dtype=dtype,
            block_name=rows.block_name or None,
            drafted_ids=tuple(rows.drafted_ids),
        ),
    )


def _block_names(message: data_pb2.Open) -> tuple[bytes, ...]:
    """Raises FrameError where they are none, too many, or more than the prompt has."""
    names = message.block_names
    count, rest = divmod(len(names), NAME_BYTES)
    if rest or count > min(NAMED_BLOCKS_MAX, message.prompt_tokens // BLOCK_TOKENS):
        raise FrameError(f"{len(names)} bytes of block names", reason="open_invalid")
    if message.cached_blocks > min(count, reusable_blocks(message.prompt_tokens)):
        raise FrameError(
            f"{message.cached_blocks} blocks are said to be cached of {count} named ones",
            reason="open_invalid",
        )
    return tuple(names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES))


def _prefix_short(message: data_pb2.PrefixShort) -> PrefixShort:
    return PrefixShort(RequestId(message.request_id), message.epoch, message.blocks)


def _token(message: data_pb2.SampledToken) -> Token:
    return Token(
        RequestId(message.request_id),
        message.epoch,
        message.position,
        message.token_id,
        finish_reason=finish_reason_from_proto(message.finish_reason),
        drafts_max=message.drafts_max,
    )


def _close(sender: NodeId | None, message: data_pb2.Close) -> ev.CloseReceived:
    return ev.CloseReceived(
        sender=sender,
        request_id=RequestId(message.request_id[:REQUEST_ID_CHARS_MAX]),
        epoch=message.epoch,
        reason=finish_reason_from_proto(message.reason) or FinishReason.CANCELLED,
    )


def _broken(message: data_pb2.Broken) -> Broken:
    try:
        code = StatusCode(message.status.code)
    except ValueError:
        code = StatusCode.INTERNAL
    return Broken(
        request_id=RequestId(message.request_id),
        epoch=message.epoch,
        stage_index=message.stage_index,
        node_id=NodeId(message.node_id[:64]),
        code=code,
        reason=reason_from_proto(message.status),
    )


def _refused(sender: NodeId | None, message: data_pb2.Open, error: PlaitError) -> ev.OpenRefused:
    """The names in a ticket that did not pass are good enough to answer with, no more."""
    request_id, epoch = "", 0
    try:
        claimed = decode_payload(message.ticket.payload)
        request_id, epoch = claimed.request_id[:REQUEST_ID_CHARS_MAX], claimed.epoch
    except TicketError:
        pass
    if isinstance(error, TicketError):
        code = StatusCode.PERMISSION_DENIED
    elif isinstance(error, OverloadedError):
        code = StatusCode.RESOURCE_EXHAUSTED
    else:
        code = StatusCode.INVALID_ARGUMENT
    return ev.OpenRefused(
        sender=sender,
        request_id=RequestId(request_id),
        epoch=epoch,
        stage_index=message.stage_index,
        code=code,
        reason=Reason(code=error.code, message=error.message),
    )
