"""Weights from neighbours first: a `plait.models.supply.Supply` that asks the coordinator who has
them, and the hub for what nobody has."""

import asyncio
import concurrent.futures
import queue
from collections.abc import Sequence
from typing import Final

from node.agent.weights_errand import HubBatch, RunningErrand
from node.agent.weights_means import SupplyMeans
from node.core.weight_errand import Errand
from plait import log
from plait.errors import PlaitError, UnavailableError
from plait.models.pieces import PieceFolder
from plait.models.supply import Advanced, Description, FetchFromOrigin
from plait.types import LayerSpan, ModelSource, NodeId
from plait.types.weights import ChunkHashes, FileRange

TICK_S: Final = 1.0
AVOID_MS: Final = 600_000
"""How long a neighbour that gave wrong bytes or could not be reached is not asked again."""

_log = log.get("weights")


class WeightsSupply:
    """One node's. Made on the loop that runs it; `bring` and `describe` belong to other threads."""

    def __init__(self, means: SupplyMeans) -> None:
        self._means = means
        self._loop = asyncio.get_running_loop()
        self._running: list[RunningErrand] = []
        self._is_closed = False
        self._avoid: dict[NodeId, int] = {}

    # --- threads that fetch ---------------------------------------------------------------------

    @property
    def is_offline(self) -> bool:
        return self._means.is_offline

    def describe(self, source: ModelSource) -> Description | None:
        """As the coordinator says. Raises UnavailableError where a node without the hub hears
        nothing from it."""
        if not source.digest:
            return None
        try:
            return asyncio.run_coroutine_threadsafe(
                self._means.desk.describe(source.digest), self._loop
            ).result()
        except PlaitError as error:
            _log.info("weights_not_described", model=source.name, reason=error.code)
            if self._means.is_offline:
                raise UnavailableError(
                    f"the coordinator does not describe {source.name}, and this node asks no hub "
                    f"(--offline): {error.message}"
                ) from error
            return None

    def bring(
        self,
        content_id: str,
        pieces: PieceFolder,
        missing: Sequence[tuple[int, int]],
        *,
        fetch: FetchFromOrigin,
        advanced: Advanced,
        is_urgent: bool = False,
    ) -> None:
        """As `Supply` says; also raises UnavailableError where the node leaves."""
        wanted = [FileRange(start, end - start) for start, end in missing]
        errand = Errand.of(wanted, self._means.limits.errand)
        now_ms = self._means.clock.monotonic_ms()
        self._avoid = {n: end_ms for n, end_ms in self._avoid.items() if end_ms > now_ms}
        errand.avoid.update(dict.fromkeys(self._avoid))
        run = RunningErrand(self._means, content_id, pieces, errand, is_urgent=is_urgent)
        driving = asyncio.run_coroutine_threadsafe(self._drive(run), self._loop)
        try:
            while not driving.done() or not run.jobs.empty():
                try:
                    job = run.jobs.get(timeout=TICK_S)
                except queue.Empty:
                    advanced(0)
                    continue
                if job is None:
                    break
                if isinstance(job, int):
                    advanced(job)
                else:
                    self._from_hub(run, job, fetch, advanced)
            driving.result()
        except concurrent.futures.CancelledError:
            raise UnavailableError("the node is leaving") from None
        finally:
            driving.cancel()
            end_ms = self._means.clock.monotonic_ms() + AVOID_MS
            self._avoid.update({n: end_ms for n in list(errand.avoid) if n not in self._avoid})

    def _from_hub(
        self, run: RunningErrand, batch: HubBatch, fetch: FetchFromOrigin, advanced: Advanced
    ) -> None:
        """In the calling thread, which holds the lock of the file."""
        run.hand_over(batch)
        coming = fetch([(one.start, one.end) for one in batch])
        error: PlaitError | None = None
        while True:
            try:
                got = next(coming, None)
            except PlaitError as problem:
                error = problem
                break
            if got is None:
                break
            self._means.counts.hub_bytes += got
            run.hub_progressed()
            advanced(got)
        held = run.shelved(batch)
        self._loop.call_soon_threadsafe(run.fetched, batch, held, error)

    # --- the loop -------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is brought: the node leaves."""
        self._is_closed = True
        for run in self._running:
            run.leave()

    def says(self, span: LayerSpan | None = None) -> str:
        """Where bytes come from now, or what is waited for; "" where nothing is."""
        of = f" of layers {span}" if span is not None else ""
        running, totals = self._running, self._means.counts.totals()
        near, hub = (
            f"neighbours{_about(totals.neighbour_bytes)}",
            f"the hub{_about(totals.hub_bytes)}",
        )
        if any(run.errand.has_near for run in running):
            is_both = any(run.errand.is_at_hub for run in running)
            return f"fetching from {near}{f' and {hub}' if is_both else ''}"
        if any(run.errand.is_at_hub for run in running):
            return f"fetching from {hub}"
        if missing := sum(run.missing_bytes for run in running):
            return f"waiting for {missing / 1e6:.1f} MB{of} that no node here holds"
        if waiting := sum(run.waiting_bytes for run in running):
            return f"waiting for {waiting / 1e6:.1f} MB{of} that another node fetches"
        return ""

    async def announce(self, digests: Sequence[str]) -> None:
        """Tell what is here of these models, all of it anew; nothing else is given to anybody."""
        ids: list[str] = []
        try:
            for digest in digests:
                described = await self._means.desk.describe(digest)
                ids += [file.content_id for file in described.files if file.content_id]
            await asyncio.to_thread(self._means.shelf.look, frozenset(ids))
            for content_id in ids:
                await self._announce(content_id)
        except PlaitError as error:
            _log.info("weights_not_announced", reason=error.code, message=error.message)

    async def _announce(self, content_id: str) -> None:
        shelf = self._means.shelf

        def read() -> list[tuple[FileRange, ChunkHashes]]:
            return [
                (one, hashes)
                for one in shelf.ranges(content_id)
                if (hashes := shelf.hashes(content_id, one)) is not None
            ]

        is_whole = shelf.is_whole(content_id)
        held = await asyncio.to_thread(read)
        if held or is_whole:
            await self._means.desk.held(
                content_id, held, serves=self._means.serves, is_anew=True, is_whole=is_whole
            )

    async def _drive(self, run: RunningErrand) -> None:
        self._running.append(run)
        try:
            if self._is_closed:
                run.leave()
            await run.drive()
        finally:
            self._running.remove(run)


def _about(num_bytes: int) -> str:
    """In brackets, two digits: it changes seldom enough to be told each time."""
    if num_bytes < 1e6:
        return ""
    unit, size = ("GB", 1e9) if num_bytes >= 1e9 else ("MB", 1e6)
    digits = 0 if num_bytes >= 10 * size else 1
    rounded = round(num_bytes / size, digits if num_bytes < 100 * size else -1)
    return f" ({rounded:.{digits}f} {unit})"
