"""The weights service on the node port: nodes ask it where bytes are, and say what they hold."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from grpc import aio

from coordinator.core.weight_audits import Audit, AuditDraw
from coordinator.core.weight_book import Asked, WeightBook, WeightLimits
from coordinator.ports import ViewSource
from coordinator.shell import weight_words as words
from coordinator.shell.chronicle_words import Said
from coordinator.shell.weight_copies import WeightCopies
from plait.clock import Clock
from plait.errors import AuthenticationError, FrameError, ModelError, PlaitError
from plait.log import get
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange
from plait.wire.channel import peer_node_id
from plait.wire.status import abort_with
from plait.wire.v1 import weights_pb2, weights_pb2_grpc

WAIT_MS_MAX: Final = 10_000
POLL_S: Final = 1.0
"""How soon a claim that ran out is noticed by those who wait."""
LOOK_MS: Final = 60_000
"""How often the coordinator looks what has come to its own disk."""
GAVE_WRONG: Final = "gave a node weights that are not what they have to be: others are asked first"
SAID_FALSE: Final = "said of weights what is not so: nothing it says of them counts any more"
HASHED_BYTES_MAX: Final = 64 * 2**20
"""Of the coordinator's own copy, for one question."""

log = get("weights")
Addresses = Callable[[], Mapping[NodeId, tuple[str, ...]]]
"""Nodes that are attached, and where neighbours dial them."""
RoundTrips = Callable[[NodeId], Mapping[NodeId, float]]
"""A node's ways to others, in ms, as far as they are known."""
_Context = aio.ServicerContext[Any, Any]


