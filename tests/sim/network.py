"""Streams between hosts in virtual time: in order, delayed, stuck, cut, half-open.

A stream keeps what TCP keeps while its far end is frozen or cut off. Who does not hear from the
other end for a while ends it; the end that is frozen learns of that when it thaws.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from math import log
from random import Random
from typing import Generic, Protocol, TypeVar

from tests.sim.clockwork import Action, Clockwork

SILENCE_MS = 4_000
DIAL_MS = 3_000
STUCK_LOOK_MS = 200
Frame = TypeVar("Frame")
End = Callable[[str], None]


class Ending(Protocol):
    """What a host and the network ask of a stream, whatever it carries."""

    @property
    def is_silent(self) -> bool: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def ends(self) -> "tuple[Host, Host]": ...

    def end(self, reason: str, *, silent: "Host | None" = None) -> None: ...


class Host:
    """One process on one machine; `name` is the machine's. It ends once and for all."""

    def __init__(self, name: str, clock: Clockwork) -> None:
        self.name = name
        self.clock = clock
        self.is_alive = True
        self.frozen_until_ms = 0
        self.streams: dict[Ending, None] = {}
        self._backlog: list[Action] = []

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until_ms > self.clock.now_ms

    def when_awake(self, action: Action) -> None:
        """Run it now; later where the process is frozen; never where it has ended."""
        if not self.is_alive:
            return
        if self.frozen_until_ms > self.clock.now_ms:
            self._backlog.append(action)
        else:
            action()

    def freeze(self, num_ms: int) -> None:
        """Stop the process for so long."""
        self.frozen_until_ms = self.clock.now_ms + num_ms
        self.clock.after(num_ms, self._thaw)

    def _thaw(self) -> None:
        while self._backlog and self.is_alive and not self.is_frozen:
            self._backlog.pop(0)()


class _Lane(Generic[Frame]):
    """Frames of one direction that keep their order."""

    __slots__ = ("frames", "is_pumping", "last_ms")

    def __init__(self) -> None:
        self.frames: deque[tuple[int, int, Frame]] = deque()
        self.last_ms = 0
        self.is_pumping = False


class Stream(Generic[Frame]):
    """Two ends; each hears frames and, once, why the stream has ended."""

    def __init__(self, network: "Network", ends: tuple[Host, Host]) -> None:
        self.ends = ends
        self.is_up = True
        self._network = network
        self._num_sent = 0
        self._hear: list[Callable[[Frame], None] | None] = [None, None]
        self._ended: list[End | None] = [None, None]
        self._quick: tuple[_Lane[Frame], _Lane[Frame]] = (_Lane(), _Lane())
        self._bulk: tuple[dict[str, _Lane[Frame]], dict[str, _Lane[Frame]]] = ({}, {})
        for host in ends:
            host.streams[self] = None

    def listen(self, side: int, hear: Callable[[Frame], None], ended: End) -> None:
        """Who is at an end."""
        self._hear[side], self._ended[side] = hear, ended

    def send(self, side: int, frame: Frame, bulk: str = "") -> None:
        """Queue a frame. Bulk goes behind what was sent before, and is overtaken by what is not;
        a request whose bulk is on its way stays behind it."""
        if not self.is_up:
            return
        lane = self._quick[side]
        if bulk:
            after_ms = lane.last_ms
            lane = self._bulk[side].setdefault(bulk, _Lane())
            lane.last_ms = max(lane.last_ms, after_ms)
        delay_ms = self._network.delay_ms(is_bulk=bool(bulk))
        lane.last_ms = max(lane.last_ms, self._network.clock.now_ms + delay_ms)
        self._num_sent += 1
        lane.frames.append((lane.last_ms, self._num_sent, frame))
        if not lane.is_pumping:
            lane.is_pumping = True
            self._pump(side, lane)

    def has_bulk(self, side: int, request_id: str) -> bool:
        """Whether bulk of a request is on its way."""
        lane = self._bulk[side].get(request_id)
        return lane is not None and bool(lane.frames)

    def _pump(self, side: int, lane: _Lane[Frame]) -> None:
        clock, frames, quick = self._network.clock, lane.frames, self._quick[side].frames
        while frames and self.is_up:
            due_ms, number, frame = frames[0]
            wait_ms = due_ms - clock.now_ms
            if wait_ms <= 0:
                if self._is_stuck(side):
                    wait_ms = STUCK_LOOK_MS
                elif quick and quick[0][1] < number:
                    wait_ms = 1  # bulk never overtakes what was sent before it
            if wait_ms > 0:
                clock.after(wait_ms, partial(self._pump, side, lane))
                return
            hear = self._hear[1 - side]
            assert hear is not None, "nobody is at this end"
            frames.popleft()
            hear(frame)
        lane.is_pumping = False

    def _is_stuck(self, side: int) -> bool:
        one, two = self.ends[side], self.ends[1 - side]
        if not two.is_alive or two.is_frozen:
            return True
        return self._network.has_cuts and self._network.is_cut(one.name, two.name)

    @property
    def is_silent(self) -> bool:
        """Whether at least one direction carries nothing."""
        return self._is_stuck(0) or self._is_stuck(1)

    def end(self, reason: str, *, silent: Host | None = None) -> None:
        """Over; each end is told once, but for one that has ended without a word or is told by
        nobody."""
        if not self.is_up:
            return
        self.is_up = False
        for host, ended in zip(self.ends, self._ended, strict=True):
            host.streams.pop(self, None)
            if host is not silent and ended is not None:
                host.when_awake(lambda ended=ended: ended(reason))  # type: ignore[misc]


