"""Asks the coordinator where weights are, and tells it what is here."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from grpc import aio

from plait.models.records import FileRecord
from plait.models.supply import Description
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange
from plait.wire.status import error_from_rpc
from plait.wire.v1 import weights_pb2, weights_pb2_grpc

CALL_S: Final = 20.0
WANTED_MAX: Final = 20_000
REPORTED_MAX: Final = 500
AVOID_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Where are these ranges of a file? See `LocateRequest`."""

    content_id: str
    wanted: Sequence[FileRange]
    avoid: Sequence[NodeId] = ()
    can_fetch: bool = True
    serves: bool = True
    is_urgent: bool = False
    is_fetching: bool = False
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Located:
    """A range that can be had: from `holders`, as `content`, or (without hashes) from the hub."""

    range: FileRange
    hashes: ChunkHashes
    holders: tuple[NodeId, ...]
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What the coordinator says, and where the holders are dialled."""

    found: tuple[Located, ...] = ()
    addresses: dict[NodeId, tuple[str, ...]]
    waiting_bytes: int = 0
    missing_bytes: int = 0


class WeightsDesk:
    """One node's calls to `WeightsService`. Each raises PlaitError."""

    def __init__(self, open_channel: Callable[[], aio.Channel]) -> None:
        self._open_channel = open_channel
        self._channel: aio.Channel | None = None

    async def describe(self, digest: str) -> Description:
        try:
            said = await self._stub().Describe(
                weights_pb2.DescribeRequest(digest=digest), timeout=CALL_S
            )
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return Description(
            commit=said.commit,
            files=tuple(
                FileRecord(file.name, file.size_bytes, content_id=file.content_id)
                for file in said.files
            ),
            small=tuple((file.name, file.content) for file in said.small),
        )

    async def locate(self, question: Question) -> Whereabouts:
        request = weights_pb2.LocateRequest(
            content_id=question.content_id,
            wanted=[_to_proto(one) for one in question.wanted[:WANTED_MAX]],
            avoid=question.avoid[:AVOID_MAX],
            can_fetch=question.can_fetch,
            serves=question.serves,
            is_urgent=question.is_urgent,
            is_fetching=question.is_fetching,
            wait_ms=question.wait_ms,
        )
        try:
            said = await self._stub().Locate(request, timeout=CALL_S + question.wait_ms / 1e3)
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        holders = [NodeId(holder.node_id) for holder in said.holders]
        return Whereabouts(
            found=tuple(
                Located(
                    FileRange(one.range.start, one.range.size),
                    tuple(one.chunk_sha256),
                    tuple(holders[place] for place in one.holders if place < len(holders)),
                    one.content,
                )
                for one in said.found
            ),
            addresses={NodeId(h.node_id): tuple(h.addresses) for h in said.holders},
            waiting_bytes=said.waiting_bytes,
            missing_bytes=said.missing_bytes,
        )

    async def held(
        self,
        content_id: str,
        ranges: Iterable[tuple[FileRange, ChunkHashes]],
        *,
        serves: bool,
        is_anew: bool = False,
        is_whole: bool = False,
    ) -> None:
        """What is here, in as many reports as it takes."""
        held = [
            weights_pb2.HeldRange(range=_to_proto(one), chunk_sha256=hashes)
            for one, hashes in ranges
        ]
        for at in range(0, max(1, len(held)), REPORTED_MAX):
            await self._report(
                weights_pb2.ReportRequest(
                    content_id=content_id,
                    serves=serves,
                    is_anew=is_anew and at == 0,
                    is_whole=is_whole,
                    held=held[at : at + REPORTED_MAX],
                )
            )

    async def released(self, content_id: str, ranges: Iterable[FileRange]) -> None:
        """The hub did not give these."""
        request = weights_pb2.ReportRequest(content_id=content_id)
        request.released.extend(_to_proto(one) for one in ranges)
        await self._report(request)

    async def rejected(self, content_id: str, one: FileRange, holder: NodeId) -> None:
        """A neighbour gave something else."""
        request = weights_pb2.ReportRequest(content_id=content_id)
        request.rejected.add(range=_to_proto(one), node_id=holder)
        await self._report(request)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _report(self, request: weights_pb2.ReportRequest) -> None:
        try:
            await self._stub().Report(request, timeout=CALL_S)
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    def _stub(self) -> "weights_pb2_grpc.WeightsServiceAsyncStub":
        if self._channel is None:
            self._channel = self._open_channel()
        return weights_pb2_grpc.WeightsServiceStub(self._channel)


def _to_proto(one: FileRange) -> weights_pb2.FileRange:
    return weights_pb2.FileRange(start=one.start, size=one.size)
