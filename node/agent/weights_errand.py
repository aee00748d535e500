"""One errand as it runs: bytes from neighbours come on the event loop, those from the hub in the
thread that waits for them."""

import asyncio
import contextlib
import queue
from collections.abc import Sequence
from typing import Final

from node.agent.weight_counts import COORDINATOR
from node.agent.weights_desk import Located, Question, Whereabouts
from node.agent.weights_means import SupplyMeans
from node.core.weight_errand import ChunkFetch, Errand
from plait import log
from plait.errors import (
    DeadlineError,
    FrameError,
    OverloadedError,
    PlaitError,
    UnavailableError,
    WeightsError,
)
from plait.models.chunks import kept_hashes
from plait.models.parts import RangeParts, drop_parts
from plait.models.pieces import PieceFolder
from plait.models.supply import NOT_HERE
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange

TICK_MS: Final = 1_000
WAIT_MS: Final = 5_000
ASK_AGAIN_MS: Final = 1_000
SLOW_BYTES_PER_MS: Final = 1_000
"""What another node is trusted to fetch at."""
_NO_ROOM: Final = frozenset({"disk_full", "disk_unwritable"})

HubBatch = tuple[FileRange, ...]
Job = int | HubBatch | None
"""What the waiting thread is told: bytes are here; fetch these from the hub; it is over."""

_log = log.get("weights")


