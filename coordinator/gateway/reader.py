"""A client's place in a generation, and whether it comes back to one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from coordinator.gateway.generation import Generation
from coordinator.gateway.happenings import Accepted, Finished, Happening, Queued, Routed
from plait.errors import DeadlineError
from plait.types import RequestId

EPOCHS_APART: Final = 16
"""A client that comes back may have missed as many attempts as there are of one request, and its
new coordinator may make as many of which it hears nothing either."""
EPOCH_MAX: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where a client's stream broke off: the highest `epoch` it was told of, its tokens (empty
    where it does not know them), and how many pieces of the answer it has."""

    epoch: int = 0
    token_ids: tuple[int, ...] = ()
    num_deltas: int = 0

    @property
    def next_epoch(self) -> int:
        """For the client to come back with once more: above all attempts that are made for it now,
        of which it may hear nothing."""
        return self.epoch + EPOCHS_APART


class Owner(Protocol):
    """Who is told what becomes of a generation's readers."""

    @property
    def silence_s(self) -> float: ...

    def cancel(self, request_id: RequestId, error: DeadlineError | None = None) -> None: ...

    def left(self, generation: Generation) -> None: ...


class Reader:
    """One client's view of a generation. Iterate it to the end or close it; closing the last
    reader of a running generation cancels it. After `resume`, what the client has is passed over.
    """

    def __init__(
        self,
        owner: Owner,
        generation: Generation,
        waker: asyncio.Event | None = None,
        resume: Resume | None = None,
    ) -> None:
        self.generation = generation
        self._owner = owner
        self._waker = waker if waker is not None else asyncio.Event()
        self._at = 0
        self._num_known = resume.num_deltas if resume is not None else 0
        self._is_closed = False
        generation.watch(self._waker)

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.generation.unwatch(self._waker)
        self._owner.left(self.generation)

    def __aiter__(self) -> AsyncIterator[Happening]:
        return self

    def poll(self) -> Happening | None:
        """The next happening, or None where there is nothing new."""
        history = self.generation.history
        while self._at < len(history):
            self._at += 1
            if not self._is_known(history[self._at - 1]):
                return history[self._at - 1]
        return None

    def give_up(self) -> None:
        """End a generation that has said nothing for too long."""
        error = DeadlineError("the network said nothing for too long; try again", reason="silence")
        self._owner.cancel(self.generation.request_id, error)

    async def __anext__(self) -> Happening:
        """The next happening; `Finished` is always the last one."""
        while (happening := self.poll()) is None:
            if self.generation.finished is not None or self._is_closed:
                raise StopAsyncIteration
            self._waker.clear()
            try:
                async with asyncio.timeout(self._owner.silence_s):
                    await self._waker.wait()
            except TimeoutError:
                self.give_up()
        return happening

    def _is_known(self, happening: Happening) -> bool:
        """Whether a client that came back has it: the same tokens always make the same pieces."""
        if self._num_known == 0 or not is_piece(happening):
            return False
        self._num_known -= 1
        return True


def is_piece(happening: Happening) -> bool:
    """Whether it carries a piece of the answer."""
    return not isinstance(happening, Accepted | Queued | Routed | Finished)
