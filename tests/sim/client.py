"""A client in virtual time: asks, reads, is cut off, comes back, leaves. It knows what it ought to
get, and objects to any other token."""

from typing import TYPE_CHECKING

from coordinator.gateway.happenings import Accepted, Delta, Finished, Happening, Routed
from coordinator.gateway.order import Order, PromptIds
from coordinator.gateway.reader import Reader, Resume
from plait.errors import PlaitError
from plait.types import FinishReason, RequestId
from tests.sim import arithmetic
from tests.sim.bell import Bell

if TYPE_CHECKING:
    from tests.sim.control_room import ControlRoom
    from tests.sim.fleet import Fleet

RETRY_MS = (300, 1_500)


class Client:
    """One request. `resumes`: as the SDK does; others are lost with their stream."""

    def __init__(
        self,
        fleet: "Fleet",
        request_id: RequestId,
        *,
        prompt: tuple[int, ...],
        num_tokens: int,
        resumes: bool,
    ) -> None:
        self._fleet = fleet
        self.request_id = request_id
        self._prompt = prompt
        self._num_tokens = num_tokens
        self.resumes = resumes
        self._expected = arithmetic.answer(prompt, num_tokens, fleet.spec.num_layers)
        self.tokens: list[int] = []
        self.outcome = ""
        self.stall_ms = 0
        self._heard_ms = 0
        self._epoch = 0
        self._num_deltas = 0
        self._was_asked = False
        self._reader: Reader | None = None
        self._room: ControlRoom | None = None
        self._connection = 0
        self._told_ms = 0

    @property
    def is_over(self) -> bool:
        return self.outcome != ""

    def ask(self) -> None:
        """Submit, or come back with what is there."""
        room = self._fleet.room
        if self.is_over or self._reader is not None:
            return
        if room is None:
            self._again("coordinator_away")
            return
        if not self._was_asked:
            self._heard_ms = self._fleet.clock.now_ms
        resume = None
        if self._was_asked:
            resume = Resume(
                epoch=self._epoch, token_ids=tuple(self.tokens), num_deltas=self._num_deltas
            )
        order = Order(
            prompt=PromptIds(self._prompt),
            max_tokens=self._num_tokens,
            request_id=self.request_id,
            ignore_eos=True,
            resume=resume,
        )
        self._connection += 1
        try:
            self._reader = self._start(room, order)
        except PlaitError as error:
            self._again(error.code)
            return
        self._room, self._was_asked = room, True
        self._read()

    def _start(self, room: "ControlRoom", order: Order) -> Reader:
        starting = room.generator.start(order, key_id="k", waker=Bell(self._read))
        try:
            starting.send(None)
        except StopIteration as stop:
            reader: Reader = stop.value
            return reader
        raise AssertionError("a prompt of token ids was waited for")

    def _again(self, code: str) -> None:
        if not self.resumes and self._was_asked:
            self.outcome = f"lost: {code}"
        else:
            self._fleet.clock.after(self._fleet.rng.uniform(*RETRY_MS), self.ask)

    def _read(self) -> None:
        """Everything new is on its way to the client, in order."""
        if self._reader is None:
            return
        clock, connection = self._fleet.clock, self._connection
        while self._reader is not None and (happening := self._reader.poll()) is not None:
            self._told_ms = max(self._told_ms, clock.now_ms + self._fleet.network.delay_ms())
            wait_ms = self._told_ms - clock.now_ms
            clock.after(wait_ms, lambda h=happening: self._hear(connection, h))  # type: ignore[misc]

    def _hear(self, connection: int, happening: Happening) -> None:
        if connection != self._connection or self._reader is None:
            return
        match happening:
            case Accepted() | Routed():
                self._epoch = max(self._epoch, happening.epoch)
            case Delta():
                self._take(happening)
            case Finished():
                self._end(happening)
            case _:
                pass

    def _take(self, delta: Delta) -> None:
        now_ms = self._fleet.clock.now_ms
        self.stall_ms = max(self.stall_ms, now_ms - self._heard_ms)
        self._heard_ms = now_ms
        self._num_deltas += 1
        for token in delta.tokens:
            expected = self._expected[len(self.tokens)] if not self.is_complete else None
            assert token.token_id == expected, (
                f"{self.request_id}: token {len(self.tokens)} is {token.token_id}, not {expected}"
            )
            self.tokens.append(token.token_id)

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) == len(self._expected)

    def _end(self, finished: Finished) -> None:
        assert not self.is_over, f"{self.request_id} ended twice"
        if finished.error is not None:
            self.outcome = finished.error.code
        else:
            self.outcome = str(finished.reason)
        if finished.reason is FinishReason.LENGTH:
            assert self.is_complete, f"{self.request_id} ended without all of its tokens"
        self._close()

    def leave(self) -> None:
        """The client goes away for good."""
        if not self.is_over:
            self.outcome = "left"
            self._close()

    def lose_stream(self) -> None:
        """Its connection breaks, or the coordinator has died."""
        if self.is_over or self._reader is None:
            return
        self._close()
        self._again("stream_lost")

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and self._room is not None and self._room.is_alive:
            reader.close()