class Network:
    """Who can reach whom."""

    def __init__(self, clock: Clockwork, rng: Random, mean_ms: float) -> None:
        self.clock = clock
        self.mean_ms = mean_ms
        self._rng = rng
        self._cuts: dict[tuple[str, str], int] = {}

    def delay_ms(self, *, is_bulk: bool = False) -> int:
        """Of one frame."""
        delay_ms = -log(1.0 - self._rng.random()) / (1 / self.mean_ms)
        return 1 + int(delay_ms * 3 if is_bulk else delay_ms)

    @property
    def has_cuts(self) -> bool:
        """Whether anything has been cut."""
        return bool(self._cuts)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether frames from one machine to another get lost now."""
        return self._cuts.get((source, target), 0) > self.clock.now_ms

    def was_cut(self, one: Host, two: Host, since_ms: int) -> bool:
        """Whether frames got lost in either direction at some time since."""
        ways = (one.name, two.name), (two.name, one.name)
        return any(self._cuts.get(way, 0) > since_ms for way in ways)

    def cut(self, source: Host, target: Host, num_ms: int, *, both_ways: bool) -> None:
        """Lose all frames for so long."""
        until_ms = self.clock.now_ms + num_ms
        self._cuts[source.name, target.name] = until_ms
        if both_ways:
            self._cuts[target.name, source.name] = until_ms
        self.watch([stream for stream in source.streams if target in stream.ends])

    def heal(self) -> None:
        """Nothing is cut any more."""
        self._cuts.clear()

    def watch(self, streams: list[Ending]) -> None:
        """These may be silent from now on: both ends notice, if it lasts."""
        for stream in streams:
            self.clock.after(SILENCE_MS, lambda stream=stream: self._look(stream))  # type: ignore[misc]

    def _look(self, stream: Ending) -> None:
        if stream.is_up and stream.is_silent:
            stream.end("nothing was heard for too long")

    def kill(self, host: Host, *, is_noticed: bool) -> None:
        """A process ends: its kernel says so to everybody at once, or the whole machine is gone."""
        host.is_alive = False
        streams = list(host.streams)
        if is_noticed:
            for stream in streams:
                stream.end("the process has ended", silent=host)
        else:
            self.watch(streams)
