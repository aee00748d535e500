"""What nodes say and hear of weights, as messages. Pure: no socket, no clock."""

from collections.abc import Iterable, Mapping
from typing import Final

from coordinator.core.weight_book import Answer, Asked, WeightBook
from plait.errors import FrameError, ModelError
from plait.models.chunks import HASH_BYTES
from plait.models.supply import Description
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange
from plait.wire.v1 import control_pb2, weights_pb2

WANTED_MAX: Final = 20_000
REPORTED_MAX: Final = 1_000
AVOID_MAX: Final = 64
CONTENTS_BYTES_MAX: Final = 2 * 2**20


def asked_of(
    node_id: NodeId,
    request: weights_pb2.LocateRequest,
    book: WeightBook,
    rtt_ms: Mapping[NodeId, float],
) -> Asked:
    """Raises ModelError (no such file), FrameError (ranges that cannot be)."""
    require_file(book, request.content_id)
    if len(request.wanted) > WANTED_MAX or len(request.avoid) > AVOID_MAX:
        raise FrameError("too many ranges or nodes in one question", reason="weights_request")
    return Asked(
        node_id=node_id,
        content_id=request.content_id,
        wanted=[checked(book, request.content_id, r) for r in request.wanted],
        avoid=frozenset(NodeId(avoided) for avoided in request.avoid),
        can_fetch=request.can_fetch,
        serves=request.serves,
        is_urgent=request.is_urgent,
        is_fetching=request.is_fetching,
        rtt_ms=rtt_ms,
    )


def require_file(book: WeightBook, content_id: str) -> None:
    """Raises ModelError for a file of no served model."""
    if not book.knows(content_id):
        raise ModelError("no served model has a file of that content", reason="weights_unknown")


def checked(book: WeightBook, content_id: str, given: weights_pb2.FileRange) -> FileRange:
    """Raises FrameError for a range that the file does not have."""
    wanted = FileRange(given.start, given.size)
    if not book.fits(content_id, wanted):
        raise FrameError("a range that the file does not have", reason="weights_range")
    return wanted


def hashes_of(held: weights_pb2.HeldRange) -> ChunkHashes:
    """Raises FrameError for what is no sha256."""
    if any(len(one) != HASH_BYTES for one in held.chunk_sha256):
        raise FrameError("a sha256 has 32 bytes", reason="weights_hash")
    return tuple(held.chunk_sha256)


def answer_to_proto(
    answer: Answer,
    contents: Iterable[tuple[FileRange, ChunkHashes, bytes]],
    addresses: Mapping[NodeId, tuple[str, ...]],
) -> weights_pb2.LocateResponse:
    """`contents` are ranges that come with the answer."""
    response = weights_pb2.LocateResponse(
        waiting_bytes=answer.waiting_bytes, missing_bytes=answer.missing_bytes
    )
    for wanted, hashes, content in contents:
        response.found.add(range=range_to_proto(wanted), chunk_sha256=hashes, content=content)
    places: dict[NodeId, int] = {}
    for found in answer.found:
        for holder in found.holders:
            if holder not in places:
                places[holder] = len(places)
                response.holders.append(
                    control_pb2.NeighbourAddress(
                        node_id=holder, addresses=addresses.get(holder, ())
                    )
                )
        response.found.add(
            range=range_to_proto(found.range),
            chunk_sha256=found.hashes,
            holders=[places[holder] for holder in found.holders],
        )
    return response


def range_to_proto(wanted: FileRange) -> weights_pb2.FileRange:
    return weights_pb2.FileRange(start=wanted.start, size=wanted.size)


def description_to_proto(described: Description) -> weights_pb2.DescribeResponse:
    return weights_pb2.DescribeResponse(
        commit=described.commit,
        files=[
            weights_pb2.WeightFile(
                name=file.name, size_bytes=file.size_bytes, content_id=file.content_id or ""
            )
            for file in described.files
        ],
        small=[
            weights_pb2.SmallFile(name=name, content=content) for name, content in described.small
        ],
    )