class RunningErrand:
    """`drive` runs on the loop; the thread takes `jobs`, fetches, and calls `fetched`."""

    def __init__(
        self,
        means: SupplyMeans,
        content_id: str,
        pieces: PieceFolder,
        errand: Errand,
        *,
        is_urgent: bool,
    ) -> None:
        self.errand = errand
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.waiting_bytes = 0
        self.missing_bytes = 0
        self._means = means
        self._content_id = content_id
        self._pieces = pieces
        self._is_urgent = is_urgent
        self._wake = asyncio.Event()
        self._parts: dict[FileRange, RangeParts] = {}
        self._told: dict[FileRange, int] = {}
        self._addresses: dict[NodeId, tuple[str, ...]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._unsaid: list[tuple[FileRange, ChunkHashes]] = []
        self._unreleased: list[FileRange] = []
        self._saying: asyncio.Task[None] | None = None
        self._ask_after_ms = 0
        self._hub_error: PlaitError | None = None
        self._is_over = False
        self._progressed_ms = means.clock.monotonic_ms()

    def leave(self) -> None:
        """The node leaves: `drive` raises UnavailableError."""
        self._is_over = True
        self._wake.set()

    # --- the thread that fetches ----------------------------------------------------------------

    def hand_over(self, batch: HubBatch) -> None:
        """Before the hub is asked: what neighbours gave is where its fetch goes on."""
        for one in batch:
            parts = self._parts.pop(one, None)
            if parts is not None:
                parts.hand_over()

    def hub_progressed(self) -> None:
        self._progressed_ms = self._means.clock.monotonic_ms()

    def shelved(self, batch: HubBatch) -> list[tuple[FileRange, ChunkHashes]]:
        """Ranges of the batch that are here now, and what they hash to; others may have them."""
        held = []
        for one in batch:
            hashes = self._shelve(one)
            if hashes is not None:
                drop_parts(self._pieces, one)
                held.append((one, hashes))
        return held

    def _shelve(self, one: FileRange) -> ChunkHashes | None:
        """Reads a long range."""
        piece = self._pieces.exactly(one.start, one.end)
        if piece is None:
            return None
        path = self._pieces.path(piece)
        self._means.shelf.add(self._content_id, one, path)
        return kept_hashes(path, one.size)

    # --- the loop -------------------------------------------------------------------------------

    def fetched(
        self,
        batch: HubBatch,
        held: Sequence[tuple[FileRange, ChunkHashes]],
        error: PlaitError | None,
    ) -> None:
        """The hub was asked: these came, and maybe an error."""
        for one, _ in held:
            self.errand.done(one)
        self.errand.hub_failed(batch)
        self._unsaid += held
        if error is not None:
            _log.warning("hub_failed", reason=error.code, message=error.message)
            self._hub_error = error
            self._unreleased += batch
        self._wake.set()

    async def drive(self) -> None:
        """Until all ranges are here, and that has been said. Raises WeightsError, ModelError,
        UnavailableError."""
        failure: PlaitError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                while not self.errand.is_done:
                    self._require_patience()
                    self._wake.clear()
                    self._launch(group)
                    await self._pause()
                if self._asking is not None:
                    self._asking.cancel()
        except* PlaitError as failed:
            failure = _first(failed)
        finally:
            self.jobs.put(None)
        if not self._is_over:
            await self._say()
        if failure is not None:
            raise failure

    async def _pause(self) -> None:
        now_ms = self._now_ms()
        rests = [end for end in (self.errand.next_rest_end_ms(), self._ask_after_ms) if end]
        ends = [end - now_ms for end in rests if end > now_ms]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min([TICK_MS, *ends]) / 1e3):
                await self._wake.wait()

    def _launch(self, group: asyncio.TaskGroup) -> None:
        """Ask for chunks as far as limits go, and for the whereabouts of ranges that have none."""
        errand, now_ms = self.errand, self._now_ms()
        has_news = bool(self._unsaid or self._unreleased)
        if has_news and (self._saying is None or self._saying.done()):
            self._saying = group.create_task(self._say())
        while (fetch := errand.next_fetch(now_ms)) is not None:
            group.create_task(self._fetch(fetch))
        has_time = not (errand.has_near and errand.is_at_hub)
        is_asking = self._asking is not None and not self._asking.done()
        if errand.wanted and has_time and not is_asking and now_ms >= self._ask_after_ms:
            self._asking = group.create_task(self._ask())

    async def _fetch(self, fetch: ChunkFetch) -> None:
        """One chunk of one neighbour."""
        addresses = self._addresses.get(fetch.holder, ())
        try:
            content = await self._means.neighbours.fetch(
                fetch.holder, addresses, self._content_id, fetch.range, fetch.chunk
            )
        except OverloadedError:
            self.errand.refused(fetch, self._now_ms())
        except FrameError:
            await self._reject(fetch)
        except PlaitError as error:
            _log.info("weights_not_given", neighbour=fetch.holder, message=error.message)
            self.errand.failed(fetch)
        else:
            await self._compare(fetch, content)
        self._wake.set()

    async def _compare(self, fetch: ChunkFetch, content: bytes) -> None:
        parts, means = self._parts[fetch.range], self._means
        await asyncio.to_thread(means.gate.arrived, len(content))
        if not await asyncio.to_thread(parts.fits, fetch.chunk, content):
            await self._reject(fetch)
            return
        await asyncio.to_thread(parts.keep, fetch.chunk, content)
        means.counts.came(fetch.holder, len(content))
        self._tell(fetch.range, parts)
        if parts.is_complete:
            await self._finish(fetch.range, parts)
        self.errand.arrived(fetch)

    async def _reject(self, fetch: ChunkFetch) -> None:
        """Nothing more is asked of that neighbour, and the coordinator hears why."""
        self.errand.rejected(fetch)
        self._means.counts.reject(fetch.holder)
        _log.warning("weights_rejected", neighbour=fetch.holder, start=fetch.range.start)
        with contextlib.suppress(PlaitError):
            await self._means.desk.rejected(self._content_id, fetch.range, fetch.holder)

    async def _finish(self, one: FileRange, parts: RangeParts) -> None:
        """All chunks of a range are here: others may have it."""
        if self._parts.pop(one, None) is not parts:
            return

        def finish() -> ChunkHashes | None:
            parts.finish()
            return self._shelve(one)

        hashes = await asyncio.to_thread(finish)
        if hashes is not None and self._means.serves:
            self._unsaid.append((one, hashes))

    async def _say(self) -> None:
        """What is here now, several ranges at once, and what the hub did not give."""
        said, released, means = list(self._unsaid), list(self._unreleased), self._means
        with contextlib.suppress(PlaitError):
            if said:
                await means.desk.held(self._content_id, said, serves=means.serves)
                del self._unsaid[: len(said)]
            if released:
                await means.desk.released(self._content_id, released)
                del self._unreleased[: len(released)]

    def _tell(self, one: FileRange, parts: RangeParts) -> None:
        """The waiting thread hears of bytes once."""
        here = sum(one.chunk(chunk).size for chunk in parts.here)
        news = here - self._told.get(one, 0)
        if news > 0:
            self._told[one] = here
            self._progressed_ms = self._now_ms()
            self.jobs.put(news)

    async def _ask(self) -> None:
        """Hear where wanted ranges are, and see to it."""
        errand = self.errand
        largest = max((one.size for one in errand.wanted), default=0)
        patience_ms = self._means.limits.others_ms + largest // SLOW_BYTES_PER_MS
        is_impatient = self._now_ms() - self._progressed_ms > patience_ms
        question = Question(
            content_id=self._content_id,
            wanted=errand.wanted,
            avoid=tuple(errand.avoid),
            can_fetch=self._can_fetch,
            serves=self._means.serves,
            is_urgent=self._is_urgent or is_impatient,
            is_fetching=errand.is_at_hub,
            wait_ms=0 if errand.has_near or errand.is_at_hub else WAIT_MS,
        )
        try:
            said = await self._means.desk.locate(question)
        except PlaitError as error:
            _log.info("weights_not_located", reason=error.code, message=error.message)
            said = Whereabouts(addresses={})
            is_away = isinstance(error, UnavailableError | DeadlineError)
            if self._can_fetch and (not is_away or question.is_urgent):
                self._send_to_hub(errand.wanted)  # nobody says who has what; the hub has everything
            elif not self._can_fetch:
                said = Whereabouts(
                    addresses={}, missing_bytes=sum(one.size for one in errand.wanted)
                )
        self._addresses.update(said.addresses)
        self.waiting_bytes, self.missing_bytes = said.waiting_bytes, said.missing_bytes
        await self._begin([one for one in said.found if one.hashes])
        self._send_to_hub([one.range for one in said.found if not one.hashes])
        if not said.found:
            self._ask_after_ms = self._now_ms() + ASK_AGAIN_MS
        self._wake.set()

    async def _begin(self, near: Sequence[Located]) -> None:
        """Ranges that neighbours have, or that came with the answer. One begun earlier goes on."""
        for one in near:
            parts = self._parts.get(one.range)
            if parts is None or parts.hashes != one.hashes:
                parts = await asyncio.to_thread(RangeParts, self._pieces, one.range, one.hashes)
                self._parts[one.range] = parts
            if one.content and not parts.here and parts.fits(0, one.content):
                await asyncio.to_thread(parts.keep, 0, one.content)
                await asyncio.to_thread(self._means.gate.arrived, len(one.content))
                self._means.counts.came(COORDINATOR, len(one.content))
            self._tell(one.range, parts)
            if parts.is_complete:
                await self._finish(one.range, parts)
            self.errand.located(one.range, one.hashes, one.holders, parts.here)

    def _send_to_hub(self, ranges: Sequence[FileRange]) -> None:
        batch = self.errand.sent_to_hub(ranges)
        if batch:
            self.jobs.put(batch)

    @property
    def _can_fetch(self) -> bool:
        return not self._means.is_offline and self._hub_error is None

    def _require_patience(self) -> None:
        """Raises where waiting helps no more."""
        if self._is_over:
            raise UnavailableError("the node is leaving")
        error, errand = self._hub_error, self.errand
        if error is not None and error.code in _NO_ROOM:
            raise error
        if errand.has_near or errand.is_at_hub:
            return
        if error is not None and self.missing_bytes and not self.waiting_bytes:
            raise error
        if self._can_fetch or (
            self._now_ms() - self._progressed_ms < self._means.limits.offline_ms
        ):
            return
        if error is not None:
            raise error
        left = sum(one.size for one in errand.wanted)
        raise WeightsError(
            f"{left / 1e6:.1f} MB of these layers are held by no node here, and this node asks no "
            "hub (--offline): bring the model to a node with `plait model pull`",
            reason=NOT_HERE,
        )

    def _now_ms(self) -> int:
        return self._means.clock.monotonic_ms()


def _first(group: BaseExceptionGroup[PlaitError]) -> PlaitError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
