"""Rank 0's side of a tensor-parallel group: how it forms, what it tells the others, how it ends."""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Final, Protocol

from torch._C._distributed_c10d import HashStore

from node.engine.device import Device
from node.engine.parallel.channel import LOST, RankChannel
from node.engine.parallel.rank_link import SILENT_S, RankLink
from node.engine.parallel.split import Split
from node.engine.parallel.torch_ranks import SumTime, TorchCommunicator
from plait import log
from plait.clock import Clock, SystemClock
from plait.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    PlaitError,
    UnavailableError,
)
from plait.types import KvDtype
from plait.wire.codec import kv_dtype_from_proto
from plait.wire.v1.ranks_pb2 import (
    RankCommand,
    RankHello,
    RankLeave,
    RankReady,
    RankReply,
    RankTune,
    RankWelcome,
)

JOIN_S: Final = 120.0
"""How long ranks may take to join: a process of this machine needs a few seconds."""

CULPRIT_S: Final = 1.0
"""How long a failed step waits for the end of the rank that failed it."""

_ACCEPT_S: Final = 0.5
_log = log.get("group")


class Members(Protocol):
    """Where the other ranks come from."""

    def start(self, address: str, secret: bytes) -> None:
        """Called once, when rank 0 listens at `address`."""
        ...

    def check(self) -> None:
        """Raises UnavailableError where a rank that was started has ended."""
        ...

    def stop(self) -> None:
        """End what was started. Idempotent."""
        ...


