"""What rank 0 and the others say to each other, to and from bytes."""

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from node.engine.step_plan import Chunk
from plait.errors import (
    ConfigError,
    FrameError,
    ModelError,
    OverloadedError,
    PlaitError,
    UnavailableError,
    WeightsError,
)
from plait.types import LayerSpan, Reason
from plait.wire.codec import reason_from_proto, reason_to_proto, span_to_proto
from plait.wire.v1.ranks_pb2 import RankChunk, RankCommand, RankFailed, RankLayers, RankReply

_M = TypeVar("_M", bound=Message)
_CARRIED: Final = (
    ConfigError,
    FrameError,
    ModelError,
    OverloadedError,
    UnavailableError,
    WeightsError,
)
_KINDS: Final[dict[str, type[PlaitError]]] = {kind.__name__: kind for kind in _CARRIED}


def command_from(payload: bytes) -> RankCommand:
    """Raises FrameError."""
    return _parsed(RankCommand(), payload)


def reply_from(payload: bytes) -> RankReply:
    """Raises FrameError."""
    return _parsed(RankReply(), payload)


def failure_of(error: PlaitError) -> RankReply:
    """Tells rank 0 what went wrong."""
    known = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]
    reason = Reason(code=error.code, message=error.message)
    return RankReply(
        failed=RankFailed(
            kind=known[0] if known else UnavailableError.__name__, status=reason_to_proto(reason)
        )
    )


def error_of(failed: RankFailed, rank: int) -> PlaitError:
    """The same error, and which rank says so."""
    kind = _KINDS.get(failed.kind, UnavailableError)
    reason = reason_from_proto(failed.status)
    return kind(f"rank {rank}: {reason.message}", reason=reason.code)


def layers_command(span: LayerSpan, chunks: list[Chunk], num_rows: int) -> bytes:
    """A step through `span`."""
    told = [
        RankChunk(
            row=chunk.row,
            num_tokens=chunk.num_tokens,
            position=chunk.position,
            rotation_row=chunk.rotation_row,
            runs=[number for run in chunk.runs for number in run],
        )
        for chunk in chunks
    ]
    layers = RankLayers(span=span_to_proto(span), num_rows=num_rows, chunks=told)
    return RankCommand(layers=layers).SerializeToString()


def chunks_from(layers: RankLayers) -> list[Chunk]:
    """The step's rows."""
    return [
        Chunk(
            chunk.row,
            chunk.num_tokens,
            chunk.position,
            tuple(zip(chunk.runs[::2], chunk.runs[1::2], strict=True)),
            chunk.rotation_row,
        )
        for chunk in layers.chunks
    ]


def _parsed(message: _M, payload: bytes) -> _M:
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise FrameError("a frame between ranks is no message", reason="rank_frame") from error
    return message
