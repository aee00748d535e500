"""Route tickets <-> bytes. Signing and checking are plait.crypto's; here is only the wire form."""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from plait.errors import FrameError, TicketError
from plait.types import ModelId, NodeId, RequestId, RouteTicket, TicketStage
from plait.wire.codec import dtype_from_proto, dtype_to_proto, span_from_proto, span_to_proto
from plait.wire.v1 import common_pb2, data_pb2

UNSPECIFIED: Final = common_pb2.DTYPE_UNSPECIFIED
STAGES_MAX: Final = 256
ADDRESSES_MAX: Final = 16
SALT_BYTES_MAX: Final = 64


def ticket_payload(ticket: RouteTicket) -> data_pb2.TicketPayload:
    return data_pb2.TicketPayload(
        ticket_id=ticket.ticket_id,
        network_id=ticket.network_id,
        request_id=ticket.request_id,
        epoch=ticket.epoch,
        model_id=ticket.model_id,
        stages=[
            data_pb2.RouteStage(
                node_id=stage.node_id,
                addresses=stage.addresses,
                span=span_to_proto(stage.span),
                incarnation=stage.incarnation,
                wire_dtype=dtype_to_proto(stage.wire_dtype) if stage.wire_dtype else UNSPECIFIED,
            )
            for stage in ticket.stages
        ],
        kv_tokens=ticket.kv_tokens,
        expires_unix_ms=ticket.expires_unix_ms,
        issued_unix_ms=ticket.issued_unix_ms,
        wire_dtype=dtype_to_proto(ticket.wire_dtype),
        cache_salt=ticket.cache_salt,
        admission=ticket.admission,
        client_tag=ticket.client_tag,
    )


def signed_ticket(ticket: RouteTicket, sign: Callable[[bytes], bytes]) -> data_pb2.Ticket:
    """The ticket as it travels. `sign` is `plait.crypto.TicketSigner.sign`."""
    payload = ticket_payload(ticket).SerializeToString(deterministic=True)
    return data_pb2.Ticket(payload=payload, signature=sign(payload))


def decode_payload(payload: bytes) -> RouteTicket:
    """Read a signed payload. Raises TicketError(reason="ticket_malformed")."""
    message = data_pb2.TicketPayload()
    try:
        message.ParseFromString(payload)
        return _from_proto(message)
    except (DecodeError, FrameError) as error:
        raise TicketError(
            f"the route ticket cannot be read: {error}", reason="ticket_malformed"
        ) from None


def _from_proto(message: data_pb2.TicketPayload) -> RouteTicket:
    if len(message.cache_salt) > SALT_BYTES_MAX:
        raise FrameError(f"{len(message.cache_salt)} bytes of salt, at most {SALT_BYTES_MAX}")
    if len(message.stages) > STAGES_MAX:
        raise FrameError(f"{len(message.stages)} stages, at most {STAGES_MAX}")
    return RouteTicket(
        ticket_id=message.ticket_id,
        network_id=message.network_id,
        request_id=RequestId(message.request_id),
        epoch=message.epoch,
        model_id=ModelId(message.model_id),
        stages=tuple(_stage_from_proto(stage) for stage in message.stages),
        kv_tokens=message.kv_tokens,
        issued_unix_ms=message.issued_unix_ms,
        expires_unix_ms=message.expires_unix_ms,
        wire_dtype=dtype_from_proto(message.wire_dtype),
        cache_salt=message.cache_salt,
        admission=message.admission,
        client_tag=message.client_tag,
    )


def _stage_from_proto(message: data_pb2.RouteStage) -> TicketStage:
    if len(message.addresses) > ADDRESSES_MAX:
        raise FrameError(f"{len(message.addresses)} addresses, at most {ADDRESSES_MAX}")
    return TicketStage(
        node_id=NodeId(message.node_id),
        incarnation=message.incarnation,
        span=span_from_proto(message.span),
        addresses=tuple(message.addresses),
        wire_dtype=dtype_from_proto(message.wire_dtype) if message.wire_dtype else None,
    )