class RankGroup:
    """The other ranks of one stage, and the way to compute with them. Commands come from the
    engine's thread alone; `on_lost` is called once, from a thread of the group's, where a rank is
    gone before `close`."""

    def __init__(
        self,
        num_ranks: int,
        device: Device,
        members: Members,
        *,
        secret: bytes,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        join_s: float = JOIN_S,
        timeout_s: float = SILENT_S,
        clock: Clock | None = None,
    ) -> None:
        self.num_ranks = num_ranks
        self.device = device
        self._members = members
        self._secret = secret
        self._listen = listen
        self.on_lost: Callable[[str], None] = lambda _: None
        self._join_s = join_s
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._links: list[RankLink] = []
        self._communicator: TorchCommunicator | None = None
        self._lost: str | None = None
        self._is_lost = threading.Event()
        self._is_closing = False
        self._tuned: dict[int, tuple[SumTime, ...]] = {}
        self._tuned_last = 0

    @property
    def communicator(self) -> TorchCommunicator:
        assert self._communicator is not None, "form() comes first"
        return self._communicator

    @property
    def lost(self) -> str | None:
        """Why the group is of no use any more; None: it is."""
        return self._lost

    def form(self) -> None:
        """Wait for the ranks and connect them all. Blocks.

        Raises DeadlineError where too few join in time, ConfigError where one is of another kind,
        UnavailableError where one ends.
        """
        is_formed = False
        try:
            self._connect()
            is_formed = True
        finally:
            if not is_formed:
                self.close()

    def tell(self, payload: bytes) -> None:
        """A serialised command to all ranks. Raises UnavailableError where one is gone."""
        if self._lost is not None:
            raise UnavailableError(self._lost, reason=LOST)
        for link in self._links:
            link.send(payload)

    def try_tell(self, payload: bytes) -> None:
        """The same, to those that are there."""
        for link in self._links:
            with contextlib.suppress(UnavailableError):
                link.send(payload)

    def ask(self, command: RankCommand) -> None:
        """As `tell`, of a command that is not sent often; `replies` has the answers."""
        self.tell(command.SerializeToString())

    def answers(self, kind: str, timeout_s: float) -> list[RankReply | PlaitError]:
        """What every rank answers, or why it cannot."""
        found: list[RankReply | PlaitError] = []
        for link in self._links:
            try:
                found.append(link.reply(kind, timeout_s))
            except PlaitError as error:
                found.append(error)
        return found

    def replies(self, kind: str, timeout_s: float) -> list[RankReply]:
        """The same. Raises the first error, when all have answered."""
        return all_of(self.answers(kind, timeout_s))

    def give_up(self, why: str) -> None:
        """The ranks are not in step any more: they are of no use to each other. A rank that died
        fails our sums before its link is heard to end, so that is waited for: it is the one to
        name."""
        self._is_lost.wait(CULPRIT_S)
        self._lose(0, why)

    def tuned(self, hidden_size: int) -> tuple[SumTime, ...]:
        """How long sums of rows of this width take, now by the quickest way; measured once."""
        if hidden_size != self._tuned_last:
            self.ask(RankCommand(tune=RankTune(hidden_size=hidden_size)))
            self._tuned[hidden_size] = self.communicator.tune(hidden_size)
            self._tuned_last = hidden_size
            for of in self._tuned[hidden_size]:
                ways = {f"{way}_us": round(1e3 * ms) for way, ms in of.ways_ms.items()}
                _log.info("all_reduce", rows=of.num_rows, size=of.num_bytes, way=of.way, **ways)
        return self._tuned[hidden_size]

    def close(self) -> None:
        """Send the ranks away and end those that were started here. Idempotent; never raises."""
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
        if was_closing:
            return
        self.try_tell(RankCommand(leave=RankLeave()).SerializeToString())
        for link in self._links:
            link.close()
        self._members.stop()

    def _connect(self) -> None:
        store = HashStore()
        store.set_timeout(timedelta(seconds=self._timeout_s))
        hostname = self._gather(store)
        for link in self._links:
            welcome = RankWelcome(
                rank=link.rank,
                num_ranks=self.num_ranks,
                timeout_ms=int(1e3 * self._timeout_s),
                kv_dtype=self.device.kv_dtype,
            )
            link.send(RankCommand(welcome=welcome).SerializeToString())
        self._communicator = TorchCommunicator(
            store,
            Split(0, self.num_ranks),
            self.device,
            hostname=hostname,
            timeout_s=self._timeout_s,
        )
        for reply in self.replies("ready", self._timeout_s):
            require_same_kv(self.device.kv_dtype, reply.ready)
        _log.info("formed", num_ranks=self.num_ranks, hostname=hostname)

    def _gather(self, store: HashStore) -> str:
        """Let the ranks in; returns this machine's name as they reach it."""
        hostname = self._listen[0]
        with socket.create_server(self._listen) as listener:
            listener.settimeout(_ACCEPT_S)
            port = int(listener.getsockname()[1])
            self._members.start(f"{self._listen[0]}:{port}", self._secret)
            deadline_ms = self._clock.monotonic_ms() + int(1e3 * self._join_s)
            while len(self._links) < self.num_ranks - 1:
                self._members.check()
                if self._clock.monotonic_ms() > deadline_ms:
                    raise DeadlineError(
                        f"{len(self._links)} of {self.num_ranks - 1} other ranks joined at "
                        f"{self._listen[0]}:{port} within {self._join_s:g} s",
                        reason="ranks_missing",
                    )
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                hostname = str(connection.getsockname()[0])
                self._admit(connection, store)
        return hostname

    def _admit(self, connection: socket.socket, store: HashStore) -> None:
        """A stranger is sent away, and waited for no longer."""
        try:
            channel = RankChannel.lead(connection, self._secret)
        except (AuthenticationError, UnavailableError) as error:
            _log.warning("rank_refused", message=error.message)
            return
        link = RankLink(channel, len(self._links) + 1, store, self._lose)
        try:
            self._require_alike(link.reply("hello", self._timeout_s).hello)
        except PlaitError:
            link.close()
            raise
        self._links.append(link)

    def _require_alike(self, hello: RankHello) -> None:
        mine = (version("plait"), str(self.device.compute_dtype), self.device.kind)
        theirs = (hello.version, hello.dtype, hello.device_kind)
        if mine != theirs:
            raise ConfigError(
                f"a rank runs plait {theirs[0]} in {theirs[1]} on {theirs[2]}, rank 0 plait "
                f"{mine[0]} in {mine[1]} on {mine[2]}: the ranks of a group are alike"
            )

    def _lose(self, rank: int, why: str) -> None:
        with self._lock:
            if self._is_closing or self._lost is not None:
                return
            self._lost = f"rank {rank} of {self.num_ranks} is lost: {why}"
        self._is_lost.set()
        _log.warning("rank_lost", rank=rank, message=why)
        for link in self._links:
            link.hang_up()
        self.on_lost(self._lost)


def require_same_kv(mine: KvDtype, ready: RankReady) -> None:
    """Raises ConfigError where a rank keeps keys and values in something else than rank 0."""
    theirs = kv_dtype_from_proto(ready.kv_dtype)
    if theirs is not mine:
        raise ConfigError(
            f"a rank keeps keys and values as {theirs}, rank 0 as {mine}: the ranks of a group "
            "are alike"
        )


def all_of(answers: Sequence[RankReply | PlaitError]) -> list[RankReply]:
    """Raises the first error among them."""
    for answer in answers:
        if isinstance(answer, PlaitError):
            raise answer
    return [answer for answer in answers if isinstance(answer, RankReply)]