class WeightsService(weights_pb2_grpc.WeightsServiceServicer):
    """Owns the book. `run` compares with the hub what has to be compared."""

    def __init__(
        self,
        copies: WeightCopies,
        *,
        attached: Addresses,
        round_trips: RoundTrips,
        clock: Clock,
        rng: Random,
        limits: WeightLimits | None = None,
        note: Callable[[Said], None] = lambda _: None,
    ) -> None:
        """`note` hears what an operator should: who gave or said what is not so."""
        self._note = note
        self._copies = copies
        self._attached = attached
        self._round_trips = round_trips
        self._clock = clock
        self._audits = AuditDraw(rng)
        self._due: asyncio.Queue[Audit | None] = asyncio.Queue(maxsize=256)
        self._changed = asyncio.Event()
        self._looked_ms: int | None = None
        self.num_audited = 0
        self.book = WeightBook(limits)
        for content_id, size_bytes in copies.files.items():
            self.book.serve(content_id, size_bytes)

    # --- calls --------------------------------------------------------------------------------

    async def Describe(  # noqa: N802
        self, request: weights_pb2.DescribeRequest, context: _Context
    ) -> weights_pb2.DescribeResponse:
        """A model's files."""
        await _identity(context)
        described = self._copies.describe(request.digest)
        if described is None:
            await abort_with(context, ModelError("this network serves no such weights"))
        return words.description_to_proto(described)

    async def Locate(  # noqa: N802
        self, request: weights_pb2.LocateRequest, context: _Context
    ) -> weights_pb2.LocateResponse:
        """Where ranges are to be had; waits a little where none are."""
        node_id = await _identity(context)
        try:
            asked = words.asked_of(node_id, request, self.book, self._round_trips(node_id))
        except PlaitError as error:
            log.info("weights_question_refused", node_id=node_id, reason=error.code)
            await abort_with(context, error)
        end_ms = self._clock.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        while True:
            changed = self._changed
            response = await self._answer(asked)
            left_ms = end_ms - self._clock.monotonic_ms()
            waits = response.waiting_bytes or response.missing_bytes
            if response.found or not waits or left_ms <= 0:
                return response
            try:
                async with asyncio.timeout(min(POLL_S, left_ms / 1e3)):
                    await changed.wait()
            except TimeoutError:
                continue

    async def Report(  # noqa: N802
        self, request: weights_pb2.ReportRequest, context: _Context
    ) -> weights_pb2.ReportResponse:
        """What a node holds, gives up, or was given wrongly."""
        node_id = await _identity(context)
        try:
            refused = self._take(node_id, request)
        except PlaitError as error:
            log.info("weights_report_refused", node_id=node_id, reason=error.code)
            await abort_with(context, error)
        self._wake()
        return weights_pb2.ReportResponse(refused=refused)

    async def run(self) -> None:
        """Look at the hub where words differ, and at what was drawn, until cancelled."""
        try:
            while True:
                audit = await self._due.get()
                try:
                    await (self._settle_disputes() if audit is None else self._audit(audit))
                except PlaitError as error:  # no hub, or not now: the words stay as they are
                    log.info("weights_not_compared", reason=error.code, message=error.message)
                self._due.task_done()
                self._wake()
        finally:
            self._copies.close()

    async def compared(self) -> None:
        """Until everything that was to be compared with the hub has been."""
        await self._due.join()

    # --- inside -------------------------------------------------------------------------------

    async def _answer(self, asked: Asked) -> weights_pb2.LocateResponse:
        book, content_id = self.book, asked.content_id
        settled = {
            one: hashes
            for one in asked.wanted
            if book.is_settled(content_id, one)
            and (hashes := book.trusted(content_id, one)) is not None
        }
        own = await asyncio.to_thread(self._own, content_id, asked.wanted, settled)
        for one, hashes in own.hashed.items():
            self._settle(content_id, one, hashes)
        addresses = self._attached()
        live = frozenset(node_id for node_id, where in addresses.items() if where)
        answer = book.locate(replace(asked, wanted=own.left), live, self._clock.monotonic_ms())
        return words.answer_to_proto(answer, own.given, addresses)

    def _own(
        self,
        content_id: str,
        wanted: Sequence[FileRange],
        settled: Mapping[FileRange, ChunkHashes],
    ) -> "_Own":
        """In a thread: what this machine's own disk says of the ranges. What it has but would take
        too long to hash is left for the next question."""
        own, copies = _Own(), self._copies
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is None or now_ms - self._looked_ms > LOOK_MS:
            self._looked_ms = now_ms
            copies.look()
        budget, room = HASHED_BYTES_MAX, words.CONTENTS_BYTES_MAX
        for one in wanted:
            hashes = settled.get(one)
            if hashes is None and copies.has(content_id, one):
                if budget <= 0:
                    continue
                budget -= one.size
                hashes = copies.hashes(content_id, one)
                if hashes is not None:
                    own.hashed[one] = hashes
            content = None
            if hashes is not None and one.size <= room:
                content = copies.content(content_id, one)
            if hashes is not None and content is not None:
                room -= one.size
                own.given.append((one, hashes, content))
            else:
                own.left.append(one)
        return own

    def _take(self, node_id: NodeId, request: weights_pb2.ReportRequest) -> int:
        """Returns how many ranges do not count. Raises ModelError, FrameError."""
        book, content_id = self.book, request.content_id
        words.require_file(book, content_id)
        num_ranges = len(request.held) + len(request.released) + len(request.rejected)
        if num_ranges > words.REPORTED_MAX:
            raise FrameError("too many ranges in one report", reason="weights_request")
        held = [
            (words.checked(book, content_id, h.range), words.hashes_of(h)) for h in request.held
        ]
        if request.is_anew:
            book.forget(node_id, content_id)
        if request.is_whole and request.serves:
            book.holds_whole(node_id, content_id)
        refused = 0
        for one, hashes in held:
            is_fetched = book.was_sent(node_id, content_id, one)
            if not book.holds(node_id, content_id, one, hashes, serves=request.serves):
                refused += 1
                log.warning("weights_word_refused", node_id=node_id, start=one.start, size=one.size)
            elif is_fetched:
                self._ask(self._audits.fetched(node_id, content_id, one, hashes))
        if book.disputed():
            self._ask_to_settle()
        book.release(node_id, content_id, [FileRange(r.start, r.size) for r in request.released])
        for rejected in request.rejected:
            holder, one = (
                NodeId(rejected.node_id),
                FileRange(rejected.range.start, rejected.range.size),
            )
            if book.rejected(node_id, holder, content_id, one, self._clock.monotonic_ms()):
                log.warning("weights_rejected", node_id=holder, by=node_id, start=one.start)
                self._note(
                    Said(
                        kind="load", tone="warn", text=GAVE_WRONG, node_id=holder, other_id=node_id
                    )
                )
        return refused

    def _ask(self, audit: Audit | None) -> None:
        if audit is not None and not self._due.full():
            self._due.put_nowait(audit)

    def _ask_to_settle(self) -> None:
        if not self._due.full():
            self._due.put_nowait(None)

    async def _audit(self, audit: Audit) -> None:
        place = audit.range.chunk(audit.chunk)
        found = await asyncio.to_thread(self._copies.at_hub, audit.content_id, place)
        if found is None:
            return
        self.num_audited += 1
        if found != (audit.said,):
            self._lied(audit.node_id, place)
            self.book.distrust(audit.node_id)

    async def _settle_disputes(self) -> None:
        while disputed := self.book.disputed():
            content_id, one = disputed[0]
            log.warning("weights_disputed", start=one.start, size=one.size, num=len(disputed))
            hashes = await asyncio.to_thread(self._copies.at_hub, content_id, one)
            if hashes is None:
                return
            self._settle(content_id, one, hashes)

    def _settle(self, content_id: str, one: FileRange, hashes: ChunkHashes) -> None:
        for liar in self.book.settle(content_id, one, hashes):
            self._lied(liar, one)

    def _lied(self, node_id: NodeId, one: FileRange) -> None:
        log.warning("weights_word_false", node_id=node_id, start=one.start, size=one.size)
        self._note(Said(kind="load", tone="bad", text=SAID_FALSE, node_id=node_id))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def measured_ways(views: ViewSource, node_id: NodeId) -> dict[NodeId, float]:
    """A node's round trips to others in ms: measured by either end, else by way of the
    coordinator."""
    nodes = views.view().nodes
    own = next((node for node in nodes if node.node_id == node_id), None)
    if own is None:
        return {}
    ways = {
        NodeId(node.node_id): own.coordinator_rtt_ms + node.coordinator_rtt_ms
        for node in nodes
        if node.coordinator_rtt_ms > 0 and own.coordinator_rtt_ms > 0
    }
    for node in nodes:
        there = dict(node.neighbour_rtt_ms).get(node_id)
        if there is not None:
            ways[NodeId(node.node_id)] = there
    return ways | {NodeId(other): rtt_ms for other, rtt_ms in own.neighbour_rtt_ms}


@dataclass(slots=True)
class _Own:
    """What the coordinator has of wanted ranges: just hashed, given at once, and neither."""

    hashed: dict[FileRange, ChunkHashes] = field(default_factory=dict)
    given: list[tuple[FileRange, ChunkHashes, bytes]] = field(default_factory=list)
    left: list[FileRange] = field(default_factory=list)


async def _identity(context: _Context) -> NodeId:
    node_id = peer_node_id(context)
    if node_id is None:
        await abort_with(context, AuthenticationError("the certificate names no node"))
    return node_id
