"""Who holds which bytes of weights, what these must hash to, and who may ask the hub for what.

Decides alone: no clock, no socket. It is no part of the `Core`: what it forgets costs a download.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.weight_trust import Accusations, Words
from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLimits:
    """Bounds of the book. Durations in milliseconds."""

    claim_ms: int = 120_000
    slow_bytes_per_ms: int = 1_000
    claim_bytes: int = 16 * 2**20
    located_max: int = 256
    ranges_max: int = 100_000
    avoid_ms: int = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A node wants ranges of a file. `rtt_ms` are its ways to others as far as they are known."""

    node_id: NodeId
    content_id: str
    wanted: Sequence[FileRange]
    avoid: frozenset[NodeId] = frozenset()
    can_fetch: bool = True
    serves: bool = True
    is_urgent: bool = False
    is_fetching: bool = False
    rtt_ms: Mapping[NodeId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundRange:
    """Where a range is to be had, best first; without hashes it is the asker's to fetch."""

    range: FileRange
    hashes: ChunkHashes = ()
    holders: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Some of the wanted ranges, those with fewest holders first, and what the others wait for."""

    found: tuple[FoundRange, ...] = ()
    waiting_bytes: int = 0
    missing_bytes: int = 0


@dataclass(slots=True)
class _Entry:
    words: Words = field(default_factory=Words)
    holders: dict[NodeId, None] = field(default_factory=dict)
    sent: dict[NodeId, None] = field(default_factory=dict)
    """Who was told to fetch it; of these, others may wait for `claimed_by`."""
    told: dict[NodeId, None] = field(default_factory=dict)
    """Who heard what it hashes to, and has it from a neighbour: its word says nothing new."""
    claimed_by: NodeId | None = None
    claim_end_ms: int = 0


@dataclass(slots=True)
class _File:
    size_bytes: int
    entries: dict[FileRange, _Entry] = field(default_factory=dict)
    whole: dict[NodeId, None] = field(default_factory=dict)


class WeightBook:
    """One writer: the service that nodes speak to. `version` rises where somebody may now get
    what he could not."""

    def __init__(self, limits: WeightLimits | None = None) -> None:
        self.limits = limits if limits is not None else WeightLimits()
        self.version = 0
        self.accusations = Accusations(self.limits.avoid_ms)
        self._files: dict[str, _File] = {}
        self._given: dict[NodeId, int] = {}
        self._disputed: dict[tuple[str, FileRange], None] = {}

    def serve(self, content_id: str, size_bytes: int) -> None:
        """Files of served models; all others are unknown."""
        self._files.setdefault(content_id, _File(size_bytes))

    def knows(self, content_id: str) -> bool:
        return content_id in self._files

    def is_settled(self, content_id: str, wanted: FileRange) -> bool:
        """Whether the coordinator itself has seen these bytes."""
        entry = self._files[content_id].entries.get(wanted)
        return entry is not None and entry.words.settled is not None

    def fits(self, content_id: str, wanted: FileRange) -> bool:
        """Whether the file has such a range."""
        file = self._files[content_id]
        return wanted.size > 0 and wanted.end <= file.size_bytes

    def settle(self, content_id: str, wanted: FileRange, hashes: ChunkHashes) -> tuple[NodeId, ...]:
        """The coordinator has read these bytes. Returns who said something else: none of their
        words counts any more."""
        entry = self._entry(content_id, wanted)
        if entry is None:
            return ()
        liars = entry.words.settle(hashes)
        for liar in liars:
            self.distrust(liar)
        self.version += 1
        return liars

    def distrust(self, node_id: NodeId) -> None:
        """What it said and holds is as if it had never been said."""
        self.accusations.distrust(node_id)
        for file in self._files.values():
            file.whole.pop(node_id, None)
            for entry in file.entries.values():
                entry.holders.pop(node_id, None)
                entry.words.take_back(node_id)
        self.version += 1

    def holds(
        self,
        node_id: NodeId,
        content_id: str,
        held: FileRange,
        hashes: ChunkHashes,
        *,
        serves: bool,
    ) -> bool:
        """A node has a range, and says what it hashes to. False where that cannot be, or
        contradicts what is trusted: then it does not count."""
        entry = self._entry(content_id, held) if self.fits(content_id, held) else None
        if entry is None or len(hashes) != held.num_chunks:
            return False
        if self.accusations.is_distrusted(node_id):
            return False
        if node_id in entry.told and node_id not in entry.sent:
            agrees = hashes == entry.words.trusted(takes_one=True)
        else:
            agrees = entry.words.say(node_id, hashes, was_sent=node_id in entry.sent)
        if entry.words.is_disputed:
            self._disputed[content_id, held] = None
        entry.sent.pop(node_id, None)
        if entry.claimed_by == node_id:
            entry.claimed_by = None
        if agrees and serves:
            entry.holders[node_id] = None
        self.version += 1
        return agrees

    def was_sent(self, node_id: NodeId, content_id: str, wanted: FileRange) -> bool:
        """Whether it was sent to the hub for this range, and has not said yet what it found."""
        entry = self._files[content_id].entries.get(wanted)
        return entry is not None and node_id in entry.sent

    def holds_whole(self, node_id: NodeId, content_id: str) -> None:
        """A node has all of a file. What parts of it hash to, others have to say."""
        if not self.accusations.is_distrusted(node_id):
            self._files[content_id].whole[node_id] = None
            self.version += 1

    def forget(self, node_id: NodeId, content_id: str) -> None:
        """A node will say anew what it holds of a file. Its words of hashes stay."""
        file = self._files[content_id]
        file.whole.pop(node_id, None)
        for entry in file.entries.values():
            entry.holders.pop(node_id, None)

    def release(self, node_id: NodeId, content_id: str, wanted: Sequence[FileRange]) -> None:
        """A node could not fetch what it was to fetch."""
        for one in wanted:
            entry = self._files[content_id].entries.get(one)
            if entry is not None:
                entry.sent.pop(node_id, None)
                if entry.claimed_by == node_id:
                    entry.claimed_by = None
        self.version += 1

    def rejected(
        self, by: NodeId, holder: NodeId, content_id: str, wanted: FileRange, now_ms: int
    ) -> bool:
        """`holder` gave `by` bytes that are not the range's. Returns whether that is news."""
        entry = self._files[content_id].entries.get(wanted)
        if entry is None or holder not in (*entry.holders, *self._files[content_id].whole):
            return False
        if self.accusations.is_distrusted(by):
            return False
        is_news = self.accusations.accuse(by, holder, now_ms)
        if self.accusations.is_shunned(holder, now_ms):
            entry.holders.pop(holder, None)
        return is_news

    def disputed(self) -> tuple[tuple[str, FileRange], ...]:
        """Ranges of which words contradict each other: the coordinator has to look."""
        for content_id, wanted in list(self._disputed):
            if not self._files[content_id].entries[wanted].words.is_disputed:
                del self._disputed[content_id, wanted]
        return tuple(self._disputed)

    def trusted(self, content_id: str, wanted: FileRange) -> ChunkHashes | None:
        """What a range must hash to, where that is known."""
        entry = self._files[content_id].entries.get(wanted)
        return entry.words.trusted(takes_one=False) if entry is not None else None

    def locate(self, asked: Asked, live: frozenset[NodeId], now_ms: int) -> Answer:
        """Where the wanted ranges are to be had; those that nobody holds are given out to be
        fetched, each to one node at a time, unless a prompt waits."""
        file, limits = self._files[asked.content_id], self.limits
        here: list[FoundRange] = []
        absent: list[FileRange] = []
        waiting = missing = 0
        for wanted in asked.wanted:
            entry = file.entries.get(wanted) or _Entry()
            hashes = entry.words.trusted(takes_one=not asked.can_fetch)
            holders = self._holders(file, entry, asked, live, now_ms)
            if hashes is not None and holders:
                here.append(FoundRange(wanted, hashes, holders))
            elif self._is_claimed(entry, asked, live, now_ms):
                waiting += wanted.size
            elif not asked.can_fetch:
                missing += wanted.size
            else:
                absent.append(wanted)
        here.sort(key=lambda found: (len(found.holders), found.range))
        chosen = here[: limits.located_max]
        for found in chosen:
            file.entries[found.range].told[asked.node_id] = None
            best = found.holders[0]
            self._given[best] = self._given.get(best, 0) + found.range.size
        granted = [] if asked.is_fetching else self._grant(asked, absent, now_ms)
        return Answer(
            found=(*chosen, *(FoundRange(wanted) for wanted in granted)),
            waiting_bytes=waiting,
            missing_bytes=missing,
        )

    def _holders(
        self, file: _File, entry: _Entry, asked: Asked, live: frozenset[NodeId], now_ms: int
    ) -> tuple[NodeId, ...]:
        """Nearest first; of those about as near, who was asked for least. Who was accused is left
        out where others have it, who was by two in any case."""
        unusable = asked.avoid | {asked.node_id}
        usable = [
            holder
            for holder in dict.fromkeys((*entry.holders, *file.whole))
            if holder in live
            and holder not in unusable
            and not self.accusations.is_shunned(holder, now_ms)
        ]
        blameless = [h for h in usable if not self.accusations.is_accused(h, now_ms)]
        usable = blameless or usable
        usable.sort(
            key=lambda holder: (
                nearness(asked.rtt_ms.get(holder)),
                self._given.get(holder, 0),
            )
        )
        return tuple(usable[:8])

    def _is_claimed(
        self, entry: _Entry, asked: Asked, live: frozenset[NodeId], now_ms: int
    ) -> bool:
        """Whether somebody else fetches it, and the asker may wait for that."""
        claimed_by = entry.claimed_by
        return (
            claimed_by is not None
            and claimed_by != asked.node_id
            and claimed_by in live
            and claimed_by not in asked.avoid
            and entry.claim_end_ms > now_ms
            and not asked.is_urgent
        )

    def _grant(self, asked: Asked, absent: Sequence[FileRange], now_ms: int) -> list[FileRange]:
        """The first of them, and so many more as are fetched in a while."""
        granted: list[FileRange] = []
        left = self.limits.claim_bytes
        for wanted in absent:
            if granted and left < wanted.size:
                break
            left -= wanted.size
            granted.append(wanted)
            entry = self._entry(asked.content_id, wanted)
            if entry is None:
                continue
            entry.sent[asked.node_id] = None
            if asked.serves and not asked.is_urgent:
                entry.claimed_by = asked.node_id
                slow_ms = wanted.size // self.limits.slow_bytes_per_ms
                entry.claim_end_ms = now_ms + self.limits.claim_ms + slow_ms
        return granted

    def _entry(self, content_id: str, wanted: FileRange) -> _Entry | None:
        """None where no more ranges of the file can be remembered."""
        entries = self._files[content_id].entries
        if wanted not in entries and len(entries) >= self.limits.ranges_max:
            return None
        return entries.setdefault(wanted, _Entry())


def nearness(rtt_ms: float | None) -> int:
    """Round trips in steps of two: within one, the load decides. Unknown is far."""
    return int(max(1.0, rtt_ms)).bit_length() if rtt_ms is not None else 10
