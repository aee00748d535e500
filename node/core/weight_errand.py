"""Which chunk of which range is asked of which neighbour next, and what becomes of those that fail.

One errand: the ranges of one file that a load is missing. No clock, no socket.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plait.types import NodeId
from plait.types.weights import ChunkHashes, FileRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrandLimits:
    """How hard neighbours are asked. Durations in milliseconds."""

    chunks_max: int = 6
    chunks_per_holder_max: int = 2
    failures_max: int = 2
    refusals_max: int = 40
    rest_ms: int = 250


@dataclass(frozen=True, slots=True)
class ChunkFetch:
    """One chunk, to be asked of one holder."""

    range: FileRange
    chunk: int
    holder: NodeId


@dataclass(slots=True)
class _Near:
    """A range that neighbours have."""

    hashes: ChunkHashes
    holders: tuple[NodeId, ...]
    left: list[int]
    num_under_way: int = 0


@dataclass(slots=True)
class _Holder:
    num_under_way: int = 0
    num_failures: int = 0
    num_refusals: int = 0
    rest_until_ms: int = 0


@dataclass(slots=True)
class Errand:
    """Ranges go from wanted to near or to the hub, and from there they are done, or wanted again.

    `avoid` are nodes that gave wrong bytes or did not answer: the coordinator is told of them.
    """

    limits: ErrandLimits = field(default_factory=ErrandLimits)
    avoid: dict[NodeId, None] = field(default_factory=dict)
    _wanted: dict[FileRange, None] = field(default_factory=dict)
    _near: dict[FileRange, _Near] = field(default_factory=dict)
    _hub: dict[FileRange, None] = field(default_factory=dict)
    _holders: dict[NodeId, _Holder] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: Iterable[FileRange], limits: ErrandLimits | None = None) -> "Errand":
        return cls(limits or ErrandLimits(), _wanted=dict.fromkeys(wanted))

    @property
    def is_done(self) -> bool:
        return not (self._wanted or self._near or self._hub)

    @property
    def wanted(self) -> tuple[FileRange, ...]:
        """Ranges of which nobody has said yet where they are."""
        return tuple(self._wanted)

    @property
    def has_near(self) -> bool:
        """Whether neighbours have something to give."""
        return bool(self._near)

    @property
    def is_at_hub(self) -> bool:
        """Whether the hub is being asked."""
        return bool(self._hub)

    @property
    def num_under_way(self) -> int:
        return sum(holder.num_under_way for holder in self._holders.values())

    def located(
        self, found: FileRange, hashes: ChunkHashes, holders: Sequence[NodeId], here: set[int]
    ) -> bool:
        """Neighbours have a wanted range, of which the chunks `here` came earlier. True where
        nothing of it is left to be asked for: then it is done."""
        if found not in self._wanted:
            return False
        left = [chunk for chunk in range(found.num_chunks) if chunk not in here]
        if left and all(holder in self.avoid for holder in holders):
            return False  # they failed while the answer was on its way
        del self._wanted[found]
        if left:
            self._near[found] = _Near(hashes, tuple(holders), left)
        return not left

    def done(self, one: FileRange) -> None:
        """A range came otherwise."""
        for places in (self._wanted, self._hub):
            places.pop(one, None)

    def sent_to_hub(self, ranges: Iterable[FileRange]) -> tuple[FileRange, ...]:
        """The hub is asked for these; returns those that were wanted."""
        sent = tuple(one for one in ranges if one in self._wanted)
        for one in sent:
            del self._wanted[one]
            self._hub[one] = None
        return sent

    def hub_failed(self, ranges: Iterable[FileRange]) -> None:
        """What the hub did not give is wanted again."""
        for one in ranges:
            if one in self._hub:
                del self._hub[one]
                self._wanted[one] = None

    def next_fetch(self, now_ms: int) -> ChunkFetch | None:
        """What to ask for now; call until None."""
        if self.num_under_way >= self.limits.chunks_max:
            return None
        for wanted, near in self._near.items():
            if near.left:
                holder = self._pick(near, now_ms)
                if holder is not None:
                    near.num_under_way += 1
                    self._holders[holder].num_under_way += 1
                    return ChunkFetch(wanted, near.left.pop(0), holder)
        return None

    def next_rest_end_ms(self) -> int | None:
        """When a neighbour that was busy may be asked again."""
        ends = [h.rest_until_ms for h in self._holders.values() if h.rest_until_ms]
        return min(ends, default=None)

    def arrived(self, fetch: ChunkFetch) -> bool:
        """The chunk is right and on the disk. True where its range is done with it."""
        near = self._ended(fetch)
        self._holders[fetch.holder].num_failures = 0
        if near is None or near.left or near.num_under_way:
            self._give_up()  # its holders may have failed while the chunk was looked at
            return False
        del self._near[fetch.range]
        return True

    def rejected(self, fetch: ChunkFetch) -> None:
        """It was not what it had to be: nothing more is asked of that node."""
        self.avoid[fetch.holder] = None
        self._again(fetch)

    def failed(self, fetch: ChunkFetch) -> None:
        """It did not come."""
        holder = self._holders[fetch.holder]
        holder.num_failures += 1
        if holder.num_failures >= self.limits.failures_max:
            self.avoid[fetch.holder] = None
        self._again(fetch)

    def refused(self, fetch: ChunkFetch, now_ms: int) -> None:
        """The neighbour has no time for it now."""
        holder = self._holders[fetch.holder]
        holder.num_refusals += 1
        holder.rest_until_ms = now_ms + self.limits.rest_ms
        if holder.num_refusals >= self.limits.refusals_max:
            self.avoid[fetch.holder] = None
        self._again(fetch)

    def _pick(self, near: _Near, now_ms: int) -> NodeId | None:
        """Of those that may be asked, the one with least under way; the first named of equals."""
        open_to = []
        for place, holder_id in enumerate(near.holders):
            holder = self._holders.setdefault(holder_id, _Holder())
            is_free = holder.num_under_way < self.limits.chunks_per_holder_max
            if holder_id not in self.avoid and is_free and holder.rest_until_ms <= now_ms:
                open_to.append((holder.num_under_way, place, holder_id))
        return min(open_to)[2] if open_to else None

    def _ended(self, fetch: ChunkFetch) -> _Near | None:
        self._holders[fetch.holder].num_under_way -= 1
        near = self._near.get(fetch.range)
        if near is not None:
            near.num_under_way -= 1
        return near

    def _again(self, fetch: ChunkFetch) -> None:
        near = self._ended(fetch)
        if near is not None:
            near.left.insert(0, fetch.chunk)
        self._give_up()

    def _give_up(self) -> None:
        """Ranges whose holders are all avoided are wanted again; chunks that came stay."""
        for wanted, near in list(self._near.items()):
            if near.num_under_way == 0 and all(h in self.avoid for h in near.holders):
                del self._near[wanted]
                self._wanted[wanted] = None
