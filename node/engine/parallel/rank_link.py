"""Rank 0's way to one other rank: commands out, replies in, and whether it is still there."""

import queue
import threading
from collections.abc import Callable
from typing import Final

from torch._C._distributed_c10d import HashStore

from node.engine.parallel.channel import LOST, RankChannel
from node.engine.parallel.commands import error_of, reply_from
from plait.errors import PlaitError, UnavailableError
from plait.wire.v1.ranks_pb2 import RankAlive, RankCommand, RankReply, RankStored

ALIVE_S: Final = 2.0
SILENT_S: Final = 20.0
"""A rank that says nothing for so long is lost: it says that it is there every two seconds."""

REPLIES_MAX: Final = 8
_ALIVE: Final = RankCommand(alive=RankAlive()).SerializeToString()


class RankLink:
    """Two threads: one hears the rank, one tells it that rank 0 is there. `store` answers its
    questions while the group forms; `on_lost` is called once, from either, when it is gone."""

    def __init__(
        self,
        channel: RankChannel,
        rank: int,
        store: HashStore,
        on_lost: Callable[[int, str], None],
        *,
        alive_s: float = ALIVE_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self.rank = rank
        self._channel = channel
        self._store = store
        self._on_lost = on_lost
        self._alive_s = alive_s
        self._silent_s = silent_s
        self._replies: queue.Queue[RankReply | None] = queue.Queue(maxsize=REPLIES_MAX)
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"plait-rank-{rank}", daemon=True)
            for run in (self._hear, self._tell)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, payload: bytes) -> None:
        """Raises UnavailableError where the rank is gone."""
        self._channel.send(payload)

    def reply(self, kind: str, timeout_s: float) -> RankReply:
        """The answer to what was asked last. Raises what the rank could not do, and
        UnavailableError where it is gone or says something else."""
        try:
            reply = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            raise UnavailableError(
                f"rank {self.rank} gave no answer in {timeout_s:g} s", reason=LOST
            ) from None
        if reply is None:
            raise UnavailableError(f"rank {self.rank} is gone", reason=LOST)
        found = reply.WhichOneof("reply")
        if found == "failed":
            raise error_of(reply.failed, self.rank)
        if found != kind:
            raise UnavailableError(f"rank {self.rank} said {found}, not {kind}", reason=LOST)
        return reply

    def hang_up(self) -> None:
        """The rank is of no use any more; who waits for it hears so."""
        self._channel.close()

    def close(self) -> None:
        """Idempotent."""
        self._closing.set()
        self._channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._alive_s)

    def _hear(self) -> None:
        why = ""
        try:
            while True:
                reply = reply_from(self._channel.receive(self._silent_s))
                match reply.WhichOneof("reply"):
                    case "alive":
                        continue
                    case "put":
                        self._store.set(reply.put.key, reply.put.value)  # type: ignore[arg-type]
                    case "ask":
                        self._answer(reply.ask.key)
                    case _:
                        self._replies.put_nowait(reply)
        except PlaitError as error:
            why = error.message
        except queue.Full:
            why = "it says what nobody asked for"
        except RuntimeError as error:  # torch's store waits no longer
            why = f"the group did not form: {error}"
        self._lose(why)

    def _answer(self, key: str) -> None:
        value = self._store.get(key)
        stored = RankStored(key=key, value=value)
        self._channel.send(RankCommand(stored=stored).SerializeToString())

    def _tell(self) -> None:
        while not self._closing.wait(self._alive_s):
            try:
                self._channel.send(_ALIVE)
            except UnavailableError:
                return  # who hears notices too

    def _lose(self, why: str) -> None:
        is_ours = self._closing.is_set()
        self._closing.set()
        self._channel.close()
        while not self._replies.empty():
            self._replies.get_nowait()
        self._replies.put(None)
        if not is_ours:
            self._on_lost(self.rank, why)
